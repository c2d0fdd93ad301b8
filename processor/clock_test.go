package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// wrongClocks are clocks of machines whose time is not the database's.
var wrongClocks = map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour}

// delayed are handlers of whose messages each is due again after a minute.
func delayed(runs chan<- string) inbox.Option {
	const delay = time.Minute
	note := func(m inboxtest.Bytes, err error) error {
		runs <- m.HandlerKey
		return err
	}
	minutely := handler.Backoff(func(int) time.Duration { return delay })
	return inboxtest.Handlers(
		inboxtest.Do("plain", func(_ context.Context, m inboxtest.Bytes) error { return note(m, errBoom) }, minutely),
		inboxtest.Do("ordered", func(_ context.Context, m inboxtest.Bytes) error { return note(m, errBoom) }, minutely,
			handler.Ordered()),
		inboxtest.Do("snoozing", func(_ context.Context, m inboxtest.Bytes) error { return note(m, handler.Snooze(delay)) }),
		inboxtest.Do("asking", func(_ context.Context, m inboxtest.Bytes) error {
			return note(m, handler.RetryAfter(delay, errBoom))
		}))
}

// acceptInLane accepts a message with an ordering key.
func acceptInLane(t *testing.T, ib *inbox.Inbox, id string) {
	t.Helper()
	m := inboxtest.Message(id)
	m.OrderingKey = []byte("lane")
	_, err := ib.Accept(context.Background(), m)
	require.NoError(t, err)
}

// requireDueInAMinute checks that four statuses are due, by the database's clock, after the delay that
// was meant.
func requireDueInAMinute(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	count := func(where string) (n int) {
		require.NoError(t, d.DB.Raw(`SELECT count(*) FROM inbox_handler_statuses WHERE `+where).Scan(&n).Error)
		return n
	}
	inboxtest.Eventually(t, func() bool { return count(`next_attempt_at IS NOT NULL`) == 4 }, "all are due again")
	require.Zero(t, count(`next_attempt_at > clock_timestamp() + interval '1 minute'`), "due later than was meant")
	require.Zero(t, count(`next_attempt_at < clock_timestamp() + interval '1 second'`), "due earlier than was meant")
}

// Contract 3.5. On SQLite all workers share one machine, and its clock is the only one.
func TestWorkerWithWrongClockSchedulesRetriesOnTime(t *testing.T) {
	for name, offset := range wrongClocks {
		wrong := inbox.Configure(func(o *inbox.Options) { o.Clock = clock.Offset(offset) })
		t.Run("a worker "+name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				runs := make(chan string, 100)
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), wrong, delayed(runs))
				inboxtest.Start(t, ib)
				acceptInLane(t, ib, "1")
				requireDueInAMinute(t, d)
			})
		})
		t.Run("a drain "+name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				runs := make(chan string, 100)
				ib := inboxtest.New(t, d.DB, wrong, delayed(runs))
				acceptInLane(t, ib, "1")
				require.Equal(t, 4, inboxtest.Process(t, ib).Picked)
				requireDueInAMinute(t, d)
			})
		})
	}
}

// Contract 3.5.
func TestWorkerWithWrongClockRunsRetriesOnTime(t *testing.T) {
	for name, offset := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				runs := make(chan string, 100)
				right := inboxtest.New(t, d.DB, delayed(runs))
				wrong := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), delayed(runs),
					inbox.Configure(func(o *inbox.Options) {
						o.Clock, o.Processor.PollingInterval = clock.Offset(offset), 100*time.Millisecond
					}))
				acceptInLane(t, right, "1")
				require.Equal(t, 4, inboxtest.Process(t, right).Picked)
				for range 4 {
					inboxtest.Receive(t, runs, "the first attempts")
				}
				require.Equal(t, processor.Drained{}, inboxtest.Process(t, wrong), "a drain runs none early")
				inboxtest.Start(t, wrong)
				acceptInLane(t, wrong, "2") // the processor's loop comes to it after a claim of all handlers
				for range 3 {
					require.NotEqual(t, "ordered", inboxtest.Receive(t, runs, "the first attempts of the second message"))
				}
				require.Empty(t, runs, "the worker runs none early")
				inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET next_attempt_at = clock_timestamp(), version = version + 1
					WHERE message_id = '1' AND handler_key = 'ordered'`)
				require.Equal(t, "ordered", inboxtest.Receive(t, runs, "a retry that is due by the database's clock"))
			})
		})
	}
}
