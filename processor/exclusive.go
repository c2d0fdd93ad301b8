package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// ErrLockHeld says that ProcessPending needs the inbox's lock, in Exclusive
// mode, and that another worker holds it (contract 5.14).
var ErrLockHeld = errors.New("another worker holds the lock of the inbox")

// lock is how a session, or a ProcessPending, takes part in Exclusive mode: it
// runs handlers while it holds the lease (contract 5.3).
type lock struct {
	lease *lease.Lease
	hold  *lease.Hold

	mu     sync.Mutex
	guests int  // ProcessPending calls that run under a session's lock
	left   bool // the session is over
	giveUp bool // and nothing that it claimed is left

	told bool // that another worker holds it; of the goroutine that tries
}

// newLock makes the lock of one worker ID; what runs under it ends with parent.
// begun is called when it is held.
func (p *Processor) newLock(parent context.Context, workerID string, begun func()) *lock {
	l := lease.New(p.store, lockName, workerID, p.opts.WorkerTimeout, min(p.opts.StatementTimeout, p.opts.WorkerTimeout/3),
		p.clock.Now)
	return &lock{lease: l, hold: lease.NewHold(parent, l, errLockLost, func(held bool, why error) {
		if held {
			begun()
			return
		}
		p.counters.OfInbox(telemetry.LockLost, 1)
		p.log.Warn("inbox: this worker lost the lock, its handlers are cancelled",
			zap.String(telemetry.FieldLock, lockName), zap.String(telemetry.FieldWorker, workerID),
			zap.NamedError(telemetry.FieldReason, why))
		p.wakeup.notify()
	})}
}

// sessionLock is nil in Competing mode.
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

// tryLock takes or renews it.
func (p *Processor) tryLock(ctx context.Context, l *lock) {
	err := l.hold.Try(ctx)
	switch {
	case err == nil:
		p.locking.End(nil)
		// claiming may have stopped because the renewal was late
		p.wakeup.notify()
		standsBy := errors.Is(context.Cause(l.hold.Term()), errLockLost) // not so in a stop
		if standsBy && !l.told {
			p.log.Info("inbox: another worker holds the lock, this one stands by",
				zap.String(telemetry.FieldLock, lockName), zap.Duration(telemetry.FieldTryingEvery, p.opts.WorkerTimeout/3))
		}
		l.told = standsBy
	case ctx.Err() == nil && !p.awaits(err):
		p.locking.Begin(nil, err)
	}
}

// awaits reports whether a statement failed only because somebody else writes,
// in a database with a single writer.
func (p *Processor) awaits(err error) bool { return p.store.SingleWriter() && store.IsWaiting(err) }

// keepLock tries for the lock, or renews it, every third of its length, until
// ctx ends or the session is fenced: its worker ID must not come to hold it
// then. In a stop it goes on although nothing runs any more: the lease is to
// last until the last result is stored.
//
// freed tells of a ProcessPending of this process that has given the lock up.
// It is for the worker alone: it holds one signal, and a ProcessPending that
// took it would gain nothing, for it holds the lock that is to be kept.
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

// leave ends what runs under the lock. With giveUp, nothing that was claimed
// is left, and another worker may have it at once; otherwise it runs out.
func (l *lock) leave(ctx context.Context, giveUp bool) error {
	l.hold.End()
	l.mu.Lock()
	l.left, l.giveUp = true, giveUp
	now := giveUp && l.guests == 0 // else the last guest gives it up
	l.mu.Unlock()
	if !now {
		return nil
	}
	return l.lease.Release(ctx)
}

func (l *lock) join() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left || !l.hold.Held() {
		return false
	}
	l.guests++
	return true
}

func (l *lock) part(ctx context.Context) error {
	l.mu.Lock()
	l.guests--
	last := l.left && l.giveUp && l.guests == 0
	l.mu.Unlock()
	if !last {
		return nil
	}
	return l.lease.Release(ctx)
}

// work is the context of what may run now under this worker ID.
func (s *session) work() context.Context {
	if s.lock == nil {
		return s.attempts
	}
	return s.lock.hold.Term()
}

// holdsLock is true in Competing mode, too.
func (s *session) holdsLock() bool { return s.lock == nil || s.lock.hold.Fresh() }

// obeyLock reports whether the loop may start and claim now. Without the lock
// it gives back what is queued. A claim that was under way when the lock was
// lost is not cut off: its answer would be lost, and this worker, which lives,
// would have to find its claims again. If an answer was lost nevertheless,
// they are looked for also without the lock.
//
// With a new term the loop looks anew at everything: others have worked on it.
func (l *loop) obeyLock() bool {
	term := l.session.work()
	if term.Err() == nil {
		if l.term != term {
			l.term = term
			l.lookAnew()
		}
		return true
	}
	l.releaseQueued()
	if l.claiming {
		return false
	}
	if l.doubt = l.act.claimer.nextLook(); l.mayLook() {
		l.doubt = time.Time{}
		l.startClaiming(nil)
	}
	return false
}

// leaveLock ends a session's lock when the session was fenced or its loop has
// crashed, so that the next one, or another worker, need not wait until it
// runs out. Handlers that still run keep it until then.
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
		return // then it is for Stop
	}
	if err := s.lock.leave(alive, settled()); err != nil {
		p.log.Warn("inbox: the lock could not be given up, it runs out by itself", zap.String(telemetry.FieldLock, lockName),
			zap.Error(err))
	}
}

// stopLock ends a session's lock in a stop, after the last result is stored.
func (p *Processor) stopLock(hard context.Context, s *session, settled bool) {
	if s.lock == nil {
		return
	}
	if err := s.lock.leave(hard, settled); err != nil {
		p.log.Warn("inbox: the lock could not be given up, it runs out by itself", zap.String(telemetry.FieldLock, lockName),
			zap.Error(err))
	}
}

// holdsLock reports whether it processes in Exclusive mode.
func (a *activity) holdsLock() bool {
	if a == nil {
		return false
	}
	s := a.current()
	return s != nil && s.lock != nil && s.lock.hold.Held()
}
