package processor

import (
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// policy is how one handler's attempts are run and tried again: its own
// options, else the inbox's (contract 5.13).
type policy struct {
	timeout    time.Duration // 0: none
	maxRetries int
	delay      func(errorCount int) time.Duration
	breaker    *breaker // nil: none
	// share is how many messages may share a call or a transaction.
	share int
	// lanes says how its lanes run; nil if it is not ordered.
	lanes *store.LaneRule
}

func newPolicy(h *handler.Handler, opts Options, inboxDelay func(errorCount int) time.Duration, wake func(handlerKeys ...string)) *policy {
	usual := func(errorCount int) time.Duration { return backoff(errorCount, opts.MaxRetryDelay) }
	p := &policy{timeout: opts.HandlerTimeout, maxRetries: opts.MaxRetries, delay: usual, share: max(h.BatchSize(), h.TxGroup())}
	if h.Timeout() > 0 {
		p.timeout = h.Timeout()
	}
	if n, own := h.MaxRetries(); own {
		p.maxRetries = n
	}
	if inboxDelay != nil {
		p.delay = guarded(inboxDelay, usual)
	}
	if own := h.Backoff(); own != nil {
		p.delay = guarded(own, p.delay)
	}
	if settings, own := h.CircuitBreaker(); own {
		p.breaker = newBreaker(settings, func() { wake(h.Key()) })
	}
	if h.Ordered() {
		p.lanes = &store.LaneRule{SkipPoisoned: h.SkipsPoisoned()}
		for _, key := range h.Keys() {
			p.lanes.Handlers = append(p.lanes.Handlers, store.LaneHandler(key))
		}
	}
	return p
}

// guarded keeps an application's backoff from ending the process: a panic
// falls back to the one it replaces.
func guarded(own, fallback func(int) time.Duration) func(int) time.Duration {
	return func(errorCount int) (delay time.Duration) {
		if err := protect(func() { delay = max(own(errorCount), 0) }); err != nil {
			return fallback(errorCount)
		}
		return delay
	}
}
