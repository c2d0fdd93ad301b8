package synchronous

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// Ran is the result of one message of a record that ran again.
type Ran struct {
	MessageID string
	// Routed is how many handlers take the message. Handlers is how many of them ran, as opposed to those that had
	// processed it before.
	Routed, Handlers int
}

// PausedError says that a record does not run again because operators have paused one of its handlers.
type PausedError struct{ HandlerKey string }

func (e *PausedError) Error() string {
	return fmt.Sprintf("handler %q is paused: resume it first", e.HandlerKey)
}

// RunAgain runs the handlers of a rejected record's messages again, because an operator asks for it (contract 7.4). Of
// an Inline channel it leaves out the handlers that have processed their message before, also where a duplicate is an
// error. Each handler has one attempt. A handler that fails, or is not ready, gives up the message again. The result
// has an element for each message, in their order. The error is
//
//   - a *PausedError if a handler is paused: none has run,
//   - a *FailedError if all handlers have ended and some gave up,
//   - the first message's error if that message's ID is unusable,
//   - the error that kept a handler from running or ending, such as an outage: nothing is charged,
//   - envelope.ErrInterrupted if ctx ended or stopping was closed before all had ended.
//
// The running handler is cancelled when ctx ends, and is not waited for if it ignores that.
func (r *Runner) RunAgain(ctx context.Context, stopping <-chan struct{}, received envelope.Received) ([]Ran, error) {
	tasks, err := r.tasks(received)
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if r.cfg.Paused != nil && r.cfg.Paused(t.Handler) {
			return nil, &PausedError{HandlerKey: t.Handler.Key()}
		}
	}
	defer r.forget(tasks)
	at := partition{received.Record.Topic, received.Record.Partition}
	var open error
	for _, t := range tasks {
		t.again, t.Policy.MaxRetries = true, 1
		if err := r.try(ctx, stopping, at, t); err != nil {
			return nil, err
		}
		if !t.done && open == nil {
			open = fmt.Errorf("handler %q of message %q: %w", t.Handler.Key(), t.Delivery().ID, t.Err)
		}
	}
	if err := failures(tasks); err != nil {
		return nil, err
	}
	if open != nil {
		return nil, open
	}
	return ran(received.Messages, tasks), nil
}

// ran sums up the tasks, which are in the order of the messages.
func ran(messages []handler.RawMessage, tasks []*task) []Ran {
	all := make([]Ran, len(messages))
	for i, m := range messages {
		all[i].MessageID = m.ID
	}
	for _, t := range tasks {
		of := &all[t.message]
		of.MessageID = t.Delivery().ID // the handler's memory may know it where the record does not
		if of.Routed++; !t.known {
			of.Handlers++
		}
	}
	return all
}
