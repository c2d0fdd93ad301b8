package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPaymentDeliveredThreeTimesIsAppliedOnce(t *testing.T) {
	require.Equal(t,
		"acknowledged delivery 1\nacknowledged delivery 2\nacknowledged delivery 3\naccount tea: 4200 cents\n",
		demotest.GoRun(t, "once"))
}

// onBoth runs a test on PostgreSQL and on a SQLite file, with the tables made
// and an account "tea", and one "fees".
func onBoth(t *testing.T, test func(t *testing.T, db *gorm.DB, store *gormstore.Store)) {
	for name, dialector := range map[string]func(t *testing.T) gorm.Dialector{
		"SQLite": func(t *testing.T) gorm.Dialector {
			return sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + filepath.Join(t.TempDir(), "once.db") +
				"?_pragma=busy_timeout(5000)&_txlock=immediate"}
		},
		"PostgreSQL": func(t *testing.T) gorm.Dialector { return postgres.Open(testenv.PostgresDSN(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			db, err := gorm.Open(dialector(t), &gorm.Config{Logger: logger.Discard})
			require.NoError(t, err)
			pool, err := db.DB()
			require.NoError(t, err)
			defer pool.Close()
			require.NoError(t, prepare(t.Context(), db))
			require.NoError(t, db.AutoMigrate(&Account{}))
			require.NoError(t, db.Create([]Account{{Name: "tea"}, {Name: "fees", Cents: 10}}).Error)
			store, err := gormstore.New(db)
			require.NoError(t, err)
			test(t, db, store)
		})
	}
}

func cents(t *testing.T, db *gorm.DB, name string) int64 {
	t.Helper()
	var account Account
	require.NoError(t, db.Take(&account, "name = ?", name).Error)
	return account.Cents
}

var payment = Payment{ID: "p-1", Account: "tea", Cents: 42}

func TestHandlersOfAChannelAreIndependent(t *testing.T) {
	onBoth(t, func(t *testing.T, db *gorm.DB, store *gormstore.Store) {
		notified := 0
		apply, tell, err := channelOf(store, func(context.Context, Payment) error {
			notified++
			return nil
		}, zaptest.NewLogger(t))
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, apply(t.Context(), payment))
			require.NoError(t, tell(t.Context(), payment))
		}
		require.EqualValues(t, 42, cents(t, db, "tea"))
		require.Equal(t, 1, notified)
	})
}

func TestTransportFollowsTheDocumentedTable(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		told string
	}{
		"handled":     {nil, "acknowledged"},
		"no ID":       {&idempotent.IDError{HandlerKey: "x", Err: idempotent.ErrMissingID}, "parked acknowledged"},
		"in progress": {idempotent.ErrInProgress, "redelivered"},
		"lost":        {idempotent.ErrLost, "redelivered"},
		"failed":      {io.ErrUnexpectedEOF, "redelivered"},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			tell := func(what string) { told = append(told, what) }
			settle(t.Context(), func(context.Context, Payment) error { return c.err }, Delivery{payment, func() {
				tell("acknowledged")
			}},
				func(Delivery, error) { tell("parked") }, func(Delivery) { tell("redelivered") })
			require.Equal(t, c.told, strings.Join(told, " "))
		})
	}
}

func TestRedisAndMemoryHandleOnce(t *testing.T) {
	calls := 0
	charge := func(context.Context, Payment) error {
		calls++
		if calls == 1 {
			return errors.New("declined")
		}
		return nil
	}
	twice := func(t *testing.T, handle handleFunc) {
		calls = 0
		p := Payment{ID: t.Name() + time.Now().String()}
		require.EqualError(t, handle(t.Context(), p), "declined")
		require.NoError(t, handle(t.Context(), p))
		require.NoError(t, handle(t.Context(), p))
		require.Equal(t, 2, calls)
	}
	t.Run("memory", func(t *testing.T) {
		handle, err := inMemory(charge)
		require.NoError(t, err)
		twice(t, handle)
	})
	t.Run("Redis", func(t *testing.T) {
		address, _ := testenv.Redis(t)
		options, err := redis.ParseURL(address)
		require.NoError(t, err)
		options.ContextTimeoutEnabled = true
		client := redis.NewClient(options)
		defer client.Close()
		handle, err := inRedis(client, zap.NewNop(), charge)
		require.NoError(t, err)
		twice(t, handle)
	})
}

func TestIDIsFoundInPayloadAndHeader(t *testing.T) {
	onBoth(t, func(t *testing.T, db *gorm.DB, store *gormstore.Store) {
		shipped := 0
		ship, err := byPayload(store, func(context.Context, Order) error {
			shipped++
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, ship(t.Context(), Order{"o-1"}))
		require.NoError(t, ship(t.Context(), Order{"o-1"}))
		require.Equal(t, 1, shipped)
		require.ErrorIs(t, ship(t.Context(), Order{}), idempotent.ErrMissingID)

		handle, err := byHeader(store)
		require.NoError(t, err)
		m := kafka.Message{Topic: "payments", Value: []byte(`{"ID":"p-1","Account":"tea","Cents":42}`),
			Headers: []kafka.Header{{Key: "Payment-Id", Value: []byte("p-1")}}}
		require.NoError(t, handle(t.Context(), m))
		require.NoError(t, handle(t.Context(), m))
		require.EqualValues(t, 42, cents(t, db, "tea"))
	})
}

func TestSweeperStopsAndTransactionIsAtomic(t *testing.T) {
	onBoth(t, func(t *testing.T, db *gorm.DB, store *gormstore.Store) {
		stop, err := sweeping(store, zaptest.NewLogger(t))
		require.NoError(t, err)
		require.NoError(t, stop(t.Context()))

		declined := errors.New("declined")
		fails := true
		handle, err := gormstore.Wrap(store, "apply-payment", func(ctx context.Context, tx *gorm.DB, p Payment) error {
			if err := applyTx(ctx, tx, p); err != nil || !fails {
				return err
			}
			return declined
		})
		require.NoError(t, err)
		require.ErrorIs(t, together(t.Context(), db, handle, payment), declined)
		require.Equal(t, []int64{0, 10}, []int64{cents(t, db, "tea"), cents(t, db, "fees")})
		var markers int64
		require.NoError(t, db.Model(&models.Marker{}).Count(&markers).Error)
		require.Zero(t, markers)
		fails = false
		require.NoError(t, together(t.Context(), db, handle, payment))
		require.Equal(t, []int64{42, 9}, []int64{cents(t, db, "tea"), cents(t, db, "fees")})
	})
}
