package synchronous_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
)

// TestFailingHandlersAreKnownUntilTheySucceedOrGiveUp proves contract 7.6.
func TestFailingHandlersAreKnownUntilTheySucceedOrGiveUp(t *testing.T) {
	for name, ends := range map[string]error{"succeeds": nil, "gives up": errBoom, "is not ready": handler.Snooze(0)} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				var r *synchronous.Runner
				var seen [][]health.FailingHandler
				h := handler.New("h", func(_ context.Context, m inboxtest.Bytes) error {
					seen = append(seen, r.Failing())
					if m.Attempt < 3 {
						return errBoom
					}
					if len(seen) > 3 {
						return nil // after the snooze
					}
					return ends
				})
				r, _ = newRunner(t, d.DB, nil, h)
				err := deliver(t, r, 7, "m1")
				require.Equal(t, name == "gives up", err != nil)
				require.Empty(t, r.Failing())
				require.Empty(t, seen[0])
				for i := 1; i <= 2; i++ {
					require.Len(t, seen[i], 1)
					f := seen[i][0]
					require.Equal(t, []any{"topic", 7, "h", "m1", i, errBoom},
						[]any{f.Topic, f.Partition, f.HandlerKey, f.MessageID, f.Failures, f.Err})
					require.Equal(t, seen[1][0].Since, f.Since)
				}
				if len(seen) > 3 {
					require.Empty(t, seen[3], "a snooze is no failure")
				}
			})
		})
	}
}

func TestFailingHandlersAreForgottenWithTheirPartition(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		failed := make(chan struct{}, 1)
		h := handler.New("h", func(context.Context, inboxtest.Bytes) error {
			failed <- struct{}{}
			return errors.New(strings.Repeat("x", 1<<20))
		})
		r, _ := newRunner(t, d.DB, func(c *synchronous.Config) {
			c.Backoff = func(int) time.Duration { return time.Hour }
		}, h)
		stopping, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- r.Deliver(context.Background(), stopping, received(0, "m1")) }()
		inboxtest.Receive(t, failed, "the attempt")
		inboxtest.Eventually(t, func() bool { return len(r.Failing()) == 1 }, "its failure")
		require.Less(t, len(r.Failing()[0].Err.Error()), 64<<10, "it is kept while the partition waits (contract 3.6)")
		close(stopping)
		require.Error(t, inboxtest.Receive(t, ended, "the end"))
		require.Empty(t, r.Failing())
	})
}

func TestFailureIsDescribedInOneLine(t *testing.T) {
	now := inboxtest.Noon
	f := health.FailingHandler{MessageID: "m1", Failures: 1, Next: now.Add(7 * time.Second), Err: errBoom}
	require.Equal(t, `failed once with message "m1", next in 7s: boom`, f.Text(now))
	f.Failures = 3
	require.Equal(t, `failed 3 times with message "m1", running again: boom`, f.Text(now.Add(time.Minute)))
}
