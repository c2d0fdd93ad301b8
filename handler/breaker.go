package handler

import (
	"fmt"
	"time"
)

// Breaker configures a circuit breaker.
type Breaker struct {
	// Failures is how many attempts must fail in a row to open the breaker; at least 1. One call of a batch handler is
	// one attempt, which failed if none of its messages was completed.
	Failures int
	// OpenFor is how long the breaker stays open before one message is tried as a probe; more than
	// 0. It is measured in real time.
	OpenFor time.Duration
}

func (b *Breaker) problems() []error {
	var problems []error
	if b.Failures < 1 {
		problems = append(problems, fmt.Errorf("option CircuitBreaker.Failures = %d: must be 1 or more", b.Failures))
	}
	if b.OpenFor <= 0 {
		problems = append(problems, fmt.Errorf("option CircuitBreaker.OpenFor = %s: must be more than 0", b.OpenFor))
	}
	return problems
}

// CircuitBreaker stops a worker from trying this handler after b.Failures failed attempts in a row, for b.OpenFor; then
// it tries one message at a time until one succeeds. While the breaker is open nothing is claimed and nothing is
// charged. Snoozed, interrupted and undecodable messages do not count. Do not use it for failures that lie in the
// message: a few bad messages in a row would delay the good ones. (Contract 5.13.)
func CircuitBreaker(b Breaker) Option { return func(s *settings) { s.breaker = &b } }

// CircuitBreaker returns the handler's breaker; ok is false if it has none.
func (h *Handler) CircuitBreaker() (b Breaker, ok bool) {
	if h.breaker == nil {
		return Breaker{}, false
	}
	return *h.breaker, true
}
