package processor

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
)

// breaker is one handler's circuit breaker in this process (contract 5.13).
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu    sync.Mutex
	until time.Time // when an open circuit lets a probe through
}

// errNeutral tells the circuit that an attempt says nothing about the handler.
var errNeutral = errors.New("neither a success nor a failure")

func newBreaker(settings handler.Breaker) *breaker {
	b := &breaker{}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     settings.OpenFor,
		ReadyToTrip: func(counts gobreaker.Counts) bool { return int(counts.ConsecutiveFailures) >= settings.Failures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNeutral) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.mu.Lock()
				defer b.mu.Unlock()
				// The circuit ends being open a moment after its timeout.
				b.until = time.Now().Add(settings.OpenFor + time.Millisecond)
			}
		},
	})
	return b
}

// open: nothing may run.
func (b *breaker) open() bool { return b != nil && b.circuit.State() == gobreaker.StateOpen }

// probing: one attempt at a time.
func (b *breaker) probing() bool { return b != nil && b.circuit.State() == gobreaker.StateHalfOpen }

// opensUp is when an open circuit lets a probe through.
func (b *breaker) opensUp() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// admit lets the attempt run, or not.
func (b *breaker) admit(a *attempt) bool {
	if b == nil {
		return true
	}
	report, err := b.circuit.Allow()
	if err != nil {
		return false
	}
	a.report = report
	return true
}

// note tells the circuit what became of an admitted attempt.
func (r result) note() {
	if r.report == nil {
		return
	}
	var (
		undecodable *handler.DecodeError
		poison      *handler.PoisonError
		beyond      *unrecoverable
	)
	switch {
	case r.outcome == completed && !r.fenced:
		r.report(nil)
	case r.outcome != failed && r.outcome != poisoned,
		errors.As(r.failure, &undecodable), errors.As(r.failure, &poison), errors.As(r.failure, &beyond):
		r.report(errNeutral) // the message's fault, or nobody's
	default:
		r.report(r.failure)
	}
}

// applyBreakers gives back what waits for a handler whose circuit has opened:
// another worker's may be closed. When it lets a probe through there may be
// work again.
func (l *loop) applyBreakers() {
	for _, s := range l.board.shares {
		open := s.policy.breaker.open()
		if open {
			l.giveBack(s.queue)
			s.queue = nil
		}
		if s.broken && !open {
			s.more = true
		}
		if open && !s.broken {
			l.p.log.Error("inbox: circuit breaker opened, the handler is left alone for a while", zap.String("handler_key", s.handler.Key()),
				zap.Time("until", s.policy.breaker.opensUp()))
		}
		s.broken = open
	}
}
