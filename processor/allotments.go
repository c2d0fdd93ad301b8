package processor

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// allotments are what one worker, or one ProcessPending, may use of the limits for all workers (contract 5.18).
//
// A handler's limits are divided into portions, and each portion is a lease: the database gives it to one owner at a
// time. So the limits hold however differently the workers see each other, and whatever statement is lost. Who takes
// how many follows from the living workers that an owner sees, which decides nothing but fairness:
//
//   - An owner that holds more than its part uses the rest for no further call at once. It releases a portion when the
//     calls that run fit into the others.
//   - An owner that holds less takes portions that are free: released, or of an owner that has not renewed them. If
//     that owner is a worker, it must be dead as well. So a jump of the database's clock frees no portion.
//   - A worker renews them for WorkerTimeout with each heartbeat, which does not count if that fails. So they outlast
//     the moment at which its session ends and its calls are cancelled.
//
// In Exclusive mode the lock already keeps others away, and there are no leases. Rates begin anew with each of its terms.
type allotments struct {
	*shared
	owner string
	ttl   time.Duration
	// calls returns how many calls of a handler run under this owner, and a number above all limits if that is unknown;
	// nil for a drain, which releases no portion before its end.
	calls  func(h *handler.Handler) int
	limits map[*handler.Handler]*fleetLimit

	changing routine.Lock // held while portions are taken, renewed or released
	closed   bool         // all were released; guarded by changing
}

// fleetLimit has the limits of one handler.
type fleetLimit struct {
	handler *handler.Handler
	name    string  // of its leases, before the number of the portion
	calls   []int   // at once, by portion
	bursts  []int   // by portion
	bucket  *bucket // nil without a rate
	// usable is the number of calls at once that the usable portions allow; 0 if none is usable.
	usable atomic.Int64

	held []bool // by portion; guarded by allotments.changing, like the following fields
	// left are portions that the database may still give to the owner, because a response was lost.
	left []bool
	// target is how many portions the owner should hold.
	target int
}

const (
	// maxPortions bounds the portions of a handler, and so the statements that renew them.
	maxPortions = 32
	// unlimited is a number of calls that no worker reaches.
	unlimited = 1 << 20
)

// divide divides n as evenly as possible into portions.
func divide(n, portions int) []int {
	sizes := make([]int, portions)
	for i := range sizes {
		sizes[i] = n / portions
		if i < n%portions {
			sizes[i]++
		}
	}
	return sizes
}

func (s *shared) newAllotments(owner string, ttl time.Duration, calls func(*handler.Handler) int) *allotments {
	a := &allotments{shared: s, owner: owner, ttl: ttl, calls: calls, limits: map[*handler.Handler]*fleetLimit{},
		changing: routine.NewLock()}
	for h := range s.registry.Handlers() {
		if _, burst := h.Rate(); burst > 0 || h.FleetConcurrency() > 0 {
			a.limits[h] = newFleetLimit(h, calls == nil)
		}
	}
	if s.opts.Mode == ModeExclusive {
		a.useAll(true)
	}
	return a
}

func newFleetLimit(h *handler.Handler, drains bool) *fleetLimit {
	key := h.LaneKey()  // the oldest, so that programs from before and after a rename share the limits
	if len(key) > 150 { // the name would be too long
		key = uuid.NewSHA1(uuid.Nil, []byte(key)).String()
	}
	l := &fleetLimit{handler: h, name: "limit:" + key}
	n, portions := h.FleetConcurrency(), maxPortions
	if n > 0 {
		portions = min(portions, n)
	}
	if _, burst := h.Rate(); burst > 0 {
		portions = min(portions, burst)
		l.bursts, l.bucket = divide(burst, portions), newBucket(h.RateKey() != nil, drains)
	}
	l.held, l.left, l.calls = make([]bool, portions), make([]bool, portions), divide(n, portions)
	if n == 0 {
		l.calls = slices.Repeat([]int{unlimited}, portions)
	}
	return l
}

// useAll lets the owner use all portions without leases, or none.
func (a *allotments) useAll(all bool) {
	for _, l := range a.limits {
		for i := range l.held {
			l.held[i] = all
		}
		l.target = len(l.held)
		a.apply(l)
	}
}

// beginTerm empties the buckets at the beginning of a term of the lock in Exclusive mode. The owner of the term before
// may just have used the whole burst.
func (a *allotments) beginTerm() {
	for _, l := range a.limits {
		if l.bucket != nil {
			l.bucket.empty()
		}
	}
}

// leased reports whether there are limits whose portions are leases.
func (a *allotments) leased() bool { return len(a.limits) > 0 && a.opts.Mode != ModeExclusive }

// rules adds the limits of a handler to its rules.
func (a *allotments) rules(r scheduler.Rules, h *handler.Handler) scheduler.Rules {
	if l := a.limits[h]; l != nil {
		r.Allotted = func() int { return int(l.usable.Load()) }
		if l.bucket != nil {
			r.Rate = l.bucket
		}
	}
	return r
}

// holdsBack reports whether a limit lets nothing start now; a nil one does not.
func (l *fleetLimit) holdsBack() bool {
	return l != nil && (l.usable.Load() == 0 || l.bucket != nil && l.bucket.Ready() == 0)
}

// change calls each for all limits, and makes known what may then be used, unless all portions were released.
func (a *allotments) change(ctx context.Context, each func(l *fleetLimit) error) error {
	if !a.leased() {
		return nil
	}
	if err := a.changing.Acquire(ctx); err != nil {
		return fmt.Errorf("wait for other changes of the limits for all workers: %w", err)
	}
	defer a.changing.Release()
	if a.closed {
		return nil
	}
	for _, l := range a.limits {
		err := each(l)
		a.apply(l)
		if err != nil {
			return err
		}
	}
	return nil
}

// renew renews the portions that are held. If it fails, the caller must not count its heartbeat. A drain takes all that
// are free as well: workers hold what they use.
func (a *allotments) renew(ctx context.Context) error {
	drains := a.calls == nil
	return a.change(ctx, func(l *fleetLimit) error {
		if drains {
			l.target = len(l.held)
		}
		for i, held := range l.held {
			if held || drains {
				if err := a.acquire(ctx, l, i, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// adjust releases and takes portions as the living among the workers require. dead reports whether a worker that is
// not marked as stopped or released is dead.
func (a *allotments) adjust(ctx context.Context, workers []store.WorkerState, dead func(workerID string) bool) error {
	lives := func(owner string) bool {
		return owner != a.owner && slices.ContainsFunc(workers, func(w store.WorkerState) bool {
			return w.ID == owner && !w.Stopped && !w.Released && !dead(owner)
		})
	}
	return a.change(ctx, func(l *fleetLimit) error {
		l.target = l.part(a.owner, workers, a.opts.WorkerTimeout)
		a.apply(l) // before the calls are counted: none begins beyond it from now on
		holds, err := a.shrink(ctx, l, a.calls(l.handler))
		for i := 0; err == nil && i < len(l.held) && holds < l.target; i++ {
			if l.held[i] {
				continue
			}
			if err = a.acquire(ctx, l, i, lives); l.held[i] {
				holds++
			}
		}
		return err
	})
}

// shrink releases portions beyond the target, if the running calls fit into the others, and those that are left. It
// returns how many are held.
func (a *allotments) shrink(ctx context.Context, l *fleetLimit, running int) (holds int, err error) {
	spare := -running
	for i, held := range l.held {
		if held {
			holds++
			spare += l.calls[i]
		}
	}
	for i := len(l.held) - 1; err == nil && i >= 0; i-- {
		switch {
		case l.left[i]:
			err = a.release(ctx, l, i)
		case l.held[i] && holds > l.target && l.calls[i] <= spare:
			holds, spare = holds-1, spare-l.calls[i]
			err = a.release(ctx, l, i)
		}
	}
	return holds, err
}

// leave releases all portions for good. None of the owner's calls may run any more.
func (a *allotments) leave(ctx context.Context) {
	err := a.change(ctx, func(l *fleetLimit) error {
		a.closed, l.target = true, 0
		_, err := a.shrink(ctx, l, 0)
		return err
	})
	if err != nil {
		a.log.Info("inbox: portions of limits for all workers were not released, they expire by themselves", zap.Error(err))
	}
}

// part returns how many portions the owner should hold: as many as each living worker that has the handler. Workers
// that started first get the rest.
func (l *fleetLimit) part(owner string, workers []store.WorkerState, workerTimeout time.Duration) int {
	var living []string // the longest running first
	for _, w := range workers {
		if !w.Stopped && !w.Released && !w.Drains && w.SilentFor < workerTimeout &&
			slices.Contains(w.HandlerKeys, l.handler.LaneKey()) {
			living = append(living, w.ID)
		}
	}
	at := slices.Index(living, owner)
	if at < 0 {
		return 0
	}
	return divide(len(l.held), len(living))[at]
}

// apply makes known how much of a limit may be used: the portions that are held, as many as the owner should hold.
func (a *allotments) apply(l *fleetLimit) {
	calls, burst, portions := 0, 0, 0
	for i, held := range l.held {
		if held && portions < l.target {
			calls, portions = calls+l.calls[i], portions+1
			if l.bucket != nil {
				burst += l.bursts[i]
			}
		}
	}
	if l.bucket != nil {
		perSecond, _ := l.handler.Rate()
		l.bucket.set(perSecond*float64(portions)/float64(len(l.held)), burst)
	}
	switch before := l.usable.Swap(int64(calls)); {
	case int64(calls) > before:
		a.wakeup.wake(l.handler.Key())
	case int64(calls) < before:
		a.wakeup.notify()
	}
}

// acquire takes or renews a portion, unless it is another owner's. If lives is not nil, a portion is never free while
// its last owner lives.
func (a *allotments) acquire(ctx context.Context, l *fleetLimit, i int, lives func(owner string) bool) error {
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	if lives != nil {
		if owner, err := a.store.LeaseOwner(stmt, l.lease(i)); err != nil || lives(owner) {
			return err
		}
	}
	held, err := a.store.AcquireLease(stmt, l.lease(i), a.owner, a.ttl, a.clock.Now())
	if err != nil { // a portion that was held lasts until the session ends
		l.left[i] = !l.held[i]
		return err
	}
	l.held[i], l.left[i] = held, false
	return nil
}

// release releases a portion.
func (a *allotments) release(ctx context.Context, l *fleetLimit, i int) error {
	l.held[i], l.left[i] = false, true
	a.apply(l) // before others can take it
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	err := a.store.ReleaseLease(stmt, l.lease(i), a.owner)
	l.left[i] = err != nil
	return err
}

func (l *fleetLimit) lease(i int) string { return fmt.Sprintf("%s:%d", l.name, i) }

// nextStart returns when the rate of a handler that waits for it lets a call start; zero if none waits.
func (w *pool) nextStart() (next time.Time) {
	for h, l := range w.limits.limits {
		if l.bucket != nil && w.slotsOf(h).AwaitsRate() {
			next = earlier(next, l.bucket.next())
		}
	}
	return next
}

// setAside takes from a group the messages whose key must wait for its rate, and releases them until then.
func (w *pool) setAside(g *group) {
	if g.handler.RateKey() == nil {
		return
	}
	b, now := w.limits.limits[g.handler].bucket, time.Now()
	g.tasks = slices.DeleteFunc(g.tasks, func(t *task) bool {
		if t.rateKey == "" {
			return false
		}
		wait := b.admit(t.rateKey, t.claimedBefore(), now)
		if wait > 0 {
			w.completer.add(postponed(t, errRate, wait, w.p.clock.Now()))
		}
		return wait > 0
	})
}

// applyLimits releases the queues of handlers of which other workers hold all portions.
func (w *pool) applyLimits() {
	for h, l := range w.limits.limits {
		if l.usable.Load() == 0 {
			w.giveBack(w.slotsOf(h).Drop(), errNoCalls)
		}
	}
}
