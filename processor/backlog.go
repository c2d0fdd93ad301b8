package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Backlog is what one handler has to do, under all of its keys.
type Backlog struct {
	HandlerKey string
	// Due can be claimed now; Waiting are behind others of their lane (contract
	// 5.12), Processing are claimed, by any worker, and Poisoned wait for an
	// operator. None is counted beyond ten thousand, or, if the handler is
	// ordered, Due and Waiting beyond a thousand: Capped says that there are
	// more.
	Due, Waiting, Processing, Poisoned int
	Capped                             bool
	// OldestDue is when the oldest of Due became due; zero if none is.
	OldestDue time.Time
	// Paused: operators have paused the handler. Broken: its circuit breaker is
	// open. Of both nothing is claimed.
	Paused, Broken bool
}

// How far Backlog counts under one key. Rows with lanes cost a look into their
// lane each.
const (
	backlogMost        = 10_000
	backlogMostOrdered = 1_000
)

// Backlog asks the database what there is to do for the registered handlers, in
// the order of their declaration, and how many workers live. It costs about as
// much as a claim of as many rows as it counts: ask every few seconds at most.
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
