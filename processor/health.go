package processor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/store"
)

// health holds the conditions of a processor and its stuck calls.
type health struct {
	conditions []*condition.Condition

	mu      sync.Mutex
	ignored map[string]int
}

func (h *health) stuck(handlers map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ignored = handlers
}

// Health is the state of a processor at one moment.
type Health struct {
	// Running is true between Start and Stop.
	Running bool
	// Mode is Exclusive or Competing. HoldsLock is true if the processor is started in Exclusive mode and holds the
	// lock. A processor that stands by is as healthy (contract 5.3).
	Mode      Mode
	HoldsLock bool
	// WorkerID is the started processor's worker ID at this moment. It changes when other workers have taken this one
	// for dead.
	WorkerID string
	// Busy is how many attempts are running. ProgressAt is when an attempt last completed, failed, was poisoned or
	// snoozed; zero if none has. Both count this processor's attempts, whether it is started or runs ProcessPending.
	Busy       int
	ProgressAt time.Time
	// Queued is how many claimed statuses of the started processor are not running: they wait for a slot, or for their
	// result to be stored.
	Queued int
	// Conditions are the lasting errors, by the name of the failing operation.
	Conditions map[string]error
	// Stuck is the number of calls that ignore their cancelled context, by handler key.
	Stuck map[string]int
	// OpenCircuits are the circuit breakers that are open or have a probe running.
	OpenCircuits []OpenCircuit
	// ClockSkew is how far this worker's clock is ahead of the database's, if the difference is more than a minute;
	// negative if it is behind. It is always 0 on SQLite.
	ClockSkew time.Duration
	// UnknownKeys are the handler keys of pending statuses that no program has listed for UnknownKeyGrace, sorted. The
	// statuses wait.
	UnknownKeys []string
	// BarredRoles are the PostgreSQL roles of other workers whose sessions this worker's role, DatabaseRole, can
	// neither see nor end.
	BarredRoles  []string
	DatabaseRole string
}

// OpenCircuit is a handler's circuit breaker that lets nothing start now.
type OpenCircuit struct {
	HandlerKey string
	// Since is when it opened first: failed probes do not change it. ProbeAt is when it lets the next probe through, zero
	// while one is running. Both are by this machine's clock.
	Since, ProbeAt time.Time
	// Err is the last failure of the handler. It may quote data.
	Err error
}

// Health returns the processor's present state (contract 5.15).
func (p *Processor) Health() Health {
	now := p.now.Load()
	h := Health{Running: now != nil, Mode: p.opts.Mode, HoldsLock: now.holdsLock(),
		Conditions: map[string]error{}, Stuck: map[string]int{}}
	if now != nil {
		p.fleet.report(&h)
		h.WorkerID = now.session.Load().id
	}
	h.Busy = int(p.runner.busy.Load())
	if now != nil {
		h.Queued = max(now.claimer.held.count()-h.Busy, 0)
	}
	if at := p.progress.Load(); at != 0 {
		h.ProgressAt = time.Unix(0, at).UTC()
	}
	p.runner.interruptions.check()
	for _, c := range p.health.conditions {
		if _, err := c.Current(); err != nil {
			h.Conditions[c.Name()] = err
		}
	}
	for registered := range p.registry.Handlers() {
		if open, yes := p.policies[registered].breaker.shut(registered.Key()); yes {
			h.OpenCircuits = append(h.OpenCircuits, open)
		}
	}
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	maps.Copy(h.Stuck, p.health.ignored)
	return h
}

// Backlog is the pending work of one handler, under all of its keys.
type Backlog struct {
	HandlerKey string
	// Due statuses can be claimed now. Waiting statuses wait for earlier rows of their lane (contract 5.12). Processing
	// statuses are claimed, by any worker. Poisoned statuses wait for an operator. Each count stops at ten thousand per
	// key; Due and Waiting of an ordered handler stop at a thousand. Capped reports that a count stopped there.
	Due, Waiting, Processing, Poisoned int
	Capped                             bool
	// OldestDue is when the oldest of the due statuses became due; zero if none is due.
	OldestDue time.Time
	// Paused reports that operators have paused the handler. Broken reports that its circuit breaker, or a limit for all
	// workers (contract 5.18), lets nothing start here. Neither handler is claimed for.
	Paused, Broken bool
}

// Bounds of Backlog's counts under one key. The bound for ordered handlers is lower because each of their rows costs a
// lookup in its lane.
const (
	maxBacklog        = 10_000
	maxBacklogOrdered = 1_000
)

// Backlog reads the pending work of the registered handlers, in the order of their declaration, and the number of
// living workers. It costs about as much as a claim of as many rows as it counts, so call it every few seconds at most.
func (p *Processor) Backlog(ctx context.Context) ([]Backlog, int, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	var keys []store.KeyLimit
	for h := range p.registry.Handlers() {
		for _, key := range h.Keys() {
			limit := store.KeyLimit{HandlerKey: key, Limit: maxBacklog, Lanes: p.policies[h].lanes}
			if limit.Lanes != nil {
				limit.Limit = maxBacklogOrdered
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
	for h := range p.registry.Handlers() {
		its := Backlog{HandlerKey: h.Key(), Paused: p.Paused(h), Broken: p.policies[h].breaker.state().Shut()}
		if a := p.now.Load(); a != nil && a.session.Load().limits.limits[h].holdsBack() {
			its.Broken = true
		}
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
	b.OldestDue = earlier(b.OldestDue, of.OldestDue)
}
