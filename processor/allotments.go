package processor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
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
// Each limit is divided into portions, and each portion is a lease: the database gives it to one owner at a time. So
// the limit holds however differently the workers see each other, and whatever statement is lost. Who takes how many
// follows from the living workers that an owner sees, which decides nothing but fairness:
//
//   - An owner that holds more than its part uses the rest for no further call at once. It releases a portion when the
//     calls that run fit into the others.
//   - An owner that holds less takes portions that are free: released, or of an owner that has not renewed them.
//   - A worker renews them for WorkerTimeout with each heartbeat, which does not count if that fails. So they outlast
//     the moment at which its session ends and its calls are cancelled.
//
// In Exclusive mode the lock already keeps others away, and there are no leases.
type allotments struct {
	*shared
	owner string
	ttl   time.Duration
	// calls returns how many calls of a handler run under this owner, and a number above all limits if that is unknown.
	calls  func(h *handler.Handler) int
	limits []*fleetLimit

	changing routine.Lock // held while portions are taken, renewed or released
	closed   bool         // all were released; guarded by changing
}

// fleetLimit is one limit of a handler, on calls at once or on the rate.
type fleetLimit struct {
	handler *handler.Handler
	name    string // of its leases, before the number of the portion
	sizes   []int  // of its portions: calls at once, or the burst
	bucket  *bucket
	// usable is the sum of the portions that may be used.
	usable atomic.Int64

	held []bool // by portion; guarded by allotments.changing, like target
	// target is how many portions the owner should hold.
	target int
}

// maxPortions bounds the portions of a limit, and so the statements that renew them.
const maxPortions = 32

// portionsOf divides n as evenly as possible into at most that many portions. Each is at least as large as the same one
// of a smaller n: while programs with different limits run, all portions together are no more than the larger limit.
func portionsOf(n, most int) []int {
	sizes := make([]int, min(n, most))
	for i := range sizes {
		sizes[i] = n / len(sizes)
		if i < n%len(sizes) {
			sizes[i]++
		}
	}
	return sizes
}

func (s *shared) newAllotments(owner string, ttl time.Duration, calls func(*handler.Handler) int) *allotments {
	a := &allotments{shared: s, owner: owner, ttl: ttl, calls: calls, changing: routine.NewLock()}
	for h := range s.registry.Handlers() {
		most := maxPortions
		if n := h.FleetConcurrency(); n > 0 {
			a.limits = append(a.limits, newFleetLimit(h, "calls", portionsOf(n, most)))
			most = min(most, n) // who has a portion of the rate can use it
		}
		if _, burst := h.Rate(); burst > 0 {
			l := newFleetLimit(h, "rate", portionsOf(burst, most))
			l.bucket = &bucket{at: time.Now()}
			a.limits = append(a.limits, l)
		}
	}
	if s.opts.Mode == ModeExclusive {
		a.useAll(true)
	}
	return a
}

// maxLeaseKey is how much of a handler key fits into a lease's name.
const maxLeaseKey = 150

func newFleetLimit(h *handler.Handler, what string, sizes []int) *fleetLimit {
	key := h.LaneKey() // the oldest, so that programs from before and after a rename share the limit
	if len(key) > maxLeaseKey {
		key = uuid.NewSHA1(uuid.Nil, []byte(key)).String()
	}
	return &fleetLimit{handler: h, name: what + ":" + key, sizes: sizes, held: make([]bool, len(sizes))}
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

// leased reports whether there are limits whose portions are leases.
func (a *allotments) leased() bool { return len(a.limits) > 0 && a.opts.Mode != ModeExclusive }

// rules adds the limits of a handler to its rules.
func (a *allotments) rules(r scheduler.Rules, h *handler.Handler) scheduler.Rules {
	var own []*fleetLimit
	for _, l := range a.limits {
		if l.handler != h {
			continue
		}
		own = append(own, l)
		if l.bucket != nil {
			r.Rate = l.bucket
		}
	}
	if len(own) > 0 {
		r.Allotted = func() int {
			allotted := math.MaxInt
			for _, l := range own {
				if usable := int(l.usable.Load()); l.bucket == nil || usable == 0 {
					allotted = min(allotted, usable)
				}
			}
			return allotted
		}
	}
	return r
}

// holdsBack reports whether the limits let nothing of a handler start now.
func (a *allotments) holdsBack(h *handler.Handler) bool {
	return slices.ContainsFunc(a.limits, func(l *fleetLimit) bool {
		return l.handler == h && (l.usable.Load() == 0 || l.bucket != nil && l.bucket.Ready() == 0)
	})
}

// change calls each for all limits, and then makes known what may be used of it, unless all portions were released.
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

// renew renews the portions that are held. If it fails, the caller must not count its heartbeat.
func (a *allotments) renew(ctx context.Context) error {
	return a.change(ctx, func(l *fleetLimit) error {
		for i, held := range l.held {
			if held {
				if err := a.acquire(ctx, l, i); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// adjust releases and takes portions as the living among the workers require.
func (a *allotments) adjust(ctx context.Context, workers []store.WorkerState) error {
	return a.change(ctx, func(l *fleetLimit) error {
		l.target = l.part(a.owner, workers, a.opts.WorkerTimeout)
		a.apply(l) // before the calls are counted: none begins beyond it from now on
		spare := -a.callsOf(l)
		holds := 0
		for i, held := range l.held {
			if held {
				holds++
				spare += l.sizes[i]
			}
		}
		for i := len(l.held) - 1; i >= 0 && holds > l.target; i-- {
			if l.held[i] && l.sizes[i] <= spare {
				holds, spare = holds-1, spare-l.sizes[i]
				if err := a.release(ctx, l, i); err != nil {
					return err
				}
			}
		}
		for i := 0; i < len(l.held) && holds < l.target; i++ {
			if l.held[i] {
				continue
			}
			if err := a.acquire(ctx, l, i); err != nil {
				return err
			}
			if l.held[i] {
				holds++
			}
		}
		return nil
	})
}

// takeFree takes all portions that are free, and renews the others, for a ProcessPending: workers hold what they use.
func (a *allotments) takeFree(ctx context.Context) error {
	return a.change(ctx, func(l *fleetLimit) error {
		if l.bucket != nil && slices.ContainsFunc(a.limits, func(calls *fleetLimit) bool {
			return calls.handler == l.handler && calls.bucket == nil && calls.usable.Load() == 0
		}) {
			return nil // without a call it has no use for a part of the rate
		}
		l.target = len(l.held)
		for i := range l.held {
			if err := a.acquire(ctx, l, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// releaseAll releases all portions for good. None of the owner's calls may run any more.
func (a *allotments) releaseAll(ctx context.Context) error {
	return a.change(ctx, func(l *fleetLimit) error {
		a.closed, l.target = true, 0
		for i, held := range l.held {
			if held {
				if err := a.release(ctx, l, i); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// leave is releaseAll, and logs a failure.
func (a *allotments) leave(ctx context.Context) {
	if err := a.releaseAll(ctx); err != nil {
		a.log.Info("inbox: portions of limits for all workers were not released, they expire by themselves", zap.Error(err))
	}
}

func (a *allotments) callsOf(l *fleetLimit) int {
	if l.bucket != nil {
		return 0
	}
	return a.calls(l.handler)
}

// part returns how many portions the owner should hold: as many as each living worker that has the handler. Workers
// that started first get the rest.
func (l *fleetLimit) part(owner string, workers []store.WorkerState, workerTimeout time.Duration) int {
	n, at := 0, -1
	for _, w := range workers { // the longest running first
		if w.Stopped || w.Released || w.Drains || w.SilentFor >= workerTimeout ||
			!slices.Contains(w.HandlerKeys, l.handler.LaneKey()) {
			continue
		}
		if w.ID == owner {
			at = n
		}
		n++
	}
	switch {
	case at < 0:
		return 0
	case at < len(l.sizes)%n:
		return len(l.sizes)/n + 1
	default:
		return len(l.sizes) / n
	}
}

// apply makes known how much of a limit may be used: the portions that are held, as many as the owner should hold.
func (a *allotments) apply(l *fleetLimit) {
	usable, portions := 0, 0
	for i, held := range l.held {
		if held && portions < l.target {
			usable += l.sizes[i]
			portions++
		}
	}
	if l.bucket != nil {
		perSecond, _ := l.handler.Rate()
		l.bucket.set(perSecond*float64(portions)/float64(len(l.sizes)), usable)
	}
	switch before := l.usable.Swap(int64(usable)); {
	case int64(usable) > before:
		a.wakeup.wake(l.handler.Key())
	case int64(usable) < before:
		a.wakeup.notify()
	}
}

func (a *allotments) acquire(ctx context.Context, l *fleetLimit, i int) (err error) {
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	held, err := a.store.AcquireLease(stmt, leaseName(l, i), a.owner, a.ttl, a.clock.Now())
	if err != nil {
		return err // a portion that was held lasts until the session ends
	}
	l.held[i] = held
	return nil
}

// release releases a portion. After an error its lease runs out by itself.
func (a *allotments) release(ctx context.Context, l *fleetLimit, i int) error {
	l.held[i] = false
	a.apply(l) // before others can take it
	stmt, cancel := context.WithTimeout(ctx, a.opts.StatementTimeout)
	defer cancel()
	return a.store.ReleaseLease(stmt, leaseName(l, i), a.owner)
}

func leaseName(l *fleetLimit, i int) string { return fmt.Sprintf("%s:%d", l.name, i) }

// bucket is the token bucket of a rate. It has no tokens at first, and gets none with a portion: its former owner may
// just have used that portion's burst. It is safe for concurrent use.
type bucket struct {
	mu        sync.Mutex
	perSecond float64
	size      float64
	tokens    float64
	at        time.Time // when tokens were counted
	atLeast   int       // the least that Ahead returns
}

// rateAhead is how long claimed messages may wait for the rate.
const rateAhead = 100 * time.Millisecond

func (b *bucket) set(perSecond float64, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	b.perSecond, b.size = perSecond, float64(size)
	b.tokens = min(b.tokens, b.size)
}

func (b *bucket) refill() {
	now := time.Now()
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*b.perSecond, b.size)
	b.at = now
}

// Ready returns how many calls may start now.
func (b *bucket) Ready() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	return int(b.tokens)
}

// Ahead returns how many messages may be claimed that start within rateAhead.
func (b *bucket) Ahead() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perSecond == 0 {
		return 0
	}
	return max(int(min(b.perSecond*rateAhead.Seconds(), 1<<20)), b.atLeast)
}

// Take counts a call that starts.
func (b *bucket) Take() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	b.tokens--
}

// next returns when a call may start; zero if one may now, or if none ever may.
func (b *bucket) next() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if b.tokens >= 1 || b.perSecond == 0 {
		return time.Time{}
	}
	wait := min((1-b.tokens)/b.perSecond, time.Hour.Seconds())
	return b.at.Add(time.Duration(wait*float64(time.Second)) + time.Microsecond)
}

// nextStart returns when the rate of a handler that waits for it lets a call start; zero if none waits.
func (w *pool) nextStart() (next time.Time) {
	for _, l := range w.limits.limits {
		if l.bucket != nil && w.slotsOf(l.handler).AwaitsRate() {
			next = earlier(next, l.bucket.next())
		}
	}
	return next
}

// applyLimits releases the queues of handlers of which other workers hold all portions.
func (w *pool) applyLimits() {
	for _, l := range w.limits.limits {
		w.giveBack(w.slotsOf(l.handler).DropUnallotted(), errUnallotted)
	}
}
