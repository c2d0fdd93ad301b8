package gormstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestCleanupDeletesInBatchesAndSkipsLockedRows(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		r := newRig(t, d, func(o *gormstore.Options) {
			o.BatchSize = 3
			o.Clock = clock
		})
		for i := range 10 {
			each := run(fmt.Sprint(i))
			each.Retention = time.Duration(i+1) * time.Minute
			_, err := r.store.Run(t.Context(), each, effect(each.Key.MessageID, nil))
			require.NoError(t, err)
		}
		if d.Dialect == "postgres" { // whose rows are locked one by one
			tx := d.DB.Begin()
			require.NoError(t, tx.Exec(`SELECT FROM inbox_markers WHERE message_id = '0' FOR UPDATE`).Error)
			deleted, err := r.store.Cleanup(t.Context(), inboxtest.Noon.Add(time.Minute+time.Second))
			require.NoError(t, err)
			require.Zero(t, deleted)
			require.NoError(t, tx.Rollback().Error)
		}
		deleted, err := r.store.Cleanup(t.Context(), inboxtest.Noon.Add(8*time.Minute))
		require.NoError(t, err)
		require.EqualValues(t, 7, deleted)
		require.Equal(t, []string{"7", "8", "9"}, r.markers())

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.store.Cleanup(ended, inboxtest.Noon.Add(time.Hour))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []string{"7", "8", "9"}, r.markers())
	})
}

func TestTablesAreCheckedAtStart(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		s, err := gormstore.New(d.DB, func(o *gormstore.Options) { o.TablePrefix = "orders_" })
		require.NoError(t, err, "nothing is read")
		err = s.Check(t.Context())
		require.ErrorIs(t, err, models.ErrSchemaMissing)
		require.ErrorContains(t, err, `table prefix "orders_"`)
		require.ErrorContains(t, err, "models.Migrate")
		// The tables of an inbox, whatever its name is.
		require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{Prefix: "orders_"}, "orders"))
		require.NoError(t, s.Check(t.Context()))
		duplicate, err := s.Run(t.Context(), run("1"), func(context.Context) error { return nil })
		require.NoError(t, err)
		require.False(t, duplicate)
		var count int64
		require.NoError(t, d.DB.Table("orders_markers").Count(&count).Error)
		require.EqualValues(t, 1, count)
	})
}

func TestSchemaOptionSelectsTheTable(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has none
		require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{Schema: "billing"}, ""))
		s := open(t, d.DB, func(o *gormstore.Options) { o.Schema = "billing" })
		_, err := s.Run(t.Context(), run("1"), func(context.Context) error { return nil })
		require.NoError(t, err)
		is, err := s.Processed(t.Context(), run("1").Key)
		require.NoError(t, err)
		require.True(t, is)
	})
}

func TestUnstorableValuesAreRefused(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		long := fmt.Sprintf("%0201d", 0)
		for name, each := range map[string]idempotent.Run{
			"message ID":   {Key: idempotent.Key{MessageID: long, HandlerKey: "h"}},
			"empty":        {Key: idempotent.Key{MessageID: "", HandlerKey: "h"}},
			"handler key":  {Key: idempotent.Key{MessageID: "1", HandlerKey: long}},
			"NUL":          {Key: idempotent.Key{MessageID: "1\x00", HandlerKey: "h"}},
			"UTF-8":        {Key: idempotent.Key{MessageID: "\xff", HandlerKey: "h"}},
			"message type": {Key: run("1").Key, MessageType: long + long},
		} {
			_, err := r.store.Run(t.Context(), each, effect("1", nil))
			require.ErrorIs(t, err, store.ErrUnstorable, name)
			require.ErrorContains(t, err, name)
		}
		r.have()
	})
}

type unheardOf struct{ gorm.Dialector }

func (unheardOf) Name() string { return "oracle" }

func TestUnusableDatabasesAndOptionsAreErrors(t *testing.T) {
	_, err := gormstore.New(nil)
	require.ErrorContains(t, err, "no database")

	db := testenv.SQLite(t)
	oracle := testenv.Open(t, unheardOf{sqlite.Dialector{DriverName: "sqlite", DSN: testenv.SQLiteDSN(t)}}, gorm.Config{})
	_, err = gormstore.New(oracle)
	require.ErrorContains(t, err, `dialect "oracle" is not supported`)

	tx := db.Begin()
	defer tx.Rollback()
	_, err = gormstore.New(tx)
	require.ErrorContains(t, err, "inside a transaction")

	for expected, option := range map[string]func(*gormstore.Options){
		"option LockTimeout = 1µs: must be 1ms to 24h": func(o *gormstore.Options) {
			o.LockTimeout = time.Microsecond
		},
		"option LockTimeout = 24h0m0.000000001s: must be 1ms to 24h": func(o *gormstore.Options) {
			o.LockTimeout = 24*time.Hour + 1
		},
		"option StatementTimeout = 2562047h47m16.854775807s": func(o *gormstore.Options) {
			o.StatementTimeout = math.MaxInt64
		},
		"option StatementTimeout = 0s: must be more than 0, to 24h": func(o *gormstore.Options) {
			o.StatementTimeout = 0
		},
		"option BatchSize = 0: must be 1 or more":   func(o *gormstore.Options) { o.BatchSize = 0 },
		"option MaxAttempts = 0: must be 1 or more": func(o *gormstore.Options) { o.MaxAttempts = 0 },
		"option Isolation = Read Committed: must be Default or Serializable on sqlite": func(o *gormstore.Options) {
			o.Isolation = sql.LevelReadCommitted
		},
		"option Isolation = Linearizable: must be": func(o *gormstore.Options) {
			o.Isolation = sql.LevelLinearizable
		},
		"schema": func(o *gormstore.Options) {
			o.Schema = "billing"
		},
		`table prefix = "a b"`: func(o *gormstore.Options) {
			o.TablePrefix = "a b"
		},
		"option LockTimeout = 0s": func(o *gormstore.Options) {
			*o = gormstore.Options{}
		},
	} {
		_, err := gormstore.New(db, option)
		require.ErrorContains(t, err, expected)
	}
	_, err = gormstore.New(db, nil, func(o *gormstore.Options) { *o = gormstore.DefaultOptions() })
	require.NoError(t, err)
}

// TestSweepWithWrongClockDeletesNothingTooEarly proves contract 3.5: the database's clock judges
// a marker's age, whatever the clocks of its writer and of the sweeper show.
func TestSweepWithWrongClockDeletesNothingTooEarly(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *gormstore.Options) { o.Clock = clock.Offset(-24 * time.Hour) })
		_, err := r.store.Run(t.Context(), run("1"), effect("1", nil))
		require.NoError(t, err)
		sweep := func() int64 {
			sweeper, err := idempotent.NewSweeper(r.store, func(o *idempotent.SweepOptions) {
				o.Clock = clock.Offset(24 * time.Hour)
			})
			require.NoError(t, err)
			forgotten, err := sweeper.Sweep(t.Context())
			require.NoError(t, err)
			return forgotten
		}
		require.Zero(t, sweep())
		inboxtest.Exec(t, d.DB, `UPDATE inbox_markers SET expires_at = now() - interval '1 second'`)
		require.EqualValues(t, 1, sweep())
	})
}
