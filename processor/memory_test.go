package processor_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

const megabyte = 1 << 20

// A backlog begins with so many small messages that run fast, and ends with so many of a megabyte.
const smallOnes, largeOnes = 200, 50

func backlogMessage(id string, size int) handler.RawMessage {
	m := inboxtest.Message(id)
	m.OrderingKey, m.Content = []byte(id), bytes.Repeat([]byte("x"), size)
	return m
}

func acceptEach(t *testing.T, ib *inbox.Inbox, prefix string, n, size int) {
	t.Helper()
	var messages []handler.RawMessage
	for i := range n {
		messages = append(messages, backlogMessage(fmt.Sprint(prefix, i), size))
	}
	_, err := ib.Accept(context.Background(), messages...)
	require.NoError(t, err)
}

// claimedMegabytes returns the size of the contents of all claims.
func claimedMegabytes(t *testing.T, ib *inbox.Inbox) int {
	t.Helper()
	bytes := 0
	require.NoError(t, ib.DB().Raw(`SELECT COALESCE(SUM(LENGTH(m.content)), 0) FROM inbox_handler_statuses s
		JOIN inbox_messages m ON m.number = s.message_number
		WHERE s.processing_started_at IS NOT NULL AND s.completed_at IS NULL`).Scan(&bytes).Error)
	return bytes / megabyte
}

// blocking returns two handlers whose calls with large messages last until release is closed.
func blocking(release <-chan struct{}, opts ...handler.Option) []*inbox.HandlerSpec {
	wait := func(ctx context.Context, m inboxtest.Bytes) error {
		if len(m.Payload) == megabyte {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	return []*inbox.HandlerSpec{inboxtest.Do("a", wait, opts...), inboxtest.Do("b", wait, opts...)}
}

// Contract 5.2: the bound is over all handlers of the worker, whatever kind they are.
func TestClaimsOfAMixedBacklogTakeBoundedMemory(t *testing.T) {
	for name, specs := range map[string]func(release <-chan struct{}) []*inbox.HandlerSpec{
		"plain":   func(release <-chan struct{}) []*inbox.HandlerSpec { return blocking(release) },
		"ordered": func(release <-chan struct{}) []*inbox.HandlerSpec { return blocking(release, handler.Ordered()) },
		"batches": func(release <-chan struct{}) []*inbox.HandlerSpec {
			batch := func(ctx context.Context, ms []inboxtest.Bytes) error {
				if len(ms[len(ms)-1].Payload) == megabyte {
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return ctx.Err()
			}
			return []*inbox.HandlerSpec{inbox.Batch("a", 40, batch),
				inbox.Batch("b", 40, batch)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				release := make(chan struct{})
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
					o.Processor.Concurrency = 4
				}), exclusiveMode(), inboxtest.Handlers(specs(release)...)) // where nothing is released for other workers
				acceptEach(t, ib, "s", smallOnes, 1)
				acceptEach(t, ib, "l", largeOnes, megabyte)
				inboxtest.Start(t, ib)
				inboxtest.Eventually(t, func() bool { return claimedMegabytes(t, ib) > 10 }, "large ones are claimed")
				pause(t, 500*time.Millisecond) // there is no signal for what must not happen
				require.LessOrEqual(t, claimedMegabytes(t, ib), 32+4)
				close(release)
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are completed")
			})
		})
	}
}

// Contract 5.17.
func TestLocallyDispatchedMessagesTakeBoundedMemory(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		release := make(chan struct{})
		ib := startDispatching(t, d.DB, exclusiveMode(), inboxtest.Handlers(blocking(release)...))
		acceptEach(t, ib, "s", smallOnes, 1)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "the small ones are completed")
		before := ib.Counters().Dispatched
		for i := range 2 * largeOnes / 10 {
			acceptEach(t, ib, fmt.Sprint("l", i, "-"), 5, megabyte)
		}
		require.Greater(t, ib.Counters().Dispatched, before)
		pause(t, 500*time.Millisecond)
		require.LessOrEqual(t, claimedMegabytes(t, ib), 32+12, "one for each slot may be more")
		close(release)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are completed")
	})
}

// Contract 5.14: a drain claims for free slots alone, which many messages can share.
func TestDrainOfAMixedBacklogTakesBoundedMemory(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		most := 0
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 1 }),
			inboxtest.Handlers(inbox.Batch("a", 200, func(_ context.Context, ms []inboxtest.Bytes) error {
				total := 0
				for _, m := range ms {
					total += len(m.Payload)
				}
				most = max(most, total/megabyte)
				return nil
			})))
		acceptEach(t, ib, "s", smallOnes, 1)
		acceptEach(t, ib, "l", largeOnes, megabyte)
		require.Equal(t, processor.Drained{Picked: smallOnes + largeOnes, Completed: smallOnes + largeOnes},
			inboxtest.Process(t, ib))
		require.LessOrEqual(t, most, 32)
	})
}
