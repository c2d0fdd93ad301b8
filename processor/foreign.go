package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// errForeign releases a claim, uncharged.
var errForeign = attempt.NewInterruption("another program declares the handler on the message's channel")

// yield says until when the claims of a handler key are left to other programs.
type yield struct {
	until time.Time
	delay time.Duration
}

// firstYield is the shortest pause after a claim that found only statuses of other programs.
const firstYield = time.Second

// leaveForeign releases statuses that another program must run (contract 4.4): it declares the
// handler in the namespace of the message's ID, and we declare it in another. If no program declares
// it there any more, the handler was moved, and we run its statuses.
//
// The workers' rows are read only for such messages, and after the claim: a program lists its
// handlers before it consumes for them. A released status stays due, so that a program that drains
// now and then finds it. Instead we do not claim the key for a while, unless the claim also found
// statuses of our own.
func (c *claimer) leaveForeign(ctx context.Context, attempts []*task, at time.Time) ([]*task, error) {
	if !slices.ContainsFunc(attempts, c.elsewhere) {
		return attempts, nil
	}
	workers, err := c.store.Workers(ctx, at)
	if err != nil {
		c.giveBack(attempts, fmt.Errorf("list workers: %w", err))
		return nil, fmt.Errorf("claim: list workers: %w", err)
	}
	kept := attempts[:0]
	left, own := map[string]bool{}, map[string]bool{}
	for _, a := range attempts {
		key := a.claim.HandlerKey
		if c.elsewhere(a) && slices.ContainsFunc(workers, func(w store.WorkerState) bool {
			namespace, lists := w.Namespaces[key]
			return lists && namespace == a.claim.Message.Namespace && c.opts.listsKeys(w)
		}) {
			left[key] = true
			a.Err = errForeign
			c.addResult(result{task: a, verdict: a.judge(c.now())})
			continue
		}
		own[key] = true
		kept = append(kept, a)
	}
	for key := range own {
		delete(c.yields, key)
	}
	for key := range left {
		if !own[key] {
			delay := min(max(2*c.yields[key].delay, firstYield), max(c.opts.PollingInterval, firstYield))
			c.yields[key] = yield{at.Add(delay), delay}
			c.wakeAt(at.Add(delay))
		}
	}
	return kept, nil
}

// elsewhere reports whether the message came on a channel of another namespace than that of the
// channel on which we declare the handler.
func (c *claimer) elsewhere(a *task) bool {
	return a.claim.Message != nil && a.claim.Message.Namespace != c.namespaces[a.claim.HandlerKey]
}

// compareNamespaces warns of handler keys that another program declares on a channel of another
// namespace, once of each.
func (f *fleet) compareNamespaces(workers []store.WorkerState) {
	for _, w := range workers {
		if !f.opts.listsKeys(w) {
			continue
		}
		for key, theirs := range w.Namespaces {
			ours, has := f.namespaces[key]
			if !has || ours == theirs || f.split[[2]string{key, theirs}] {
				continue
			}
			f.split[[2]string{key, theirs}] = true
			f.log.Warn("inbox: another program declares a handler key on another channel: each program runs the messages of its own channel, and claims those of the other in vain; "+
				"give one of the handlers another key, or deploy one version if the handler was moved",
				zap.String(telemetry.FieldHandlerKey, key), zap.String(telemetry.FieldWorker, w.ID),
				zap.String(telemetry.FieldHost, w.Host), zap.String(telemetry.FieldChannel, theirs))
		}
	}
}
