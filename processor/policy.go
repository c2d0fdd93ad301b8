package processor

import (
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// policy is how one handler's attempts run and are retried: by the handler's own options, or else
// by the inbox's.
type policy struct {
	attempt.Policy
	breaker *breaker // nil if it has none
	// groupSize is how many messages may share a call or a transaction.
	groupSize int
	// lanes is the rule for the handler's lanes; nil if it is not ordered.
	lanes *store.LaneRule
	// redactor redacts error texts. It is the inbox's.
	redactor redaction.Redactor
}

func newPolicy(
	h *handler.Handler, opts Options, inboxDelay func(errorCount int) time.Duration, wake func(handlerKeys ...string),
) *policy {
	p := &policy{
		Policy:    attempt.NewPolicy(h, opts.HandlerTimeout, opts.MaxRetries, opts.MaxRetryDelay, inboxDelay),
		groupSize: max(h.BatchSize(), h.TxGroup()),
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

// rules returns what the scheduler knows of the handler. The due messages of ordered handlers
// cannot be counted, because rows of a lane may wait for each other. Nor can those of handlers with
// legacy keys, because each key is claimed with a quota of its own.
func (p *policy) rules(h *handler.Handler) scheduler.Rules {
	r := scheduler.Rules{Key: h.Key(), Concurrency: h.Concurrency(), GroupSize: p.groupSize, Counted: p.lanes == nil &&
		len(h.LegacyKeys()) == 0}
	if p.breaker != nil {
		r.Circuit = p.breaker.state
	}
	return r
}
