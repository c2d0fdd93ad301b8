package processor_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestLocalDispatchDoesNotStarveAFewOlderStatuses(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		tickets := make(chan struct{})
		var finished atomic.Int64
		ib := startDispatching(t, d.DB, slots(10, 10), inboxtest.Handlers(
			inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				if isProbe(m) {
					return nil
				}
				select {
				case <-tickets:
				case <-ctx.Done():
					return ctx.Err()
				}
				finished.Add(1)
				return nil
			})))
		one := func() {
			before := finished.Load()
			tickets <- struct{}{}
			inboxtest.Eventually(t, func() bool { return finished.Load() > before }, "one has finished")
			pause(t, 10*time.Millisecond) // the loop learns of it
		}
		old := make([]string, 23) // three more than there are slots
		for i := range old {
			old[i] = fmt.Sprintf("old%02d", i)
		}
		inboxtest.Accept(t, ib, old...)
		waiting := func() (n int) {
			for _, s := range inboxtest.Statuses(t, ib) {
				if strings.HasPrefix(s.MessageID, "old") && s.CompletedAt == nil && s.WorkerID == nil {
					n++
				}
			}
			return n
		}
		require.Equal(t, 3, waiting())
		for range 4 { // fewer slots than a claim of an unknown number of messages waits for
			one()
		}
		for i := range 20 {
			one()
			inboxtest.Accept(t, ib, fmt.Sprintf("new%03d", i))
		}
		require.Zero(t, waiting(), "there were slots for all of them while newer ones ran")
		close(tickets)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
	})
}

func TestAcceptWaitingForALockHoldsNoIdleSlots(t *testing.T) {
	// Not on SQLite: its accepts do their waiting before they reserve anything.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		ib := startDispatching(t, d.DB, slots(10, 10), statementTimeout(inboxtest.Patience),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		tx := d.DB.Begin() // a long transaction of another connection
		defer tx.Rollback()
		_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("x"))
		require.NoError(t, err)
		blocked := make(chan error, 1)
		go func() {
			messages := []handler.RawMessage{inboxtest.Message("x")}
			for i := range 25 {
				messages = append(messages, inboxtest.Message(fmt.Sprintf("b%d", i)))
			}
			_, err := ib.Accept(context.Background(), messages...)
			blocked <- err
		}()
		inboxtest.Eventually(t, func() bool {
			var waiting int
			require.NoError(t,
				d.DB.Raw(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database() AND NOT l.granted`).Scan(&waiting).Error)
			return waiting > 0
		}, "the accept waits")
		for i := range 30 { // more than there are slots, one after the other
			id := fmt.Sprint("y", i)
			inboxtest.Accept(t, ib, id)
			require.EqualValues(t, 3, completed(t, ib, id, "h").Version, "for other accepts the slots stay taken")
		}
		require.Empty(t, blocked, "the accept still waits")
		before := ib.Counters().Dispatched
		require.NoError(t, tx.Rollback().Error)
		require.NoError(t, inboxtest.Receive(t, blocked, "the accept"))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		require.Greater(t, ib.Counters().Dispatched, before, "its reservation is kept")
		for range 3 {
			settleDown(t, ib)
		}
	})
}
