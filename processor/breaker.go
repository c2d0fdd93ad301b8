package processor

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/scheduler"
)

// breaker is one handler's circuit breaker in this process (contract 5.13).
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	// reported is called when an admitted call has reported its outcome.
	reported func()

	mu     sync.Mutex
	since  time.Time // when the circuit was last closed and opened
	until  time.Time // when an open circuit lets a probe through
	failed error     // the last failure, bounded
	out    int       // calls that are admitted and have not reported yet
}

// errNeutral reports to the circuit that an attempt says nothing about the handler.
var errNeutral = errors.New("neither a success nor a failure")

func newBreaker(settings handler.Breaker, reported func()) *breaker {
	b := &breaker{reported: reported}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     settings.OpenFor,
		ReadyToTrip: func(counts gobreaker.Counts) bool { return int(counts.ConsecutiveFailures) >= settings.Failures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNeutral) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.mu.Lock()
				defer b.mu.Unlock()
				if from == gobreaker.StateClosed {
					b.since = time.Now()
				}
				// The circuit leaves the open state a moment after its timeout.
				b.until = time.Now().Add(settings.OpenFor + time.Millisecond)
			}
		},
	})
	return b
}

// state returns the circuit's state. A nil breaker is always Closed.
func (b *breaker) state() scheduler.Circuit {
	if b == nil {
		return scheduler.Closed
	}
	switch state := b.circuit.State(); {
	case state == gobreaker.StateOpen:
		return scheduler.Open
	case state == gobreaker.StateHalfOpen && b.admitted() > 0:
		return scheduler.Tried
	case state == gobreaker.StateHalfOpen:
		return scheduler.HalfOpen
	default:
		return scheduler.Closed
	}
}

func (b *breaker) admitted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out
}

// opensUp returns when an open circuit lets a probe through.
func (b *breaker) opensUp() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// shut describes the circuit for Health if nothing may start now.
func (b *breaker) shut(handlerKey string) (open OpenCircuit, yes bool) {
	state := b.state()
	if !state.Shut() {
		return open, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	open = OpenCircuit{HandlerKey: handlerKey, Since: b.since.UTC(), Err: b.failed}
	if state == scheduler.Open {
		open.ProbeAt = b.until.UTC()
	}
	return open, true
}

// admit asks the circuit for each call of the group, and returns the tasks that it refuses. A batch is one call.
func (g *group) admit(b *breaker) (refused []*task) {
	if b == nil {
		return nil
	}
	if g.handler.BatchSize() > 1 {
		if g.report = b.allow(); g.report == nil {
			refused, g.tasks = g.tasks, nil
		}
		return refused
	}
	for i, a := range g.tasks {
		if a.report = b.allow(); a.report == nil {
			refused, g.tasks = g.tasks[i:], g.tasks[:i:i]
			break
		}
	}
	return refused
}

// allow admits one call and returns the function that reports its outcome. It returns nil if the
// circuit refuses the call.
func (b *breaker) allow() func(error) {
	report, err := b.circuit.Allow()
	if err != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out++
	return func(err error) {
		if err != nil && err != errNeutral {
			b.mu.Lock()
			b.failed = brief.Error(err) // before the circuit opens because of it
			b.mu.Unlock()
		}
		report(err)
		b.mu.Lock()
		b.out--
		b.mu.Unlock()
		b.reported()
	}
}

// note reports a group's results to the circuit: one report per message, or one for the whole call
// of a batch handler. Tasks that run again have no result, so they report nothing here.
func (g *group) note(results []result) {
	call := errNeutral
	for i := range results {
		r := &results[i]
		reported := r.verdictOnHandler()
		if r.report != nil {
			r.report(reported)
			r.report = nil
		}
		switch {
		case reported == nil:
			call = nil
		case call != nil && reported != errNeutral:
			call = reported
		}
	}
	if g.report != nil {
		g.report(call)
		g.report = nil
	}
}

// verdictOnHandler returns what a result says about the handler: nil for a success, the failure for
// a failure of the handler, and errNeutral if the cause lies in the message or elsewhere.
func (r *result) verdictOnHandler() error {
	if r.outcome == handler.AttemptCompleted && !r.Stale {
		return nil
	}
	switch {
	case r.outcome != handler.AttemptFailed && r.outcome != handler.AttemptPoisoned,
		errors.As(r.failure, new(*handler.DecodeError)), errors.As(r.failure, new(*handler.PoisonError)),
		errors.As(r.failure, new(*attempt.Unrecoverable)):
		return errNeutral
	default:
		return r.failure
	}
}
