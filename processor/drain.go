package processor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/scheduler"
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
// it has attempted already; failures do not end it. A free slot is filled at
// once, whatever the other calls take. It works with or without a started processor and returns when all it began has
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
// for, twice WorkerTimeout at most; then the error wraps ErrLockHeld and nothing
// was run. If the lock is lost on the way, or the processor that shares it is
// stopped, running handlers are cancelled and released uncharged, and the error
// wraps ErrLockHeld, too, with the counts so far. Handlers must not call it in
// Exclusive mode: it would wait for itself.
//
// It returns when ctx ends, too, with the counts so far and ctx's error;
// running handlers are cancelled by it and released uncharged.
func (p *Processor) ProcessPending(ctx context.Context) (Drained, error) {
	var counts Drained
	h := newHeld()
	completer := newCompleter(p.store, p.opts, p.clock.Now, p.storing, p.lanes, nil, nil)
	limits := scheduler.Limits{Concurrency: p.opts.Concurrency, BatchSize: p.opts.BatchSize}
	d := &drain{pool: p.newPool(limits, completer, newCrew()), counts: &counts, met: map[string]bool{}}
	defer d.crew.dismiss()
	d.within, d.late = d.withinClaim, func(g *group) bool { return time.Until(g.until()) <= 0 }
	d.missed = func(event) {} // only handlers' calls outlive a drain
	defer d.close()
	again := map[string]bool{} // statuses whose attempt was stored, and was not their end
	completer.settled = func(ctx context.Context, r result, applied bool) {
		h.drop(r.claim)
		p.settled(ctx, r, applied)
		counts.count(r.outcome, applied)
		if !r.ended() && again[r.claim.StatusID] {
			return
		}
		again[r.claim.StatusID] = !r.ended()
		d.news.Store(true)
	}
	completer.drained = d.reports.arrived.Notify
	d.claimer = p.newClaimer(h, func(r result) {
		d.meet(r.claim.StatusID)
		completer.add(r)
	})
	var err error
	if d.turn, err = p.takeTurn(ctx); err != nil {
		return counts, err
	}
	defer d.turn.leave()
	if err := d.prepare(ctx); err != nil {
		return counts, err
	}
	attempts, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errStopping) })()
	defer context.AfterFunc(d.turn.term, func() { cancel(context.Cause(d.turn.term)) })()
	d.attempts = attempts
	for d.fresh = true; d.fresh && err == nil; {
		d.fresh = false
		err = d.round(ctx)
	}
	return counts, err
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

// drain is one ProcessPending: a pool that claims for no worker, and looks for work until
// it meets nothing new. Everything but the attempts is in the caller's goroutine.
type drain struct {
	pool
	claimer  *claimer
	counts   *Drained // but for the results, which the completer counts as it stores them
	turn     *turn
	attempts context.Context // of everything that runs

	// met are the statuses claimed so far. A snooze or a retry can come due
	// while the drain goes on, and for ever again: a round of nothing else
	// ends it.
	met    map[string]bool
	fresh  bool      // the round under way has a status not met before
	paused time.Time // when what operators paused was read

	// news: a result was stored that may have made others due, see lookAgain.
	news atomic.Bool
}

// meet reports whether the status was not met before.
func (d *drain) meet(statusID string) bool {
	if d.met[statusID] {
		return false
	}
	d.met[statusID], d.fresh = true, true
	return true
}

// prepare does what sweeps and heartbeats do for a running worker: stuck
// claims, lanes, handler keys and paused handlers.
func (d *drain) prepare(ctx context.Context) error {
	p := d.p
	sw := newSweeper(p.store, p.opts, p.registry.Keys(), p.clock.Now, p.log, p.counters, p.lanes, func(time.Time) {},
		func(ctx context.Context, r result) {
			d.counts.count(handler.AttemptPoisoned, true)
			p.reports.CallHooks(ctx, r.event())
		})
	if err := errors.Join(sw.releaseStuck(ctx), p.lanes.check(ctx)); err != nil {
		return err
	}
	if err := p.notePrograms(ctx); err != nil {
		return err
	}
	return d.readPauses(ctx)
}

// readPauses reads what operators paused, as often as a running worker does.
func (d *drain) readPauses(ctx context.Context) error {
	if time.Since(d.paused) < d.p.opts.HeartbeatInterval {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, d.p.opts.StatementTimeout)
	defer cancel()
	paused, err := d.p.store.Paused(stmt)
	if err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	d.p.setPaused(paused)
	d.paused = time.Now()
	return nil
}

// round claims and runs until no handler has more, and stores the results.
func (d *drain) round(ctx context.Context) error {
	// Each result is stored as it comes, not when the slowest handler ends.
	storing, endStoring := context.WithCancel(context.WithoutCancel(ctx))
	defer endStoring()
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		d.completer.run(storing, context.WithoutCancel(ctx))
	}()
	d.sched.LookAnew()
	var interrupted, failed error
	for {
		interrupted = d.interrupted(ctx)
		claims := false
		if interrupted == nil && failed == nil {
			d.lookAgain()
			claims, failed = d.claim(ctx)
		}
		if interrupted != nil || failed != nil {
			d.releaseQueued()
		}
		d.start()
		if !claims {
			if len(d.running) == 0 {
				break
			}
			<-d.reports.arrived
		}
		for _, e := range d.reports.take() {
			d.handle(e)
		}
	}
	d.releaseQueued() // a circuit may be shut by somebody else's probe
	endStoring()
	<-stored
	if interrupted == nil {
		interrupted = d.turn.lost()
	}
	return errors.Join(failed, interrupted, d.flush(ctx))
}

// lookAgain makes all handlers ask once more when a status has ended, or was attempted for the
// first time: that may have made others due, as the next of a lane, whose handlers must not
// wait for somebody's backlog to end. Further attempts do not count, or a status that is due
// at once again and again would keep the drain going for ever.
func (d *drain) lookAgain() {
	if d.news.Swap(false) {
		d.sched.LookAnew()
	}
}

// interrupted returns why nothing more may be claimed.
func (d *drain) interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	return d.turn.lost()
}

// claim claims once, for free slots, unless it must wait for what runs, and reports whether it
// did.
func (d *drain) claim(ctx context.Context) (bool, error) {
	switch {
	case d.completer.backlog() > 2*d.p.opts.BatchSize+d.p.opts.Concurrency:
		return false, nil // the database is too slow for the results that wait
	case d.p.store.SingleWriter() && d.writes():
		return false, nil // the claim would wait for a handler's transaction to end
	}
	claims, err := d.claimOnce(ctx)
	waits := d.p.awaits(err) || errors.Is(err, context.DeadlineExceeded)
	if waits && len(d.running) > 0 && ctx.Err() == nil {
		// Handlers that run have the only write lock, or all connections: what ends next
		// makes room.
		return false, nil
	}
	return claims, err
}

// claimOnce gives each claim its own time: claims are judged by it.
func (d *drain) claimOnce(ctx context.Context) (bool, error) {
	if err := d.readPauses(ctx); err != nil {
		return false, err
	}
	d.applyPauses()
	d.applyBreakers()
	quotas := d.sched.Claim()
	if quotas == nil {
		return false, nil
	}
	until := time.Now().Add(d.p.opts.StuckMessageThreshold * 9 / 10)
	tasks, short, err := d.claimer.claim(ctx, "", d.p.messages(quotas), d.p.clock.Now())
	if err != nil {
		d.sched.EndClaim(scheduler.Claimed{Failed: true})
		return false, err // it may have given claims back
	}
	found, fresh := map[*handler.Handler]bool{}, map[*handler.Handler]bool{}
	for _, t := range tasks {
		t.until = until
		found[t.Handler] = true
		fresh[t.Handler] = d.meet(t.claim.StatusID) || fresh[t.Handler]
	}
	var full []string
	for h, short := range short {
		// Of a handler of which it met nothing there may be more: it met rows that wait
		// behind others, and there are fewer of them now.
		if !short && (fresh[h] || !found[h]) {
			full = append(full, h.Key())
		}
	}
	d.sched.EndClaim(scheduler.Claimed{Full: full})
	for i := range tasks {
		d.enqueue(tasks[i:i+1:i+1], false)
	}
	return true, nil
}

// writes: a transactional handler runs.
func (d *drain) writes() bool {
	for g := range d.running {
		if g.handler.Kind() == handler.Transactional {
			return true
		}
	}
	return false
}

// until is when the first of a drain's claims in the group may be taken for stuck.
func (g *group) until() time.Time {
	until := g.tasks[0].until
	for _, t := range g.tasks {
		if t.until.Before(until) {
			until = t.until
		}
	}
	return until
}

// withinClaim: a group must end before others may take its claims for stuck. Calls one after
// the other share the time, and what one of them costs the others by taking too long is
// left for them to run again alone.
func (d *drain) withinClaim(g *group) (context.Context, context.CancelFunc, func(context.Context) error) {
	until := g.until()
	left := time.Until(until)
	own := left
	if n := len(g.tasks); n > 1 && g.handler.BatchSize() == 1 {
		own = left / time.Duration(n+1)
	}
	for _, t := range g.tasks {
		if t.Timeout = t.policy.Timeout; t.Timeout == 0 || t.Timeout > own {
			t.Timeout = own // a failure, not an interruption
		}
	}
	ctx, end := context.WithTimeoutCause(d.attempts, left, attempt.ErrTimeout)
	return ctx, end, func(ctx context.Context) error {
		switch {
		case !time.Now().Before(until): // as after a freeze of the whole process
			return errFenced
		case d.turn.held != nil && !d.turn.held():
			return errLockLost
		}
		return barred(ctx)
	}
}

// flush stores what is left, also after ctx has ended.
func (d *drain) flush(ctx context.Context) error {
	last, done := context.WithTimeout(context.WithoutCancel(ctx), d.p.opts.StatementTimeout)
	defer done()
	if n := d.completer.flushLast(last); n > 0 {
		d.counts.Picked, d.counts.Unstored = d.counts.Picked+n, d.counts.Unstored+n
		_, reason := d.p.storing.Current()
		return errors.Join(fmt.Errorf("process pending: %d results could not be stored", n), reason)
	}
	return nil
}
