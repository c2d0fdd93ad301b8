package handler

import (
	"fmt"
	"time"
)

// Breaker configures a circuit breaker.
type Breaker struct {
	// Failures is how many attempts must fail in a row to open it; at least 1.
	// One call of a batch handler is one attempt, failed if no message of it
	// was completed.
	Failures int
	// OpenFor is how long it stays open before one message is tried as a
	// probe; more than 0. It is measured in real time.
	OpenFor time.Duration
}

func (b *Breaker) problems() []error {
	var problems []error
	if b.Failures < 1 {
		problems = append(problems, fmt.Errorf("CircuitBreaker's Failures is %d, allowed is 1 or more", b.Failures))
	}
	if b.OpenFor <= 0 {
		problems = append(problems, fmt.Errorf("CircuitBreaker's OpenFor is %s, allowed is more than 0", b.OpenFor))
	}
	return problems
}

// CircuitBreaker stops a worker from trying this handler after b.Failures
// failed attempts in a row, for b.OpenFor; then it tries one message at a time
// until one succeeds. While it is open nothing is claimed and nothing is
// charged. Snoozed, interrupted and undecodable messages count neither way.
// Do not use it for failures that lie in the message: a few bad messages in a
// row would hold up the good ones. (Contract 5.13.)
func CircuitBreaker(b Breaker) Option { return func(s *settings) { s.breaker = &b } }

// CircuitBreaker is the handler's breaker; ok is false if it has none.
func (h *Handler) CircuitBreaker() (b Breaker, ok bool) {
	if h.breaker == nil {
		return Breaker{}, false
	}
	return *h.breaker, true
}
