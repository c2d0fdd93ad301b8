package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestProfileIsChosenByVersion(t *testing.T) {
	t.Parallel()
	for version, plain := range map[string]bool{
		"PostgreSQL 13.0 on x86_64-pc-linux-gnu, compiled by gcc":                           true,
		"PostgreSQL 15.4 (Debian 15.4-1.pgdg120+1) on x86_64-pc-linux-gnu, compiled by gcc": true,
		"PostgreSQL 17beta1 on aarch64-unknown-linux-gnu, compiled by gcc":                  true,
		"PostgreSQL 18.1, compiled by Visual C++ build 1944, 64-bit":                        true,
		"PostgreSQL 16.3 - Percona Server for PostgreSQL 16.3.1 on x86_64-pc-linux-gnu":     true,
		"PostgreSQL 14.1": true,
		"PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang":                               false,
		"PostgreSQL 15.12-YB-2025.2.0.0-b131 on aarch64-unknown-linux-gnu, compiled by clang":                    false,
		"CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/16 18:47:10, go1.23.7)":                     false,
		"(openGauss 5.0.0 build a07d57c3) compiled at 2023-03-29 03:09:38 commit 0 last mr  on x86_64, compiled": false,
	} {
		require.Equal(t, plain, plainVersion.MatchString(version), version)
	}
}

// pretending returns a pool whose sessions find functions of the schema public before those of PostgreSQL.
func pretending(t *testing.T, function string) *gorm.DB {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	require.NoError(t, testenv.OpenPostgres(t, dsn).Exec("CREATE FUNCTION public."+function).Error)
	return testenv.OpenPostgres(t, dsn+"&search_path=public,pg_catalog")
}

// TestServerThatIsNotPostgreSQLGetsThePortableProfile proves contract 3.4: what the server says, lacks or refuses
// decides.
func TestServerThatIsNotPostgreSQLGetsThePortableProfile(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]struct{ function, why string }{
		"its version":        {`version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB v25.2.1' $$`, "CockroachDB v25.2.1"},
		"a missing function": {`to_regprocedure(text) RETURNS regprocedure LANGUAGE sql AS $$ SELECT pg_catalog.to_regprocedure($1) WHERE $1 NOT LIKE 'pg_notify%' $$`, "no function pg_notify"},
		"a refused statement": {`pg_notification_queue_usage() RETURNS float8 LANGUAGE plpgsql AS
			$$ BEGIN RAISE feature_not_supported USING MESSAGE = 'notifications are off'; END $$`, "notifications are off"},
	} {
		t.Run(name, func(t *testing.T) {
			p := openMigrated(t, pretending(t, server.function))
			warnings, err := p.CheckSettings(t.Context(), false)
			require.NoError(t, err)
			require.Len(t, warnings, 1)
			require.True(t, warnings[0].Notice)
			require.Contains(t, warnings[0].Fields[0].String, server.why)
			require.NoError(t, p.Notify(t.Context(), "h"))
			_, err = p.Listen(t.Context())
			require.ErrorIs(t, err, store.ErrNoNotifications)
			require.NotContains(t, p.bounded(claimSQL, 1), "ctid")
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			warnings, err = p.CheckIsolation(ctx, sql.LevelDefault)
			require.NoError(t, err)
			require.Empty(t, warnings)
		})
	}
}

// TestFirstCallChoosesTheProfileInTheCallersTransaction proves that a program that only calls AcceptTx, and an
// operator's, send what the server understands, too.
func TestFirstCallChoosesTheProfileInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := pretending(t, `version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB v25.2.1' $$`)
	p := openMigrated(t, db)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error { return p.KeepSchema(t.Context(), tx.Statement.ConnPool) }))
	require.True(t, p.isPortable())
	for name, call := range map[string]func(p *Store) error{
		"advance": func(p *Store) error {
			_, err := p.AdvanceLanes(t.Context(), []store.LaneRequest{{Key: 1}}, time.Now())
			return err
		},
		"workers": func(p *Store) error { _, err := p.Workers(t.Context(), time.Now()); return err },
		"notify":  func(p *Store) error { return p.Notify(t.Context()) },
		"notify in a transaction": func(p *Store) error {
			return db.Transaction(func(tx *gorm.DB) error { return p.NotifyTx(t.Context(), tx, "h") })
		},
		"backlog": func(p *Store) error {
			_, err := p.Backlog(t.Context(), []store.KeyLimit{{HandlerKey: "h", Limit: 1}}, time.Now())
			return err
		},
		"expired": func(p *Store) error {
			_, err := p.Expired(t.Context(), store.CleanupRequest{Limit: 1})
			return err
		},
		"delete expired": func(p *Store) error { _, err := p.DeleteExpired(t.Context(), nil); return err },
		"end sessions":   func(p *Store) error { _, err := p.EvictHolders(t.Context(), nil, nil); return err },
	} {
		other, err := New(db, models.Naming{}, store.Options{})
		require.NoError(t, err)
		require.NoError(t, call(other), name)
		require.True(t, other.isPortable(), name)
	}
}

// TestPlainPostgreSQLKeepsTheNativeProfile proves that it is neither taken for another engine nor probed.
func TestPlainPostgreSQLKeepsTheNativeProfile(t *testing.T) {
	t.Parallel()
	p := openMigrated(t, testenv.Postgres(t))
	warnings, err := p.CheckSettings(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.False(t, p.isPortable())
	require.Contains(t, p.bounded(claimSQL, 1), "ctid")
	_, err = p.CheckIsolation(t.Context(), sql.LevelDefault)
	require.NoError(t, err)
	require.Contains(t, p.Text(claimSQL), "xmax")
}

func TestForcedProfilePassesItsProbesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	openMigrated(t, db)
	p, err := New(db, models.Naming{}, store.Options{Portable: true})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	for _, connections := range []int{0, 1, 2, 3} {
		pool.SetMaxOpenConns(connections)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		warnings, err := p.CheckIsolation(ctx, sql.LevelDefault)
		cancel()
		require.NoError(t, err)
		if connections == 1 {
			require.Equal(t, []store.Warning{unasked}, warnings)
		} else {
			require.Empty(t, warnings, connections)
		}
	}
	var leases int64
	require.NoError(t, db.Model(&models.Lock{}).Count(&leases).Error)
	require.Zero(t, leases, "the probes leave nothing")
}

// careless is a server that runs statements without their locks, as TiDB does, or transactions at another isolation, or
// does not know a setting.
type careless struct {
	gorm.ConnPool
	db        *sql.DB
	unlocked  bool
	isolation sql.IsolationLevel
	unknown   string
	refusals  *int
}

type carelessTx struct {
	careless
	gorm.TxCommitter
}

func (c careless) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if c.unlocked {
		text = strings.TrimSuffix(text, " FOR NO KEY UPDATE SKIP LOCKED")
	}
	return c.ConnPool.QueryContext(ctx, text, args...)
}

func (c careless) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if c.unknown != "" && strings.Contains(text, c.unknown) {
		*c.refusals++
		return nil, &pgconn.PgError{Code: "42704", Message: "unrecognized configuration parameter"}
	}
	return c.ConnPool.ExecContext(ctx, text, args...)
}

func (c careless) BeginTx(ctx context.Context, _ *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := c.db.BeginTx(ctx, &sql.TxOptions{Isolation: c.isolation})
	c.ConnPool = tx
	return &carelessTx{c, tx}, err
}

func (c careless) GetDBConn() (*sql.DB, error) { return c.db, nil }

// pretend returns a session of db on such a server.
func (c careless) pretend(t *testing.T, db *gorm.DB) *gorm.DB {
	t.Helper()
	pool, err := db.DB()
	require.NoError(t, err)
	c.ConnPool, c.db = pool, pool
	db = db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
	db.Statement.ConnPool = c
	return db
}

// TestServerThatDoesNotKnowJITRunsLargeStatements proves that it refuses the setting once, whoever asks.
func TestServerThatDoesNotKnowJITRunsLargeStatements(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	openMigrated(t, db)
	server := careless{unknown: "jit", refusals: new(int)}
	p, err := New(server.pretend(t, db), models.Naming{}, store.Options{Portable: true})
	require.NoError(t, err)
	for range 2 {
		_, _, err = p.LoadExpired(t.Context(), store.CleanupRequest{}, []int64{1}, 1)
		require.NoError(t, err)
		require.Equal(t, 1, *server.refusals)
	}
}

// TestWhatAProbeHasFoundOutCountsWhenItsTimeEnds proves that the end of its transactions does not hide it.
func TestWhatAProbeHasFoundOutCountsWhenItsTimeEnds(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	_, err := base.Probe(t.Context(), db, func(context.Context) error {
		return errors.Join(errSnapshots, context.DeadlineExceeded)
	})
	require.ErrorIs(t, err, errSnapshots)
	asked, err := base.Probe(t.Context(), db, func(context.Context) error { return context.DeadlineExceeded })
	require.NoError(t, err)
	require.False(t, asked)
}

// TestEngineThatWouldLoseOrDoubleMessagesIsRefused proves contract 3.4.
func TestEngineThatWouldLoseOrDoubleMessagesIsRefused(t *testing.T) {
	t.Parallel()
	check := func(db *gorm.DB) error {
		p, err := New(db, models.Naming{}, store.Options{Portable: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		_, err = p.CheckIsolation(ctx, sql.LevelDefault)
		return err
	}
	open := func(t *testing.T, change func(*careless)) *gorm.DB {
		db := testenv.Postgres(t)
		openMigrated(t, db)
		server := careless{isolation: sql.LevelReadCommitted}
		change(&server)
		return server.pretend(t, db)
	}
	t.Run("as it is", func(t *testing.T) {
		require.NoError(t, check(open(t, func(*careless) {})))
	})
	t.Run("it gives one row to two claims", func(t *testing.T) {
		require.ErrorContains(t, check(open(t, func(c *careless) { c.unlocked = true })),
			"gives a row that one transaction has locked to another one")
	})
	t.Run("it has no READ COMMITTED", func(t *testing.T) {
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			require.ErrorIs(t, check(open(t, func(c *careless) { c.isolation = level })), errSnapshots)
		}
	})
	for _, sequence := range []string{"inbox_messages_number_seq", "inbox_handler_statuses_sequence_seq"} {
		t.Run("it caches "+sequence, func(t *testing.T) {
			db := testenv.Postgres(t)
			openMigrated(t, db)
			require.NoError(t, db.Exec("ALTER SEQUENCE "+sequence+" CACHE 100").Error)
			require.ErrorContains(t, check(db), fmt.Sprintf("sequence %s hands out 100 numbers at once", sequence))
			require.NoError(t, db.Exec("ALTER SEQUENCE "+sequence+" CACHE 1").Error)
			require.NoError(t, check(db))
		})
	}
}

// TestAdvancedLanesAreLockedInTheOrderOfIDs proves that two statements about the same lanes wait for each other instead
// of deadlocking, in whatever order they name them.
func TestAdvancedLanesAreLockedInTheOrderOfIDs(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	p := openMigrated(t, db)
	rule := &store.LaneRule{Handlers: []int64{store.LaneHandler("ordered")}}
	batch := store.AcceptBatch{Now: time.Now()}
	var requests []store.LaneRequest
	for i := range 3 {
		lane := store.Lane{Handler: rule.Handlers[0], Key: int64(i)}
		batch.Messages = append(batch.Messages, store.NewMessage{Message: models.Message{ID: fmt.Sprint(i)},
			Handlers: []store.NewStatus{{HandlerKey: "ordered", Lane: &lane}}})
		requests = append([]store.LaneRequest{rule.Request(lane)}, requests...)
	}
	_, err := p.Accept(t.Context(), batch)
	require.NoError(t, err)
	require.NoError(t, db.Exec(`UPDATE inbox_handler_statuses SET is_waiting = true`).Error)
	var ids []string
	require.NoError(t, db.Raw(`SELECT id::text FROM inbox_handler_statuses ORDER BY id`).Scan(&ids).Error)
	locks := func(tx *gorm.DB, id string) (got int64) {
		require.NoError(t, tx.Raw(`SELECT count(*) FROM (SELECT FROM inbox_handler_statuses WHERE id = ?::uuid
			FOR UPDATE SKIP LOCKED) s`, id).Scan(&got).Error)
		return got
	}
	tx := db.Begin()
	require.NoError(t, tx.Error)
	defer tx.Rollback()
	require.Equal(t, int64(1), locks(tx, ids[0]))
	advanced := make(chan error, 1)
	go func() {
		_, err := p.AdvanceLanes(t.Context(), requests, time.Now())
		advanced <- err
	}()
	require.Eventually(t, func() bool {
		var waiting int64
		require.NoError(t, db.Raw(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`).Scan(&waiting).Error)
		return waiting == 1
	}, testenv.Patience, 10*time.Millisecond)
	for _, id := range ids[1:] {
		require.Equal(t, int64(1), locks(db, id), "none is locked before the first")
	}
	require.NoError(t, tx.Rollback().Error)
	require.NoError(t, <-advanced)
}

// TestProfilesShareAnInbox proves that a program with the option and one without run what each other has accepted,
// once.
func TestProfilesShareAnInbox(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	native := openMigrated(t, db)
	portable, err := New(db, models.Naming{}, store.Options{Portable: true})
	require.NoError(t, err)
	const messages = 100
	rule := &store.LaneRule{Handlers: []int64{store.LaneHandler("ordered")}}
	batch := store.AcceptBatch{Now: time.Now()}
	for i := range messages {
		batch.Messages = append(batch.Messages, store.NewMessage{Message: models.Message{ID: fmt.Sprint(i)},
			Handlers: []store.NewStatus{{HandlerKey: "plain"}, {HandlerKey: "ordered",
				Lane: &store.Lane{Handler: rule.Handlers[0], Key: int64(i % 7)}}}})
	}
	_, err = portable.Accept(t.Context(), batch)
	require.NoError(t, err)
	runs, stores := map[string]int{}, []*Store{native, portable}
	for round := 0; len(runs) < 2*messages; round++ {
		require.Less(t, round, 10*messages)
		p := stores[round%2]
		worker := uuid.NewString()
		require.NoError(t, p.Heartbeat(t.Context(), store.Worker{ID: worker, Host: "h"}, time.Now()))
		got, err := p.Claim(t.Context(), store.ClaimRequest{WorkerID: worker, Now: time.Now().Add(time.Second),
			Limits: []store.KeyLimit{{HandlerKey: "plain", Limit: 5}, {HandlerKey: "ordered", Limit: 5, Lanes: rule}}})
		require.NoError(t, err)
		other := stores[(round+1)%2]
		var completions []store.Completion
		var requests []store.LaneRequest
		for _, c := range got.Claims {
			runs[c.MessageID+" "+c.HandlerKey]++
			completions = append(completions, store.Completion{StatusID: c.StatusID, Version: c.Version,
				Outcome: models.OutcomeProcessed})
			if c.Lane != nil {
				requests = append(requests, rule.Request(*c.Lane))
			}
		}
		applied, err := other.Complete(t.Context(), completions, time.Now(), store.AwaitLocked)
		require.NoError(t, err)
		require.NotContains(t, applied, false)
		_, err = other.AdvanceLanes(t.Context(), requests, time.Now().Add(time.Second))
		require.NoError(t, err)
		require.NoError(t, other.MarkReleased(t.Context(), worker, time.Now()))
	}
	for status, n := range runs {
		require.Equal(t, 1, n, status)
	}
}
