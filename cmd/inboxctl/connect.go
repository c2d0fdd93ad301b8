package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdsn"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedsn"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// maxConnections is the pool size. No command needs more connections.
const maxConnections = 4

func (a *app) naming() models.Naming { return models.Naming{Schema: a.schema, Prefix: a.prefix} }

// withDatabase runs work on the database that the DSN names. It creates a missing SQLite file only if create is true.
func (a *app) withDatabase(
	ctx context.Context, create bool, work func(ctx context.Context, db *gorm.DB) error,
) error {
	if a.dsn == "" {
		return misuse("no database: set %s or --dsn, see \"inboxctl help connecting\"", dsnVariable)
	}
	if err := a.naming().Validate(); err != nil {
		return misuse("%w", err)
	}
	of, db, pool, err := a.open(a.dsn, create)
	if err != nil {
		return err
	}
	connecting, cancel := context.WithTimeout(ctx, a.timeout)
	err = pool.PingContext(connecting)
	cancel()
	if err != nil {
		err = fmt.Errorf("connect to %s: %w", of.Title, asMisuse(of.Explain(err)))
	} else if err = work(ctx, db); ctx.Err() == nil && (store.TimedOut(err) || store.IsBusy(err)) {
		err = fmt.Errorf("%w: not done within --timeout = %s: %s", err, a.timeout, of.Waits)
	}
	if closing := pool.Close(); closing != nil {
		err = errors.Join(err, fmt.Errorf("close the database: %w", closing))
	}
	return err
}

// open opens the database that a DSN names. It does not connect.
func (a *app) open(dsn string, create bool) (*dialect.DSN, *gorm.DB, *sql.DB, error) {
	of := formOf(dsn)
	if of == nil {
		var forms []string
		for _, each := range dsns {
			forms = append(forms, each.Form)
		}
		// The DSN is not quoted, because it may contain a password.
		return nil, nil, nil, misuse("the DSN must be %s, see \"inboxctl help connecting\"", strings.Join(forms, ", or "))
	}
	dialector, err := of.Dialector(dsn, dialect.Opening{Program: "inboxctl", Timeout: a.timeout, Create: create})
	if err != nil {
		return nil, nil, nil, asMisuse(err)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open %s: %w", of.Title, err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open %s: %w", of.Title, err)
	}
	pool.SetMaxOpenConns(maxConnections)
	return of, db, pool, nil
}

// dsns are the databases that a DSN may name.
var dsns = []dialect.DSN{pgdsn.DSN, sqlitedsn.DSN, mysqlDSN}

// formOf returns the form of a DSN; nil if it has none.
func formOf(dsn string) *dialect.DSN {
	i := slices.IndexFunc(dsns, func(each dialect.DSN) bool { return each.Takes(dsn) })
	if i < 0 {
		return nil
	}
	return &dsns[i]
}

// asMisuse returns what is wrong with a DSN as the caller's mistake, and other errors as they are.
func asMisuse(err error) error {
	if wrong := dialect.DSNError(""); errors.As(err, &wrong) {
		return misuse("%w", wrong)
	}
	return err
}

// with runs a command's work on the inbox that the flags name.
func (a *app) with(ctx context.Context, work func(ctx context.Context, o *ops.Ops) error) error {
	return a.withDatabase(ctx, false, func(ctx context.Context, db *gorm.DB) error {
		o, err := a.ops(db, nil)
		if err == nil {
			err = a.checkSchema(ctx, o)
		}
		if err != nil {
			return err
		}
		return work(ctx, o)
	})
}

// withReplica is with, and opens the read replica that --replica names, if it names one. It need not answer.
func (a *app) withReplica(ctx context.Context, work func(ctx context.Context, o *ops.Ops) error) (err error) {
	if a.replicaDSN == "" {
		return a.with(ctx, work)
	}
	_, db, pool, err := a.open(a.replicaDSN, false)
	if err != nil {
		return fmt.Errorf("--replica: %w", err)
	}
	defer func() {
		if closing := pool.Close(); closing != nil {
			err = errors.Join(err, fmt.Errorf("close the replica: %w", closing))
		}
	}()
	a.replica = db
	return a.with(ctx, work)
}

// reading is withReplica, for work that the replica may do. It says where the work reads.
func (a *app) reading(ctx context.Context, work func(ctx context.Context, r ops.Reader) error) error {
	return a.withReplica(ctx, func(ctx context.Context, o *ops.Ops) error {
		r, source := o.Reader(ctx)
		if text := source.String(); source.Err != nil {
			a.say("%s: %s", text, errorLine(source.Err))
		} else if text != "" {
			a.say("%s.", text)
		}
		return work(ctx, r)
	})
}

// checkSchema is o.CheckSchema. Its error also names the flags that choose another inbox.
func (a *app) checkSchema(ctx context.Context, o *ops.Ops) error {
	err := o.CheckSchema(ctx)
	if errors.Is(err, models.ErrSchemaMissing) {
		err = fmt.Errorf("%w. Choose the inbox with --schema and --prefix, the database with --dsn", err)
	}
	return err
}

// audited is like with, for work that is audited under an actor's name.
func (a *app) audited(ctx context.Context, work func(ctx context.Context, o *ops.Ops) error) error {
	if err := a.checkActor(); err != nil {
		return err
	}
	return a.with(ctx, work)
}

// viewing is like reading, for a view that is audited under an actor's name.
func (a *app) viewing(ctx context.Context, work func(ctx context.Context, r ops.Reader) error) error {
	if err := a.checkActor(); err != nil {
		return err
	}
	return a.reading(ctx, work)
}

// ops opens the inbox, with a cleanup or nil. It uses the default redaction of common secrets, because the
// application's own hook is not available here.
func (a *app) ops(db *gorm.DB, clean func(context.Context) (handler.Deleted, error)) (*ops.Ops, error) {
	return ops.New(db, func(o *ops.Options) {
		o.Naming, o.StatementTimeout, o.Cleanup, o.Replica = a.naming(), a.timeout, clean, a.replica
		o.Redact = redaction.New(a.redact).Then(redact.Common).Hook()
	})
}

// print writes a result for programs, or as text with the given function.
func (a *app) print(v any, text func()) error {
	if a.structured() {
		return a.writeStructured(v)
	}
	text()
	return a.results.err
}

// view returns the RunE of a command that reads one value and prints it.
func view[T any](
	a *app, read func(o *ops.Ops, ctx context.Context) (T, error), write func(w io.Writer, v T),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
			v, err := read(o, ctx)
			if err != nil {
				return err
			}
			return a.print(v, func() { write(a.out, v) })
		})
	}
}

// stepTimeout is the longest time that one step of an action may take.
func (a *app) stepTimeout() time.Duration { return 2 * a.timeout }
