package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Backlog is the pending work of one handler, under all of its keys.
type Backlog struct {
	HandlerKey string
	// Due statuses can be claimed now. Waiting statuses wait for earlier rows of their lane
	// (contract 5.12). Processing statuses are claimed, by any worker. Poisoned statuses wait for
	// an operator. Each count stops at ten thousand per key; Due and Waiting of an ordered handler
	// stop at a thousand. Capped reports that a count stopped there.
	Due, Waiting, Processing, Poisoned int
	Capped                             bool
	// OldestDue is when the oldest of the due statuses became due; zero if none is due.
	OldestDue time.Time
	// Paused reports that operators have paused the handler. Broken reports that its circuit
	// breaker lets nothing start. Neither handler is claimed for.
	Paused, Broken bool
}

// Bounds of Backlog's counts under one key. The bound for ordered handlers is lower because each of
// their rows costs a lookup in its lane.
const (
	backlogMost        = 10_000
	backlogMostOrdered = 1_000
)

// Backlog reads the pending work of the registered handlers, in the order of their declaration, and
// the number of living workers. It costs about as much as a claim of as many rows as it counts, so
// call it every few seconds at most.
func (p *Processor) Backlog(ctx context.Context) ([]Backlog, int, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	var keys []store.KeyLimit
	for _, h := range p.registry.Handlers() {
		for _, key := range h.Keys() {
			limit := store.KeyLimit{HandlerKey: key, Limit: backlogMost, Lanes: p.policies[h].lanes}
			if limit.Lanes != nil {
				limit.Limit = backlogMostOrdered
			}
			keys = append(keys, limit)
		}
	}
	counted, err := p.store.Backlog(ctx, keys, p.clock.Now())
	if err != nil {
		return nil, 0, fmt.Errorf("sample: %w", err)
	}
	workers, err := p.store.Workers(ctx, p.clock.Now())
	if err != nil {
		return nil, 0, fmt.Errorf("sample: %w", err)
	}
	workers = slices.DeleteFunc(workers, func(w store.WorkerState) bool {
		return w.Stopped || w.Released || w.SilentFor > p.opts.WorkerTimeout
	})
	byKey := map[string]store.Backlog{}
	for _, b := range counted {
		byKey[b.HandlerKey] = b
	}
	var backlogs []Backlog
	for _, h := range p.registry.Handlers() {
		its := Backlog{HandlerKey: h.Key(), Paused: p.Paused(h), Broken: p.policies[h].breaker.state().Shut()}
		for _, key := range h.Keys() {
			its.add(byKey[key])
		}
		backlogs = append(backlogs, its)
	}
	return backlogs, len(workers), nil
}

func (b *Backlog) add(of store.Backlog) {
	b.Due, b.Waiting, b.Processing, b.Poisoned = b.Due+of.Due, b.Waiting+of.Waiting, b.Processing+of.Processing,
		b.Poisoned+of.Poisoned
	b.Capped = b.Capped || of.Capped
	if !of.OldestDue.IsZero() && (b.OldestDue.IsZero() || of.OldestDue.Before(b.OldestDue)) {
		b.OldestDue = of.OldestDue
	}
}
