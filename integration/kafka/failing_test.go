package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// TestFailingHandlerIsShownWhileItFails proves contract 7.6, 11.5: the process is degraded and ready, and operators
// of every process see handler, partition, attempts, when the next one is due, and the redacted error.
func TestFailingHandlerIsShownWhileItFails(t *testing.T) {
	for name, inline := range map[string][]inbox.InlineOption{"direct": nil, "inline": inlined} {
		t.Run(name, func(t *testing.T) {
			onInline(t, 2, func(t *testing.T, r *directRig) {
				r.send(t, 1, "m1")
				ib, _ := r.run(t, settings{inline: inline, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
					o.Redact = redact.Common
					o.Backoff = func(count int) time.Duration {
						if count < 3 {
							return time.Millisecond
						}
						return time.Hour
					}
				})}}, r.handler("book-payment", func(context.Context, inboxtest.Bytes) error {
					return errors.New("bank said no, password=hunter2" + strings.Repeat(" x", 2000))
				}))
				const want, why = `failed 3 times with message "m1", next in `, ": bank said no"
				var found inbox.Health
				eventually(t, "the third failure", func() bool {
					found = ib.Health()
					return len(found.Reasons) == 1 && strings.Contains(found.Reasons[0].Detail, "3 times")
				})
				reason := found.Reasons[0]
				require.Equal(t, []any{"failing_handler", "book-payment", inbox.HealthDegraded, true},
					[]any{reason.Code, reason.HandlerKey, found.State, found.Ready()})
				requireShown := func(text string) {
					t.Helper()
					require.Contains(t, text, want)
					require.Contains(t, text, why)
					require.NotContains(t, text, "hunter2")
					require.Less(t, len(text), 600)
				}
				require.Contains(t, reason.Detail, topic+"/1: ")
				requireShown(reason.Detail)
				requireShown(found.Degraded().Error())

				elsewhere, err := ops.New(r.database.Another(t)) // of another process, with the tables alone
				require.NoError(t, err)
				var seen ops.Overview
				eventually(t, "a heartbeat", func() bool {
					seen, err = elsewhere.Overview(t.Context())
					require.NoError(t, err)
					return len(seen.Reasons) > 0 && strings.Contains(seen.Reasons[0].Detail, "3 times")
				})
				requireShown(seen.Reasons[0].Detail)
				require.Equal(t, "fails, its partition waits", seen.Handlers[0].Obstacle)
				// A heartbeat reads its consumers' state and its reasons one after the other.
				var consumers []ops.Consumer
				at := 0
				eventually(t, "a heartbeat that has read the third failure twice", func() bool {
					consumers, err = elsewhere.Consumers(t.Context())
					require.NoError(t, err)
					at = slices.IndexFunc(consumers[0].Partitions, func(p ops.ConsumedPartition) bool { return p.Partition == 1 })
					return strings.Contains(consumers[0].Partitions[at].Problem, "3 times")
				})
				require.Zero(t, at, "those with a problem come first")
				requireShown(consumers[0].Partitions[at].Problem)
				require.Contains(t, consumers[0].Partitions[at].Problem, "book-payment failed 3 times")
				require.False(t, consumers[0].Partitions[at].Since.IsZero())
			})
		})
	}
}

// TestGivenUpInlineMessagesCountForThePoisonRate proves contract 11.5.
func TestGivenUpInlineMessagesCountForThePoisonRate(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		for range 10 {
			r.send(t, 0, "bad")
		}
		ib, _ := r.run(t, settings{inline: inlined}, r.plain("h", func(context.Context, inboxtest.Bytes) error {
			return errBoom
		}))
		r.awaitCommitted(t)
		require.Len(t, r.rejected(t, ib), 10)
		h := ib.Health()
		require.Len(t, h.Reasons, 1, "nothing fails any more")
		require.Equal(t, "poison_rate", h.Reasons[0].Code)
		require.Contains(t, h.Reasons[0].Detail, "10 of 10")
	})
}
