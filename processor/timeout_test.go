package processor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

const soon = 30 * time.Millisecond

// enough is a handler timeout within which statements succeed even on a busy machine.
const enough = 5 * time.Second

// untilCancelled is a handler that returns when its context is cancelled.
func untilCancelled(ctx context.Context, _ inboxtest.Bytes) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTimeoutIsAFailure(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.HandlerTimeout = soon
		}), inboxtest.Handlers(
			inboxtest.Do("plain", untilCancelled),
			inboxtest.Tx("tx", func(ctx context.Context, _ *gorm.DB, m inboxtest.Bytes) error { return untilCancelled(ctx, m) }),
			inboxtest.Do("generous", func(ctx context.Context, m inboxtest.Bytes) error {
				deadline, limited := ctx.Deadline()
				require.True(t, limited)
				require.Greater(t, time.Until(deadline), time.Minute)
				return nil
			}, handler.Timeout(4*time.Minute)),
			inboxtest.Do("other error", func(ctx context.Context, m inboxtest.Bytes) error { <-ctx.Done(); return errBoom }),
		))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 4, Completed: 1, Failed: 3}, inboxtest.Process(t, ib))
		for key, text := range map[string]string{"plain": "context deadline exceeded", "tx": "context deadline exceeded",
			"other error": "boom"} {
			s := inboxtest.Status(t, ib, "1", key)
			require.Equal(t, 1, s.ErrorCount, key)
			require.Equal(t, "handler timed out after 30ms: "+text, *s.LastError, key)
		}
	})
}

func TestNilResultCompletesDespiteCancellation(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE effects(id varchar(100) primary key)")
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.HandlerTimeout = soon
		}), inboxtest.Handlers(
			inboxtest.Do("plain", func(ctx context.Context, _ inboxtest.Bytes) error { <-ctx.Done(); return nil }),
			inboxtest.Tx("tx", func(ctx context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				err := tx.Exec("INSERT INTO effects VALUES ('a')").Error
				<-ctx.Done()
				return err
			}, handler.Timeout(enough)),
		))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, ib))
		var effects int64
		require.NoError(t, d.DB.Table("effects").Count(&effects).Error)
		require.EqualValues(t, 1, effects, "its writes are committed")
	})
}

func TestCancelledCallerCountsNoError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			})))
		inboxtest.Accept(t, ib, "1", "2")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		type outcome struct {
			drained processor.Drained
			err     error
		}
		ended := make(chan outcome, 1)
		go func() {
			drained, err := ib.ProcessPending(ctx)
			ended <- outcome{drained, err}
		}()
		inboxtest.Receive(t, running, "the handler")
		cancel()
		o := inboxtest.Receive(t, ended, "ProcessPending")
		require.ErrorIs(t, o.err, context.Canceled)
		// A claim under way at the cancellation may pick more than the one that ran. The rows' versions tell how
		// many it were: a claim and its release raise them by one each.
		picked := 0
		for _, s := range inboxtest.Statuses(t, ib) {
			picked += int(s.Version-1) / 2
			require.Zero(t, s.ErrorCount)
			require.Nil(t, s.ProcessingStartedAt)
			require.Nil(t, s.NextAttemptAt, "due at once")
			require.Nil(t, s.LastError)
		}
		require.Positive(t, picked)
		require.Equal(t, processor.Drained{Picked: picked, Released: picked}, o.drained)
		require.Empty(t, running, "the second never ran")
	})
}

func TestHandlerVerdictOutranksTheCancellation(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		running := make(chan string, 10)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		steer := func(err error) func(context.Context, inboxtest.Bytes) error {
			return func(ctx context.Context, m inboxtest.Bytes) error { running <- m.ID; <-ctx.Done(); return err }
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("poisons", steer(handler.Poison(errBoom))),
			inboxtest.Do("snoozes", steer(handler.Snooze(time.Hour)))))
		inboxtest.Accept(t, ib, "1")
		ended := make(chan error, 1)
		go func() { _, err := ib.ProcessPending(ctx); ended <- err }()
		inboxtest.Receive(t, running, "a handler")
		inboxtest.Receive(t, running, "a handler")
		cancel()
		require.ErrorIs(t, inboxtest.Receive(t, ended, "ProcessPending"), context.Canceled)
		require.True(t, inboxtest.Status(t, ib, "1", "poisons").IsPoisoned)
		require.NotNil(t, inboxtest.Status(t, ib, "1", "snoozes").NextAttemptAt)
	})
}

func TestStuckHandlerIsReportedAndItsSlotReplaced(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		started, release := make(chan string, 100), make(chan struct{})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
			o.Processor.Prefetch = 0
			o.Processor.StuckHandlerGrace = 2 * time.Second
		}), inboxtest.Handlers(
			inboxtest.Do("deaf", func(_ context.Context, m inboxtest.Bytes) error {
				started <- m.ID
				<-release
				return nil
			}, handler.Timeout(soon)),
			inboxtest.Do("fine", inboxtest.Nothing),
		))
		inboxtest.Start(t, ib)
		t.Cleanup(func() { close(release) }) // before the stop
		inboxtest.Accept(t, ib, many(10)...)
		count := func(where string) (n int64) {
			require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("handler_key = 'deaf' AND "+where).Count(&n).Error)
			return n
		}
		// The second slot may be refilled while the first is being replaced.
		const bound, most = 2, 3
		inboxtest.Eventually(t, func() bool {
			return ib.Health().Processor.Stuck["deaf"] >= bound
		}, "the calls were reported")
		require.ErrorContains(t, ib.Health().Degraded(), "calls ignore their cancelled context")
		require.GreaterOrEqual(t, logs.FilterMessageSnippet("ignores its cancelled context").Len(), bound)
		claimed := count("processing_started_at IS NOT NULL")
		require.GreaterOrEqual(t, claimed, int64(bound), "their rows stay claimed")
		require.LessOrEqual(t, claimed, int64(most), "at the bound nothing more is claimed for that handler")
		inboxtest.Accept(t, ib, "late")
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "late", "fine").CompletedAt != nil
		}, "the other handler goes on")

		inboxtest.Eventually(t, func() bool {
			return count("error_count = 1") >= bound && count("processing_started_at IS NOT NULL") == 0
		}, "the grace ended")
		var text string
		require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("error_count = 1").Limit(1).Pluck("last_error", &text).Error)
		require.Equal(t, "handler timed out after 30ms: handler ignores its cancelled context for 2s", text)
		stuck := ib.Health().Processor.Stuck["deaf"]
		require.GreaterOrEqual(t, stuck, bound, "the calls still run")
		require.LessOrEqual(t, len(started), most, "and nothing more was started")

		for range stuck {
			inboxtest.Receive(t, started, "a deaf call")
		}
		for range stuck {
			release <- struct{}{}
		}
		inboxtest.Receive(t, started, "a further call, now that those have returned")
	})
}

func TestReleasedAttemptIsReportedAsSuch(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		events := make(chan handler.AttemptEvent, 10)
		running := make(chan string, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Hooks = handler.Hooks{OnAttempt: func(_ context.Context,
				e handler.AttemptEvent) {
				events <- e
			}}
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
				running <- m.ID
				return untilCancelled(ctx, m)
			})))
		inboxtest.Accept(t, ib, "1")
		ended := make(chan error, 1)
		go func() { _, err := ib.ProcessPending(ctx); ended <- err }()
		inboxtest.Receive(t, running, "the handler")
		cancel()
		require.Error(t, inboxtest.Receive(t, ended, "ProcessPending"))
		e := inboxtest.Receive(t, events, "the event")
		require.Equal(t, handler.AttemptReleased, e.Outcome)
		require.True(t, errors.Is(e.Err, context.Canceled))
	})
}
