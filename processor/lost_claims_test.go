package processor_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestLostClaimsAreAllFoundHoweverMany(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const lost = 600 // more than one look takes
		db, gate := gated(t, d)
		ib := inboxtest.New(t, db, unhurried(), inbox.StatementTimeout(time.Second), inbox.Prefetch(lost), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		messages := make([]inbox.RawMessage, lost)
		for i := range messages {
			messages[i] = inboxtest.Message(fmt.Sprint(i))
		}
		gate.lose()
		_, err := ib.Accept(context.Background(), messages...)
		require.ErrorIs(t, err, errLost)
		var claimed int64
		require.NoError(t, ib.DB().Scopes(ib.Statuses).Where("worker_id IS NOT NULL").Count(&claimed).Error)
		require.Greater(t, claimed, int64(500))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are found, and completed")
		require.Zero(t, ib.Counters().Fenced)
	})
}

func TestLostClaimsAreLookedForUnderLoad(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite's accepts take turns
		const timeout = 300 * time.Millisecond
		db, gate := gated(t, d)
		ib := inboxtest.New(t, db, unhurried(), inbox.StatementTimeout(timeout), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)),
			inbox.Channel("bulk", inbox.On("t", inboxtest.Do("bulk", inboxtest.Nothing))))
		bulk := make([]inbox.RawMessage, 20000) // claims follow one another
		for i := range bulk {
			bulk[i] = inboxtest.Message(fmt.Sprint("bulk ", i))
			bulk[i].Channel = "bulk"
		}
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		gate.lose()
		_, err := ib.Accept(context.Background(), inboxtest.Message("lost"))
		require.ErrorIs(t, err, errLost)
		require.NotNil(t, inboxtest.Status(t, ib, "lost", "h").WorkerID)
		for i := 0; i < len(bulk); i += 1000 {
			_, err := ib.Accept(context.Background(), bulk[i:i+1000]...)
			require.NoError(t, err)
		}
		ctx, stop := context.WithCancel(context.Background())
		var accepting sync.WaitGroup
		for k := range 8 { // and accepts overlap
			accepting.Add(1)
			go func() {
				defer accepting.Done()
				for i := 0; ctx.Err() == nil; i++ {
					gate.take(func(tx *sql.Tx) error { pause(t, 100*time.Millisecond); return tx.Commit() })
					_, _ = ib.Accept(ctx, inboxtest.Message(fmt.Sprint("l", k, "-", i)))
				}
			}()
		}
		defer accepting.Wait()
		defer stop()
		began := time.Now()
		for inboxtest.Status(t, ib, "lost", "h").Version == 1 {
			require.Less(t, time.Since(began), 3*time.Second, "nobody looks for it")
			pause(t, 20*time.Millisecond)
		}
		var left int64
		require.NoError(t, ib.DB().Scopes(ib.Statuses).Where("handler_key = 'bulk' AND completed_at IS NULL").Count(&left).Error)
		require.Positive(t, left, "there was load throughout")
	})
}
