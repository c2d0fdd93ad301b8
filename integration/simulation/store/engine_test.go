package simulated_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	"github.com/gorm-inbox/inbox/internal/routine"
)

// failing is how long handlers fail.
const failing = time.Hour

// process is one process of a service.
type process struct {
	*inbox.Inbox
	close func() error
}

// begin starts a process. Its handlers with a transaction fail for some time.
func begin(t *testing.T, d *database.Database, link database.Link, calls *atomic.Int64) process {
	t.Helper()
	db, err := gorm.Open(simulated.Open(d, "process", link), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(20)
	require.NoError(t, db.Exec(`CREATE TABLE IF NOT EXISTS handled (key text NOT NULL, id text NOT NULL, PRIMARY KEY (key, id))`).Error)
	until := time.Now().Add(failing)
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
				routine.Sleep(ctx, time.Second)
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
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			testEngine(t, nil, func() {})
		})
	}
}

// TestEngineInABubbleLosesCalls delays calls, and loses some with and without their effect, or silently.
func TestEngineInABubbleLosesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Bool
		testEngine(t, func(ctx context.Context, _ string, do func() error) error {
			if !begun.Load() {
				return do()
			}
			routine.Sleep(ctx, rand.N(40*time.Millisecond))
			switch rand.N(200) {
			case 0:
				return io.ErrUnexpectedEOF
			case 1:
				return errors.Join(do(), io.ErrUnexpectedEOF)
			case 2:
				_ = do()
				routine.Sleep(ctx, time.Minute)
				return database.ErrSilent
			case 3:
				routine.Sleep(ctx, rand.N(20*time.Second))
			}
			err := do()
			routine.Sleep(ctx, rand.N(40*time.Millisecond))
			return err
		}, func() { begun.Store(!begun.Load()) })
	})
}

// testEngine has two processes handle messages whose handlers fail at first. It calls toggle before and after.
func testEngine(t *testing.T, link database.Link, toggle func()) {
	const messages = 9
	d, err := simulated.NewDatabase()
	require.NoError(t, err)
	var calls atomic.Int64
	one, two := begin(t, d, link, &calls), begin(t, d, link, &calls)
	toggle()
	for i := range messages {
		message := handler.RawMessage{Channel: "c", Type: "t", ID: fmt.Sprint(i), OrderingKey: []byte{byte(i % 3)}}
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := one.Accept(ctx, message)
			return err == nil
		}, time.Hour, time.Second)
	}
	began := time.Now()
	routine.Sleep(t.Context(), failing)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var left int64
		err := two.DB().WithContext(ctx).Table(two.Tables().HandlerStatuses()).Where("completed_at IS NULL").Count(&left).Error
		return err == nil && left == 0
	}, 10*failing, time.Minute)
	t.Logf("%d calls in %s", calls.Load(), time.Since(began))
	toggle()
	routine.Sleep(t.Context(), 2*time.Minute) // a session that was lost silently has ended
	var handled int64
	require.NoError(t, two.DB().Table("handled").Count(&handled).Error)
	require.EqualValues(t, 2*messages, handled, "each once by each handler with a transaction")
	require.Greater(t, calls.Load(), 10*handled)
	one.stop(t)
	two.stop(t)
	require.NoError(t, d.Close())
}
