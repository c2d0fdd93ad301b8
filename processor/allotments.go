package processor

import (
	"context"
	"errors"
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
//     that owner is a worker, it must be dead as well. So a jump of the database's clock frees no portion. To a drain a
//     worker is dead after StuckMessageThreshold, as its own claims are then stuck.
//   - A worker renews them for WorkerTimeout with each heartbeat, which does not count if that fails. So they outlast
//     the moment at which its session ends and its calls are cancelled.
//
// In Exclusive mode the lock already keeps others away, and there are no leases. Rates begin anew with each of its
// terms.
type allotments struct {
	*shared
	owner string
	ttl   time.Duration
	// calls returns how many calls of a handler run under this owner, and a number above all limits if that is unknown;
	// nil for a drain, which releases no portion in use before its end.
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
	// unreleased are portions that are not held and that the database may still give to the owner, because a response
	// was lost. They are released before they are taken again, because a late release would free a portion in use.
	unreleased []bool
	// target is how many portions the owner should hold.
	target int
}

const (
	// maxPortions bounds the portions of a handler, and so its leases.
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
	l.held, l.unreleased, l.calls = make([]bool, portions), make([]bool, portions), divide(n, portions)
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

// portion is one of the portions of a limit.
type portion struct {
	*fleetLimit
	i int
}

func (p portion) lease() string { return fmt.Sprintf("%s:%d", p.name, p.i) }

func leasesOf(portions []portion) []string {
	names := make([]string, len(portions))
	for i, p := range portions {
		names[i] = p.lease()
	}
	return names
}

// portions returns those of all limits for which the function returns true.
func (a *allotments) portions(are func(p portion) bool) (some []portion) {
	for _, l := range a.limits {
		for i := range l.held {
			if p := (portion{l, i}); are(p) {
				some = append(some, p)
			}
		}
	}
	return some
}

// change runs a change of the portions, unless all were released. Changes follow each other.
func (a *allotments) change(ctx context.Context, change func() error) error {
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
	return change()
}

// renew renews the portions that are held, all in one statement: a heartbeat has little time. If it fails, the caller
// must not count its heartbeat.
func (a *allotments) renew(ctx context.Context) error {
	return a.change(ctx, func() error {
		return a.acquire(ctx, a.portions(func(p portion) bool { return p.held[p.i] }))
	})
}

// adjust releases and takes portions as the living among the workers require. dead reports whether a worker that is
// not marked as stopped or released is dead.
func (a *allotments) adjust(ctx context.Context, workers []store.WorkerState, dead func(workerID string) bool) error {
	return a.change(ctx, func() error {
		var release []portion
		for _, l := range a.limits {
			l.target = l.part(a.owner, workers, a.opts.WorkerTimeout)
			a.apply(l) // before the calls are counted: none begins beyond it from now on
			release = append(release, l.surplus(a.calls(l.handler))...)
		}
		return a.exchange(ctx, release, workers, func(w store.WorkerState) bool { return w.ID != a.owner && !dead(w.ID) })
	})
}

// takeFree takes all portions that are free, for a drain: workers hold what they use. A drain sees too little of a
// worker to find it dead in two sweeps. So it goes by the time after which its own claims count as stuck.
func (a *allotments) takeFree(ctx context.Context, workers []store.WorkerState) error {
	return a.change(ctx, func() error {
		for _, l := range a.limits {
			l.target = len(l.held)
		}
		return a.exchange(ctx, nil, workers, func(w store.WorkerState) bool {
			return w.SilentFor < a.opts.StuckMessageThreshold
		})
	})
}

// exchange releases portions, and then takes others that are free, as many as the owner should hold. lives reports
// whether a worker lives that is not marked as stopped or released.
func (a *allotments) exchange(
	ctx context.Context, release []portion, workers []store.WorkerState, lives func(w store.WorkerState) bool,
) error {
	// What this very change releases is not taken again by it.
	others := a.portions(func(p portion) bool { return !p.held[p.i] && !p.unreleased[p.i] })
	release = append(release, a.portions(func(p portion) bool { return p.unreleased[p.i] })...)
	return errors.Join(a.release(ctx, release), a.take(ctx, others, func(owner string) bool {
		return slices.ContainsFunc(workers, func(w store.WorkerState) bool {
			return w.ID == owner && !w.Stopped && !w.Released && lives(w)
		})
	}))
}

// take takes some of the portions, until the owner holds as many as it should. A portion is never free while its last
// owner lives.
func (a *allotments) take(ctx context.Context, portions []portion, lives func(owner string) bool) error {
	missing := func(p portion) bool { return p.holds() < p.target }
	portions = slices.DeleteFunc(portions, func(p portion) bool { return !missing(p) })
	if len(portions) == 0 {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	owners, err := a.store.LeaseOwners(stmt, leasesOf(portions))
	if err != nil {
		return err
	}
	portions = slices.DeleteFunc(portions, func(p portion) bool { return lives(owners[p.lease()]) })
	for {
		var some, rest []portion
		asked := map[*fleetLimit]int{}
		for _, p := range portions {
			if n := p.target - p.holds(); asked[p.fleetLimit] < n {
				asked[p.fleetLimit]++
				some = append(some, p)
			} else if n > 0 {
				rest = append(rest, p)
			}
		}
		if len(some) == 0 {
			return nil
		}
		if err := a.acquire(ctx, some); err != nil {
			return err
		}
		portions = rest
	}
}

// holds returns how many portions are held.
func (l *fleetLimit) holds() (n int) {
	for _, held := range l.held {
		if held {
			n++
		}
	}
	return n
}

// surplus returns the portions beyond the target without which the running calls fit into the others.
func (l *fleetLimit) surplus(running int) (some []portion) {
	holds, spare := l.holds(), -running
	for i, held := range l.held {
		if held {
			spare += l.calls[i]
		}
	}
	for i := len(l.held) - 1; i >= 0 && holds > l.target; i-- {
		if l.held[i] && l.calls[i] <= spare {
			holds, spare = holds-1, spare-l.calls[i]
			some = append(some, portion{l, i})
		}
	}
	return some
}

// leave releases all portions for good. None of the owner's calls may run any more.
func (a *allotments) leave(ctx context.Context) {
	err := a.change(ctx, func() error {
		a.closed = true
		return a.release(ctx, a.portions(func(p portion) bool { return p.held[p.i] || p.unreleased[p.i] }))
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

// acquire takes or renews portions, unless they are other owners'.
func (a *allotments) acquire(ctx context.Context, portions []portion) error {
	if len(portions) == 0 {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	names, err := a.store.AcquireLeases(stmt, leasesOf(portions), a.owner, a.ttl, a.clock.Now())
	held := map[string]bool{}
	for _, name := range names {
		held[name] = true
	}
	for _, p := range portions {
		if err != nil { // a portion that was held lasts until the session ends
			p.unreleased[p.i] = !p.held[p.i]
		} else {
			p.held[p.i] = held[p.lease()]
		}
	}
	a.applyAll()
	return err
}

// release releases portions.
func (a *allotments) release(ctx context.Context, portions []portion) error {
	if len(portions) == 0 {
		return nil
	}
	for _, p := range portions {
		p.held[p.i], p.unreleased[p.i] = false, true
	}
	a.applyAll() // before others can take them
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	err := a.store.ReleaseLeases(stmt, leasesOf(portions), a.owner)
	for _, p := range portions {
		p.unreleased[p.i] = err != nil
	}
	return err
}

func (a *allotments) applyAll() {
	for _, l := range a.limits {
		a.apply(l)
	}
}

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
