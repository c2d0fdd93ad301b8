package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Drained counts what one ProcessPending did. A status that was picked more
// than once counts each time. Picked is the sum of the other counts.
type Drained struct {
	// Picked is the number of claims, and of the stuck claims of earlier drains
	// that were poisoned without being run (contract 5.9).
	Picked int
	// Completed, Failed, Poisoned and Released are what became of them;
	// Failed does not include Poisoned. Superseded statuses count as Completed,
	// snoozed ones as Released.
	Completed, Failed, Poisoned, Released int
	// Unstored had a result that changed nothing: somebody else had taken the
	// status over (contract 5.10), or, with an error, it could not be stored.
	Unstored int
}

// ProcessPending claims and runs everything that is due at the moment of the
// call, and what comes due meanwhile, until it meets nothing but statuses that
// it has attempted already; a batch in which all failed does not end it. It
// works with or without a started processor and returns when all it began has
// ended, but for handlers that ignore their cancelled context.
//
// Its claims have no worker: should the process die, they are released after
// StuckMessageThreshold, by the next ProcessPending or by any running worker
// (contract 5.14). Therefore it claims no more than fills Concurrency slots at a
// time, though at least one message of each handler, and an attempt without a
// shorter limit has nine tenths of that threshold; those that share a
// transaction share that, too.
//
// Statuses of handler keys that are not registered here are left alone, with
// one warning for each key that no program lists (contract 5.7).
//
// In Exclusive mode it takes the inbox's lock for as long as it runs, or shares
// it if this very processor is started and holds it. Another holder is waited
// for, LockAcquireTimeout at most; then the error wraps ErrLockHeld and nothing
// was run. If the lock is lost on the way, or the processor that shares it is
// stopped, running handlers are cancelled and released uncharged, and the error
// wraps ErrLockHeld, too, with the counts so far. Handlers must not call it in
// Exclusive mode: it would wait for itself.
//
// It returns when ctx ends, too, with the counts so far and ctx's error;
// running handlers are cancelled by it and released uncharged.
func (p *Processor) ProcessPending(ctx context.Context) (Drained, error) {
	var d Drained
	h := newHeld()
	m := &manual{p: p, drained: &d, met: map[string]bool{}, idle: map[*handler.Handler]bool{}, stuck: map[*handler.Handler]int{}}
	m.completer = newCompleter(p.store, p.opts, p.clock.Now, p.storing, p.lanes, func(ctx context.Context, r result, applied bool) {
		h.drop(r.claim)
		p.settled(ctx, r, applied)
		d.count(r.outcome, applied)
	}, func() {})
	m.claimer = p.newClaimer(h, func(r result) {
		m.meet(r.claim.StatusID)
		m.completer.add(r)
	})
	var err error
	if m.turn, err = p.takeTurn(ctx); err != nil {
		return d, err
	}
	defer m.turn.leave()
	if err := m.prepare(ctx); err != nil {
		return d, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return d, fmt.Errorf("process pending: %w", err)
		}
		if err := m.turn.lost(); err != nil {
			return d, err
		}
		m.fresh = false
		err := m.batch(ctx)
		if err = errors.Join(err, m.turn.lost()); err != nil || !m.fresh {
			return d, err
		}
	}
}

func (d *Drained) count(outcome handler.AttemptOutcome, applied bool) {
	d.Picked++
	switch {
	case !applied:
		d.Unstored++
	case outcome == handler.AttemptCompleted, outcome == superseded:
		d.Completed++
	case outcome == handler.AttemptFailed:
		d.Failed++
	case outcome == handler.AttemptPoisoned:
		d.Poisoned++
	default:
		d.Released++
	}
}

// manual is one ProcessPending.
type manual struct {
	p         *Processor
	completer *completer
	claimer   *claimer
	drained   *Drained
	turn      *turn

	// met are the statuses claimed so far. A snooze or a retry can come due
	// while the drain goes on, and for ever again: a batch of nothing else
	// ends it.
	met   map[string]bool
	fresh bool // the batch under way has a status not met before

	// idle are handlers of which the last claim found less than it asked for.
	idle   map[*handler.Handler]bool
	paused time.Time // when what operators paused was read

	mu    sync.Mutex
	stuck map[*handler.Handler]int // calls that do not return
}

func (m *manual) meet(statusID string) {
	m.fresh = m.fresh || !m.met[statusID]
	m.met[statusID] = true
}

// prepare does what sweeps and heartbeats do for a running worker: stuck
// claims, lanes, handler keys and paused handlers.
func (m *manual) prepare(ctx context.Context) error {
	p := m.p
	sw := newSweeper(p.store, p.opts, p.registry.Keys(), p.clock.Now, p.log, p.counters, p.lanes, func(time.Time) {}, func(ctx context.Context, r result) {
		m.drained.count(handler.AttemptPoisoned, true)
		p.reports.CallHooks(ctx, r.event())
	})
	if err := errors.Join(sw.releaseStuck(ctx), p.lanes.check(ctx)); err != nil {
		return err
	}
	if err := p.notePrograms(ctx); err != nil {
		return err
	}
	return m.readPauses(ctx)
}

// readPauses reads what operators paused, as often as a running worker does.
func (m *manual) readPauses(ctx context.Context) error {
	if time.Since(m.paused) < m.p.opts.HeartbeatInterval {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, m.p.opts.StatementTimeout)
	defer cancel()
	paused, err := m.p.store.Paused(stmt)
	if err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	m.p.setPaused(paused)
	m.paused = time.Now()
	return nil
}

// batch claims once, runs what it got on Concurrency goroutines, and stores
// the results. The time of each claim is its own: claims are judged by it.
func (m *manual) batch(ctx context.Context) error {
	p := m.p
	if err := m.readPauses(ctx); err != nil {
		return err
	}
	limits := m.limits()
	if len(limits) == 0 {
		return nil
	}
	attempts, short, err := m.claimer.claim(ctx, "", limits, p.clock.Now())
	if err != nil {
		return errors.Join(err, m.flush(ctx)) // it may have given claims back
	}
	maps.Copy(m.idle, short)
	if len(attempts) == 0 {
		// It may have met nothing but rows that wait behind others: there are
		// fewer of them now.
		m.fresh = m.fresh || slices.Contains(slices.Collect(maps.Values(short)), false)
	}
	for _, a := range attempts {
		m.meet(a.claim.StatusID)
	}
	claimedAt := time.Now()
	// Each result is stored as it comes, not when the slowest handler ends.
	storeCtx, endStoring := context.WithCancel(context.WithoutCancel(ctx))
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		m.completer.run(storeCtx, context.WithoutCancel(ctx))
	}()
	m.runAll(ctx, m.groups(attempts), claimedAt)
	endStoring()
	<-stored
	return m.flush(ctx)
}

// limits spreads Concurrency over the handlers that have work, as far as the
// last claim tells; the others are asked for one slot's worth.
func (m *manual) limits() map[*handler.Handler]int {
	p := m.p
	var handlers []*handler.Handler
	busy := 0
	for _, h := range p.registry.Handlers() {
		if !p.Paused(h) && !p.policies[h].breaker.state().Shut() {
			handlers = append(handlers, h)
			if !m.idle[h] {
				busy++
			}
		}
	}
	limits := make(map[*handler.Handler]int, len(handlers))
	for _, h := range handlers {
		slots := 1
		if !m.idle[h] {
			slots = max(1, min(p.opts.BatchSize, p.opts.Concurrency)/busy)
		}
		if own := h.Concurrency(); own > 0 {
			slots = min(slots, own)
		}
		limits[h] = slots * p.policies[h].groupSize
		if p.policies[h].breaker.state().Probing() {
			limits[h] = 1
		}
	}
	return limits
}

// flush stores what is left, also after ctx has ended.
func (m *manual) flush(ctx context.Context) error {
	last, done := context.WithTimeout(context.WithoutCancel(ctx), m.p.opts.StatementTimeout)
	defer done()
	if n := m.completer.flushLast(last); n > 0 {
		m.drained.Picked, m.drained.Unstored = m.drained.Picked+n, m.drained.Unstored+n
		_, reason := m.p.storing.Current()
		return errors.Join(fmt.Errorf("process pending: %d results could not be stored", n), reason)
	}
	return nil
}
