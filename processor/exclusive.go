package processor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// ErrLockHeld says that ProcessPending needs the inbox's lock in Exclusive mode, and that another
// worker holds it (contract 5.14).
var ErrLockHeld = errors.New("another worker holds the lock of the inbox")

// lock is the part of a session, or of a ProcessPending, in Exclusive mode: handlers run only while it holds the lease.
type lock struct {
	lease *lease.Lease
	hold  *lease.Hold

	mu     sync.Mutex
	users  int  // ProcessPending calls that run under a session's lock
	left   bool // the session is over
	giveUp bool // none of its claims is left

	standbyLogged bool // whether another worker's holding was logged; owned by the goroutine that tries
}

// newLock returns the lock of one worker ID. Everything that runs under the lock ends with parent.
// acquired is called when the lock is acquired.
func (p *Processor) newLock(parent context.Context, workerID string, acquired func()) *lock {
	l := lease.New(p.store, lockName, workerID, p.opts.WorkerTimeout, min(p.opts.StatementTimeout, p.opts.WorkerTimeout/3),
		p.clock.Now)
	return &lock{lease: l, hold: lease.NewHold(parent, l, errLockLost, func(held bool, why error) {
		if held {
			acquired()
			return
		}
		p.counters.OfInbox(telemetry.LockLost, 1)
		p.log.Warn("inbox: this worker lost the lock, its handlers are cancelled",
			zap.String(telemetry.FieldLock, lockName), zap.String(telemetry.FieldWorker, workerID),
			zap.NamedError(telemetry.FieldReason, why))
		p.wakeup.notify()
	})}
}

// sessionLock returns the lock of a session; nil in Competing mode.
func (p *Processor) sessionLock(s *session) *lock {
	if p.opts.Mode != ModeExclusive {
		return nil
	}
	return p.newLock(s.attempts, s.id, func() {
		p.log.Info("inbox: this worker holds the lock and processes", zap.String(telemetry.FieldLock, lockName),
			zap.String(telemetry.FieldWorker, s.id))
		p.wakeup.wake()
	})
}

// tryLock acquires or renews the lock.
func (p *Processor) tryLock(ctx context.Context, l *lock) {
	err := l.hold.Try(ctx)
	switch {
	case err == nil:
		p.locking.End(nil)
		// Claiming may have stopped because the renewal was late.
		p.wakeup.notify()
		standsBy := errors.Is(context.Cause(l.hold.Term()), errLockLost) // false during a stop
		if standsBy && !l.standbyLogged {
			p.log.Info("inbox: another worker holds the lock, this one stands by",
				zap.String(telemetry.FieldLock, lockName), zap.Duration(telemetry.FieldTryingEvery, p.opts.WorkerTimeout/3))
		}
		l.standbyLogged = standsBy
	case ctx.Err() == nil && !p.awaits(err):
		p.locking.Begin(nil, err)
	}
}

// awaits reports whether a statement failed only because another connection was writing, in a
// database with a single writer.
func (p *Processor) awaits(err error) bool { return p.store.SingleWriter() && store.IsWaiting(err) }

// keepLock acquires or renews the lock every third of WorkerTimeout, until ctx ends or the session
// is fenced: a fenced worker ID must not acquire the lock. It goes on during a stop although
// nothing is claimed any more, because the lease must last until the last result is stored.
//
// freed signals that a ProcessPending of this process has released the lock. Only the worker listens to it: the channel
// holds a single signal, which a ProcessPending, holding the lock itself, would waste.
func (p *Processor) keepLock(ctx, attempts context.Context, l *lock, freed <-chan struct{}) {
	ticker := time.NewTicker(p.opts.WorkerTimeout / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-freed:
		}
		if attempts.Err() != nil && !errors.Is(context.Cause(attempts), errStopping) {
			return
		}
		p.tryLock(ctx, l)
	}
}

// leave ends the work that runs under the lock. With giveUp none of its claims is left, so another worker may acquire
// the lock at once; otherwise the lease expires by itself.
func (l *lock) leave(ctx context.Context, giveUp bool) error {
	l.hold.End()
	l.mu.Lock()
	l.left, l.giveUp = true, giveUp
	now := giveUp && l.users == 0 // otherwise the last user releases it
	l.mu.Unlock()
	if !now {
		return nil
	}
	return l.lease.Release(ctx)
}

// acquireShared lets a ProcessPending run under the session's lock, and reports whether the lock is held.
func (l *lock) acquireShared() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left || !l.hold.Held() {
		return false
	}
	l.users++
	return true
}

// releaseShared ends acquireShared. The last user releases a lock that the session has left.
func (l *lock) releaseShared(ctx context.Context) error {
	l.mu.Lock()
	l.users--
	last := l.left && l.giveUp && l.users == 0
	l.mu.Unlock()
	if !last {
		return nil
	}
	return l.lease.Release(ctx)
}

// work returns the context of the work that may run now under this worker ID.
func (s *session) work() context.Context {
	if s.lock == nil {
		return s.attempts
	}
	return s.lock.hold.Term()
}

// holdsLock reports whether the session may claim. In Competing mode it is always true.
func (s *session) holdsLock() bool { return s.lock == nil || s.lock.hold.Fresh() }

// applyLock reports whether the loop may start handlers and claim now. Without the lock it gives the
// queue back. A claim that was running when the lock was lost is not cancelled: its response would
// be lost, and this worker, which is alive, would have to reconcile its claims. If a response was
// lost nevertheless, the claims are reconciled even without the lock.
//
// A new term makes every handler poll again, because other workers have changed the statuses.
func (l *loop) applyLock() bool {
	term := l.session.work()
	if term.Err() == nil {
		if l.term != term {
			l.term = term
			if l.session.lock != nil {
				l.limits.beginTerm()
			}
			l.refresh()
		}
		return true
	}
	l.releaseQueued()
	if l.round != nil {
		return false
	}
	if l.reconcileAt = l.act.claimer.nextReconcile(); l.mayReconcile() {
		l.reconcileAt = time.Time{}
		r := l.newRound(nil)
		l.act.rounds.Go(func() { l.claimRounds(r) })
	}
	return false
}

// leaveLock releases the lock of a session that was fenced or whose loop crashed, so that the next session, or another
// worker, need not wait for the lease to expire. If handlers still run, the lease is kept until it expires.
func (p *Processor) leaveLock(work, alive context.Context, a *activity, s *session) {
	if s.lock == nil {
		return
	}
	s.lock.hold.End()
	settled := func() bool { return a.claimer.held.count() == 0 }
	for end := time.Now().Add(p.opts.WorkerTimeout / 3); a.left.count() == 0 && !settled() && time.Now().Before(end) &&
		work.Err() == nil; {
		routine.Sleep(work, 10*time.Millisecond)
	}
	if work.Err() != nil {
		return // Stop releases the lock then
	}
	p.noteRelease(s.lock.leave(alive, settled()))
}

// holdsLock reports whether the processor holds the lock in Exclusive mode.
func (a *activity) holdsLock() bool {
	if a == nil {
		return false
	}
	s := a.session.Load()
	return s.lock != nil && s.lock.hold.Held()
}

// permit is the right of a ProcessPending to run handlers.
type permit struct {
	term  context.Context
	held  func() bool // whether the lock is held at this moment; nil in Competing mode
	joins bool        // whether it shares the lock of the started processor
	leave func()
}

// lost returns an error if the permit has ended early: the lock was lost, or the processor that shared it was stopped.
func (t *permit) lost() error {
	if t.term.Err() == nil {
		return nil
	}
	return fmt.Errorf("process pending: interrupted, %w: %w", context.Cause(t.term), ErrLockHeld)
}

// maxLockPause is the longest pause between two tries for the lock.
const maxLockPause = time.Second

// acquirePermit waits for the lock in Exclusive mode, for at most twice WorkerTimeout: the lease of a process that has
// died runs out before. A statement that runs out of time does not end the wait. If this very processor is started and
// holds the lock, the permit shares it.
func (p *Processor) acquirePermit(ctx context.Context) (*permit, error) {
	if p.opts.Mode != ModeExclusive {
		return &permit{term: context.Background(), leave: func() {}}, nil
	}
	own := p.newLock(context.WithoutCancel(ctx), uuid.Must(uuid.NewV7()).String(), func() {})
	patience := 2 * p.opts.WorkerTimeout
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	refused := false // the database has refused the lock at least once
	retry := routine.Backoff{First: 20 * time.Millisecond, Max: min(maxLockPause, p.opts.WorkerTimeout/3)}
	for {
		if t := p.joinLock(ctx); t != nil {
			p.giveUpLock(ctx, own.leave)
			return t, nil
		}
		err := own.hold.Try(ctx)
		if err == nil && own.hold.Held() {
			return p.ownPermit(ctx, own), nil
		}
		refused = refused || err == nil
		if err == nil || store.IsWaiting(err) { // a statement for the lease has little time, and the wait has more
			select {
			case <-time.After(retry.Next()):
				continue
			case <-deadline.C:
				refused = refused || p.awaits(err) // if nothing else refused it, a busy file did
				waited := fmt.Errorf("waited for %s", patience)
				if !refused {
					waited = fmt.Errorf("%w: %w", waited, err)
				}
				err = waited
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		p.giveUpLock(ctx, own.leave) // a lost response may have granted the lock
		if refused {
			err = fmt.Errorf("%w: %w", ErrLockHeld, err)
		}
		return nil, fmt.Errorf("process pending: lock %q: %w", lockName, err)
	}
}

func (p *Processor) joinLock(ctx context.Context) *permit {
	a := p.now.Load()
	if a == nil {
		return nil
	}
	s := a.session.Load()
	if s.lock == nil || !s.lock.acquireShared() {
		return nil
	}
	return &permit{term: s.lock.hold.Term(), held: s.lock.hold.Held, joins: true, leave: func() {
		p.giveUpLock(ctx, func(ctx context.Context, _ bool) error { return s.lock.releaseShared(ctx) })
	}}
}

// ownPermit returns a permit that keeps renewing the lock until leave is called.
func (p *Processor) ownPermit(ctx context.Context, own *lock) *permit {
	keep, end := context.WithCancel(context.WithoutCancel(ctx))
	kept := routine.Go(func() {
		for keep.Err() == nil {
			err := routine.Protect("the lock's renewal", func() error { p.keepLock(keep, keep, own, nil); return nil })
			if err != nil {
				p.locking.Begin(nil, err)
				routine.Sleep(keep, p.opts.HeartbeatInterval)
			}
		}
	})
	return &permit{term: own.hold.Term(), held: own.hold.Held, leave: func() {
		end()
		<-kept
		p.giveUpLock(ctx, own.leave)
		p.lockFreed.Notify() // wakes the worker of this process, which may wait for the lock
	}}
}

// giveUpLock releases the lock, even if ctx has ended.
func (p *Processor) giveUpLock(ctx context.Context, leave func(ctx context.Context, giveUp bool) error) {
	p.noteRelease(leave(context.WithoutCancel(ctx), true))
}

// noteRelease logs that the lock could not be released.
func (p *Processor) noteRelease(err error) {
	if err != nil {
		p.log.Warn("inbox: releasing the lock failed, it expires by itself", zap.String(telemetry.FieldLock, lockName),
			zap.Error(err))
	}
}
