package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// message returns a message with a type of its own.
func message(id, typ string) handler.RawMessage {
	m := inboxtest.Message(id)
	m.Type = typ
	return m
}

func TestBacklogDoesNotDelayRetriesOfAnotherHandler(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const backlog = 3000
		busy := func(ctx context.Context, _ inboxtest.Bytes) error {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
			return ctx.Err()
		}
		delays := map[string]time.Duration{"first": 300 * time.Millisecond, "second": 600 * time.Millisecond}
		again := make(chan string, len(delays))
		retrying := func(_ context.Context, m inboxtest.Bytes) error {
			if m.Attempt == 1 {
				return handler.RetryAfter(delays[m.ID], errBoom)
			}
			again <- m.ID
			return nil
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
		}),
			inbox.Channel("c", inbox.On("t", inboxtest.Do("busy", busy)), inbox.On("u", inboxtest.Do("retrying", retrying))))
		inboxtest.Accept(t, ib, many(backlog)...)
		_, err := ib.Accept(context.Background(), message("first", "u"), message("second", "u"))
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		for range delays {
			inboxtest.Receive(t, again, "a retry that is due")
		}
		var left int64
		require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where("handler_key = 'busy' AND completed_at IS NULL").Count(&left).Error)
		require.Positive(t, left, "the retries had to wait for the backlog's end")
	})
}

// A status may come due while the one before it is being claimed: too late for that claim, and too
// early for the question when the next one is due.
func TestNoDueTimeFallsBetweenClaims(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		began := time.Now().Add(500 * time.Millisecond)
		const messages = 30
		due := map[string]time.Time{}
		done := make(chan string, messages)
		retrying := func(_ context.Context, m inboxtest.Bytes) error {
			if m.Attempt == 1 {
				return handler.RetryAfter(time.Until(due[m.ID]), errBoom)
			}
			done <- m.ID
			return nil
		}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("retrying", retrying)))
		// Pairs of due times, each pair a little further apart than the one before.
		for i := range messages {
			due[fmt.Sprint(i)] = began.Add(time.Duration(i/2)*100*time.Millisecond + time.Duration(i%2*i)*50*time.Microsecond)
		}
		inboxtest.Start(t, ib)
		for id := range due {
			inboxtest.Accept(t, ib, id)
		}
		for range messages {
			inboxtest.Receive(t, done, "a retry that is due, without a poll")
		}
	})
}
