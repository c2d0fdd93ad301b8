package simulated_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/simulation/database"
	simulated "github.com/gorm-inbox/inbox/integration/simulation/store"
)

// process is one process of a service.
type process struct {
	*inbox.Inbox
	close func() error
}

// begin starts a process. Its handlers fail for the first hours, and then handle each message once.
func begin(t *testing.T, d *database.Database, link database.Link, calls *atomic.Int64) process {
	t.Helper()
	db, err := gorm.Open(simulated.Open(d, link), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(20)
	require.NoError(t, db.Exec(`CREATE TABLE IF NOT EXISTS handled (key text NOT NULL, id text NOT NULL, PRIMARY KEY (key, id))`).Error)
	until := time.Now().Add(3 * time.Hour)
	write := func(key string) func(context.Context, *gorm.DB, handler.Message[[]byte]) error {
		return func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
			calls.Add(1)
			if err := tx.Exec(`INSERT INTO handled (key, id) VALUES (?, ?)`, key, m.ID).Error; err != nil {
				return err
			}
			if time.Now().Before(until) {
				return errors.New("not yet")
			}
			return nil
		}
	}
	ib, err := inbox.New("test", db,
		inbox.Configure(func(o *inbox.Options) {
			o.Logger, o.Migrate = zap.NewNop(), true
			o.Processor.MaxRetries = 100
			o.Processor.MaxRetryDelay = 10 * time.Minute
		}),
		inbox.Channel("c", inbox.On("t",
			inbox.Func("plain", func(ctx context.Context, _ handler.Message[[]byte]) error {
				time.Sleep(time.Second)
				return ctx.Err()
			}),
			inbox.Tx("booked", write("booked")),
			inbox.Tx("ordered", write("ordered"), handler.Ordered()),
		)))
	require.NoError(t, err)
	require.NoError(t, ib.Start(context.Background()))
	return process{ib, pool.Close}
}

func (p process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Stop(context.Background()))
	require.NoError(t, p.close())
}

// TestEngineRunsInABubble runs it twice, so that nothing of a bubble is kept.
func TestEngineRunsInABubble(t *testing.T) {
	const messages = 30
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			d, err := simulated.NewDatabase()
			require.NoError(t, err)
			var calls atomic.Int64
			one, two := begin(t, d, nil, &calls), begin(t, d, nil, &calls)
			for i := range messages {
				results, err := one.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "t", ID: fmt.Sprint(i),
					Content: []byte("x"), OrderingKey: []byte{byte(i % 3)}})
				require.NoError(t, err)
				require.Len(t, results, 1)
			}
			began := time.Now()
			for left := int64(1); left > 0; time.Sleep(time.Minute) {
				require.NoError(t, two.DB().Table(two.Tables().HandlerStatuses()).Where("completed_at IS NULL").Count(&left).Error)
				require.Less(t, time.Since(began), 12*time.Hour, "%d left", left)
			}
			require.Greater(t, time.Since(began), 3*time.Hour)
			var handled int64
			require.NoError(t, two.DB().Table("handled").Count(&handled).Error)
			require.EqualValues(t, 2*messages, handled)
			t.Logf("%d calls in %s", calls.Load(), time.Since(began))
			one.stop(t)
			two.stop(t)
			require.NoError(t, d.Close())
		})
	}
}
