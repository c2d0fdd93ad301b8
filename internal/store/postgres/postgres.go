// Package postgres is the store on PostgreSQL.
package postgres

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/operators"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Store implements store.Store for PostgreSQL 13 and later. It passes lists as arrays: one prepared statement serves
// every batch size, and the limit of 65,535 parameters per statement does not matter. UUIDs are passed as text, which
// the server casts, except in what every message needs: see array.
type Store struct {
	base.Common
	operators.Queries
	// origin identifies the sender of this store's notifications, so that its own Listener ignores them.
	origin string
	large  int // size of contents, in bytes, from which on an accept calls pgx directly
	// profile is nil until the server was asked what it is, see choose.
	profile  *atomic.Pointer[profile]
	becoming *sync.Mutex
	layouts  *base.Layouts
	// droppable is below which number partitions had expired when a cleanup last looked.
	droppable *atomic.Int64
}

// New returns a store for the tables of naming in db.
func New(db *gorm.DB, naming models.Naming, options store.Options) (*Store, error) {
	tables, err := base.NewDatabase(db, naming, store.ReadCommitted, options)
	if err != nil {
		return nil, err
	}
	p := &Store{large: largeContents, origin: uuid.NewString(), profile: new(atomic.Pointer[profile]),
		becoming: new(sync.Mutex), droppable: new(atomic.Int64)}
	p.layouts = &base.Layouts{Refresh: p.refreshLayout, Current: p.Layout, Failed: forAnotherLayout}
	tables.Singles = tables.Singles.Following(p)
	p.Queries = operators.New(tables, operatorsForm)
	p.Common = base.NewCommon(tables, p, statements(), operatorsForm.Form)
	if p.SetWords(profile{}.words()...); options.Portable {
		p.become(forced)
	}
	return p, nil
}

// statements are those of base.Common. It is a function because the test of plans takes a statement that a variable
// contains for a part of another one.
func statements() base.Statements {
	return base.Statements{Publishing: publishingSQL, Rejected: rejectedSQL, Requests: requestsSQL,
		AddAudit: addAuditSQL, Siblings: siblingsSQL, AcceptKeys: acceptKeysSQL, AcceptDelete: acceptDeleteSQL,
		Lanes:          base.PartialLanes,
		ReleaseWaiting: releaseWaitingSQL, DeleteMarkers: deleteMarkersSQL, DeleteAudit: deleteAuditSQL,
		DeleteRejected: deleteRejectedSQL, ExpiredSizes: expiredSizesSQL, ExpiredMessages: expiredMessagesSQL,
		ExpiredStatuses: expiredStatusesSQL, LeaseOwners: leaseOwnersSQL, ReleaseLeases: releaseLeasesSQL,
		Paused: pausedSQL, SetPaused: setPausedSQL, SetLegacyKeys: setLegacyKeysSQL, FurthestBehind: furthestBehindSQL,
		ForgetPartitions: forgetPartitionsSQL, WorkerLives: workerLivesSQL, DeleteWorkers: deleteWorkersSQL}
}

// bounded returns a statement with {most} filled in, a number of rows that is at least most. The planner expects a
// tenth of all rows from a limit that is a parameter. Among enough rows the statement would then seem so expensive that
// PostgreSQL compiles it (jit), which takes a hundred times longer than to run it. Inside of a limit that is stated as
// a constant, a parameter limits no more than a tenth of that. There are few such constants, so that few statements are
// prepared.
func (p *Store) bounded(statement string, most int) string {
	bound := 512
	for bound < most {
		bound *= 2
	}
	return p.TextWithin(statement, bound)
}

// schemasSQL reads the catalog's rows of the tables by their OIDs.
const schemasSQL = `
SELECT DISTINCT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (to_regclass('{messages}'), to_regclass('{statuses}'), to_regclass('{rejected}'), to_regclass('{gaps}'), to_regclass('{requests}'),
	to_regclass('{partitions}'), to_regclass('{locks}'), to_regclass('{workers}'), to_regclass('{handlers}'), to_regclass('{markers}'),
	to_regclass('{audit}'), to_regclass('{meta}'))`

func (p *Store) KeepSchema(ctx context.Context, pool gorm.ConnPool) error {
	if err := p.choose(ctx, pool); err != nil {
		return err
	}
	return p.Database.KeepSchema(ctx, pool, schemasSQL)
}

// confirmed locks rows and commits. Rows that a statement without a lock reads may exist on this server alone:
//
//  1. A client stops waiting for the synchronous standby. Its commit becomes visible before the
//     standby has it.
//  2. We read the rows of that commit.
//  3. A failover undoes the commit.
//
// A lock is written to the log after that commit, so our own commit does not return before the standby has both. Each
// answer that lets a caller acknowledge a message comes from here, or from another transaction that writes.
func confirmed(ctx context.Context, p *Store, lock string, args ...any) (locked []int, err error) {
	err = p.Transaction(ctx, func(pool gorm.ConnPool) error {
		locked, err = store.Query(ctx, pool, p.Text(lock), store.Value[int], args...)
		return err
	})
	return locked, err
}

// defaultIsolationSQL reads no table and changes nothing.
const defaultIsolationSQL = `
SELECT current_user, current_database(), setting, source FROM pg_settings WHERE name = 'default_transaction_isolation'`

func (p *Store) CheckIsolation(ctx context.Context, handlers sql.IsolationLevel) ([]store.Warning, error) {
	var warnings []store.Warning
	if p.isPortable() {
		asked, err := p.checkEngine(ctx)
		if err != nil {
			return nil, err
		}
		if !asked {
			warnings = append(warnings, unasked)
		}
	}
	found, err := settings[string](ctx, p, defaultIsolationSQL)
	if err != nil || len(found) == 0 || found[0].value == "read committed" {
		return warnings, base.Doing("read the default isolation", err)
	}
	p.Singles.StateIsolation()
	if handlers == sql.LevelDefault {
		handlers = sql.LevelReadCommitted
	}
	return append(warnings, store.Warning{Message: "inbox: default_transaction_isolation is not read committed: transactions that plain handlers or the application begin without a level get that default; " +
		"the inbox's own run at read committed, and handlers' transactions at the level of option TxIsolation",
		Fields: append(found[0].fields(), zap.String(telemetry.FieldIsolation, found[0].value),
			zap.String(telemetry.FieldHandlersIsolation, strings.ToLower(handlers.String())))}), nil
}

// setting is a setting of the server, and who has set it: user, database, database user, configuration file, client.
type setting[T any] struct {
	role, database string
	value          T
	source         string
}

func (s setting[T]) fields() []zap.Field {
	return []zap.Field{zap.String(telemetry.FieldRole, s.role), zap.String(telemetry.FieldDatabase, s.database),
		zap.String(telemetry.FieldSettingOf, s.source)}
}

func settings[T any](ctx context.Context, p *Store, statement string) ([]setting[T], error) {
	return store.Query(ctx, p.Pool(ctx), statement, func(rows *sql.Rows, s *setting[T]) error {
		return rows.Scan(&s.role, &s.database, &s.value, &s.source)
	})
}

// earlyJITSQL reads no table and changes nothing. 100,000 is the default, which the plan tests hold. The CASE keeps
// pg_jit_available from loading the compiler, which takes 20 ms, where there is nothing to warn of.
const earlyJITSQL = `
SELECT current_user, current_database(), setting::float8, source FROM pg_settings
WHERE name = 'jit_above_cost' AND current_setting('jit')::boolean
	AND CASE WHEN setting::float8 >= 0 AND setting::float8 < 100000 THEN pg_jit_available() ELSE false END`

// CheckSettings chooses the profile. On PostgreSQL it warns if the server compiles statements that cost less than by
// default. Ours never cost more than that.
func (p *Store) CheckSettings(ctx context.Context, _ bool) ([]store.Warning, error) {
	if err := p.chooseAtStart(ctx); err != nil {
		return nil, base.Doing("ask the server what it is", err)
	}
	if p.isPortable() {
		return []store.Warning{p.profile.Load().notice()}, nil
	}
	found, err := settings[float64](ctx, p, earlyJITSQL)
	if err != nil || len(found) == 0 {
		return nil, base.Doing("read the settings of jit", err)
	}
	return []store.Warning{{Message: "inbox: PostgreSQL compiles statements (jit) from a lower cost than by default, which slows them down: " +
		"set jit = off for the role, or raise jit_above_cost to 100000",
		Fields: append(found[0].fields(), zap.Float64(telemetry.FieldJITAboveCost, found[0].value))}}, nil
}
