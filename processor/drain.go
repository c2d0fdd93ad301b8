package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
)

// Drained counts what one ProcessPending did. A status that was claimed more than once counts each
// time. Picked is the sum of the other counts.
type Drained struct {
	// Picked is the number of claims, plus the stuck claims of earlier drains that were poisoned
	// without being run (contract 5.9).
	Picked int
	// Completed, Failed, Poisoned and Released are the outcomes. Failed does not include Poisoned.
	// Superseded statuses count as Completed, snoozed ones as Released.
	Completed, Failed, Poisoned, Released int
	// Unstored counts results that changed nothing: another worker had taken the status over
	// (contract 5.10) or, if an error was returned, the result could not be stored.
	Unstored int
}

// ProcessPending claims and runs the statuses that are due, and those that come due while it runs, until it finds only
// statuses that it has attempted already. Failures do not end it. A free slot is filled at once, however long the other
// calls take. It works with or without a started processor. It returns when everything it began has ended, except
// handlers that ignore their cancelled context.
//
// Its claims have no worker. If the process dies, they are released after StuckMessageThreshold, by the next
// ProcessPending or by any running worker (contract 5.14). For this reason it claims no more at a time than fills
// Concurrency slots, though at least one message per handler. An attempt without a shorter timeout gets nine tenths of
// that threshold; attempts that share a transaction share this time too.
//
// Statuses whose handler key is not registered here are left alone, with one warning for each key
// that no program lists (contract 5.7).
//
// In Exclusive mode it takes the inbox's lock while it runs. If this very processor is started and holds the lock,
// ProcessPending shares it. It waits for another holder for at most twice WorkerTimeout; then it runs nothing and the
// error wraps ErrLockHeld. If the lock is lost on the way, or the processor that shares it is stopped, running handlers
// are cancelled and released uncharged; the error then wraps ErrLockHeld too, and the counts so far are returned.
// Handlers must not call ProcessPending in Exclusive mode: it would wait for itself.
//
// When ctx ends, running handlers are cancelled and released uncharged, and ProcessPending returns
// the counts so far with ctx's error.
func (p *Processor) ProcessPending(ctx context.Context) (Drained, error) {
	var counts Drained
	h := newHeld()
	completer := newCompleter(p.shared)
	limits := scheduler.Limits{Concurrency: p.opts.Concurrency, BatchSize: p.opts.BatchSize}
	d := &drain{counts: &counts}
	// Its portions outlast the calls of each claim, which end before the claim counts as stuck.
	d.pool = p.newPool(d, limits, completer,
		p.newAllotments(uuid.NewString(), p.opts.StuckMessageThreshold+p.opts.HeartbeatInterval, nil))
	defer d.executor.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.closed = true }()
	completer.settled = func(ctx context.Context, r result, applied bool) {
		h.drop(r.claim)
		p.recordResult(ctx, r, applied)
		counts.count(r.outcome, applied)
		// A stored result can make others due, such as the next message of a lane, and their handler must not wait for
		// another's backlog. A status that is due again at once, any number of times, must not keep the drain going, so only
		// its first attempt and its end make all handlers claim again.
		if r.ended() || d.first(r.task) {
			d.refresh.Store(true)
		}
	}
	completer.drained = d.changed.Notify
	d.claimer = newClaimer(p.shared, h, func(r result) {
		d.countNew(r.task)
		completer.add(r)
	})
	var err error
	if d.permit, err = p.acquirePermit(ctx); err != nil {
		return counts, err
	}
	defer d.permit.leave()
	switch {
	case d.permit.joins:
		d.limits.useAll(false) // of these handlers the started processor runs what is due
	case d.permit.held != nil:
		d.limits.beginTerm()
	}
	defer d.leaveLimits(ctx)
	defer func() {
		if p.now.Load() == nil { // otherwise Stop waits
			p.notifier.wait(context.WithoutCancel(ctx))
		}
	}()
	if err := d.prepare(ctx); err != nil {
		return counts, err
	}
	attempts, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errStopping) })()
	defer context.AfterFunc(d.permit.term, func() { cancel(context.Cause(d.permit.term)) })()
	d.attempts = attempts
	for before := -1; err == nil && d.met > before; {
		before = d.met
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

// drain is one ProcessPending call: a pool whose claims have no worker, and which claims until it finds nothing new.
// Claims, and the decisions about them, run in the caller's goroutine.
type drain struct {
	pool
	claimer  *claimer
	counts   *Drained // the completer adds each result as it stores it
	permit   *permit
	attempts context.Context // the context of everything that runs

	// begun is when the drain began to claim, and met how many statuses it has claimed for the first time.
	// A snoozed or failed status can come due again during the drain, any number of times: a round that
	// claims no other status ends the drain.
	begun  time.Time
	met    int
	paused time.Time // when the paused handlers were read

	// refresh is set when a stored result may have made other statuses due.
	refresh atomic.Bool
}

// extend does nothing: a drain takes the messages of a lane one by one.
func (d *drain) extend(*group) {}

func (d *drain) late(g *group) bool { return time.Until(g.until()) <= 0 }

// ended leaves it to the drain what runs next. On SQLite it may have to claim while no handler writes.
func (d *drain) ended(*group, bool) *group {
	d.changed.Notify()
	return nil
}

// outlived does nothing. The drain waits for its groups, so that only a panic makes them outlive it. Then a status that
// must run again is recovered once its claim counts as stuck.
func (d *drain) outlived(*group) {}

// first reports whether the drain claims the status for the first time: it is new, or was due before. A status that has
// had an attempt since is due later. So the drain need not remember every status that it has run. One whose own time
// has come since (contract 4.8) has the version of a first claim. A status that is left to another program stays due,
// and never counts.
func (d *drain) first(t *task) bool {
	return !errors.Is(t.Err, errForeign) && (t.claim.Due.Equal(t.claim.CreatedAt) || !t.claim.Due.After(d.begun) ||
		t.claim.Version == firstClaim)
}

// firstClaim is the version of a status that was inserted and claimed, and not changed otherwise.
const firstClaim = 2

// countNew counts a status that is claimed for the first time, and reports whether it is.
func (d *drain) countNew(t *task) bool {
	first := d.first(t)
	if first {
		d.met++
	}
	return first
}

// prepare does what sweeps and heartbeats do for a running worker: it reads the database's clock,
// releases stuck claims, checks lanes, records the handler keys and reads the paused handlers.
func (d *drain) prepare(ctx context.Context) error {
	p := d.p
	if err := p.readClock(ctx); err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	sw := &sweeper{shared: p.shared, poisoned: func(ctx context.Context, r result) {
		d.counts.count(handler.AttemptPoisoned, true)
		p.reports.CallHooks(ctx, r.event())
	}}
	if err := errors.Join(sw.releaseStuck(ctx), p.lanes.check(ctx)); err != nil {
		return err
	}
	if err := p.notePrograms(ctx); err != nil {
		return err
	}
	d.begun = p.clock.Now()
	return d.readPauses(ctx)
}

// readPauses reads which handlers operators have paused, as often as a running worker does, and takes free portions of
// limits for all workers.
func (d *drain) readPauses(ctx context.Context) error {
	if time.Since(d.paused) < d.p.opts.HeartbeatInterval {
		return nil
	}
	if err := d.p.TakePaused(ctx); err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	if err := d.takeLimits(ctx); err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	d.paused = time.Now()
	return nil
}

// takeLimits renews the drain's portions of limits for all workers, and takes free ones.
func (d *drain) takeLimits(ctx context.Context) error {
	if !d.limits.leased() {
		return nil
	}
	if err := d.limits.renew(ctx); err != nil {
		return err
	}
	workers, err := d.p.workers(ctx)
	if err != nil {
		return err
	}
	return d.limits.takeFree(ctx, workers)
}

// leaveLimits releases a drain's portions, unless a call ignores its cancelled context.
func (d *drain) leaveLimits(ctx context.Context) {
	if slices.ContainsFunc(d.sched.Handlers(), func(h *scheduler.Handler[*task]) bool { return h.Calls() > 0 }) {
		return
	}
	last, done := context.WithTimeout(context.WithoutCancel(ctx), d.p.opts.StatementTimeout)
	defer done()
	d.unlocked(func() { d.limits.leave(last) })
}

// round claims and runs until no handler has more, and stores the results.
func (d *drain) round(ctx context.Context) error {
	// Each result is stored as it comes, not when the slowest handler ends.
	storing, endStoring := context.WithCancel(context.WithoutCancel(ctx))
	defer endStoring()
	stored := routine.Go(func() { d.completer.run(storing, context.WithoutCancel(ctx)) })
	d.sched.Refresh()
	var interrupted, failed error
	for {
		d.check()
		interrupted = d.interrupted(ctx)
		claims := false
		if interrupted == nil && failed == nil {
			if d.refresh.Swap(false) {
				d.sched.Refresh()
			}
			claims, failed = d.claim(ctx)
		}
		if interrupted != nil || failed != nil {
			d.releaseQueued()
		}
		d.start()
		if !claims {
			next := d.nextStart()
			if len(d.running) == 0 && (next.IsZero() || interrupted != nil || failed != nil) {
				break
			}
			d.await(next)
		}
	}
	d.check()
	d.releaseQueued() // a circuit breaker may still wait for the started worker's probe
	endStoring()
	var unstored error
	d.unlocked(func() { // an overdue call that returns now does not wait for the database
		<-stored
		if interrupted == nil {
			interrupted = d.permit.lost()
		}
		unstored = d.flush(ctx)
	})
	return errors.Join(failed, interrupted, unstored)
}

// await waits until a call has ended, a handler's rate lets one start or, while none runs, the drain is interrupted.
func (d *drain) await(next time.Time) {
	var starts <-chan time.Time
	if !next.IsZero() {
		starts = time.After(min(time.Until(next), d.p.opts.HeartbeatInterval)) // portions are to be renewed
	}
	interrupted := d.attempts.Done()
	if len(d.running) > 0 {
		interrupted = nil // the calls end
	}
	d.unlocked(func() {
		select {
		case <-d.changed:
		case <-starts:
		case <-interrupted:
		}
	})
}

// interrupted returns the error that ends the drain early, if its context or its lease has ended.
func (d *drain) interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("process pending: %w", err)
	}
	return d.permit.lost()
}

// claim claims messages for the free slots, and reports whether it did. It does not if it must
// wait for a running handler.
func (d *drain) claim(ctx context.Context) (bool, error) {
	switch {
	case d.completer.backlog() > 2*d.p.opts.BatchSize+d.p.opts.Concurrency:
		return false, nil // too many results wait to be stored
	case d.p.store.SingleWriter() && d.writes():
		return false, nil // the claim would wait for that handler's write lock
	}
	running := len(d.running) > 0
	claims, err := d.claimOnce(ctx)
	waits := d.p.awaits(err) || errors.Is(err, context.DeadlineExceeded)
	if waits && running && ctx.Err() == nil {
		// The running handlers held the only write lock, or all connections. Try again when one of
		// them has ended, or at once if all have.
		return len(d.running) == 0, nil
	}
	return claims, err
}

// claimOnce claims, and notes when the claims count as stuck. Each claim counts from its own time.
func (d *drain) claimOnce(ctx context.Context) (bool, error) {
	var err error
	if d.unlocked(func() { err = d.readPauses(ctx) }); err != nil {
		return false, err
	}
	d.applyPauses()
	d.applyBreakers()
	quotas := d.sched.Claim()
	if quotas == nil {
		return false, nil
	}
	until := time.Now().Add(d.p.opts.StuckMessageThreshold * 9 / 10)
	var tasks []*task
	var short map[*handler.Handler]bool
	// A claim that is cancelled may be committed all the same, and no worker would find the claimed statuses, so it may
	// finish within its timeout.
	claiming := context.WithoutCancel(ctx)
	d.unlocked(func() { tasks, short, err = d.claimer.claim(claiming, "", quotas, d.p.clock.Now()) })
	if err != nil {
		d.sched.EndClaim(scheduler.Claimed{Failed: true})
		return false, err
	}
	found, fresh := map[*handler.Handler]bool{}, map[*handler.Handler]bool{}
	for _, t := range tasks {
		t.until = until
		found[t.Handler] = true
		fresh[t.Handler] = d.countNew(t) || fresh[t.Handler]
	}
	var full []string
	for h, short := range short {
		// A full claim without messages has marked rows that wait for others of their lane.
		// There are fewer unmarked rows now, so claim again.
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

// writes reports whether a transactional handler runs.
func (d *drain) writes() bool {
	for g := range d.running {
		if g.handler.Kind() == handler.Transactional {
			return true
		}
	}
	return false
}

// until returns when the first claim of a drain's group counts as stuck.
func (g *group) until() time.Time {
	return slices.MinFunc(g.tasks, func(a, b *task) int { return a.until.Compare(b.until) }).until
}

// within limits a group to the time before its claims count as stuck. Calls that run one after the other share that
// time. If a slow call uses up the others' time, these run again alone.
//
// A transaction may wait for a connection, and a call's own time begins after that. So the claims' time ends a little
// later: a call that had its full time has failed, and one that had less because it waited is released, uncharged.
func (d *drain) within(g *group) (context.Context, context.CancelFunc, func(context.Context) error) {
	until := g.until()
	own := time.Until(until)
	if n := len(g.tasks); n > 1 && g.handler.BatchSize() == 1 {
		own /= time.Duration(n + 1)
	}
	for _, t := range g.tasks {
		if t.Timeout = t.policy.Timeout; t.Timeout == 0 || t.Timeout > own {
			t.Timeout = own // so that its end is a failure, not an interruption
		}
	}
	end := until.Add(d.p.opts.StuckMessageThreshold / 20)
	ctx, cancel := context.WithDeadlineCause(d.attempts, end, errLate)
	return ctx, cancel, func(ctx context.Context) error {
		switch {
		case !time.Now().Before(end), !time.Now().Round(0).Before(end.Round(0)): // as after a freeze or suspension
			return errFenced
		case d.permit.held != nil && !d.permit.held():
			return errLockLost
		}
		return claimsLost(ctx)
	}
}

// flush stores the remaining results, even after ctx has ended.
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
