package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// permit is the right of a ProcessPending to run handlers.
type permit struct {
	term  context.Context
	held  func() bool // whether the lock is held at this moment; nil in Competing mode
	leave func()
}

// lost returns an error if the permit has ended early: the lock was lost, or the processor that
// shared it was stopped.
func (t *permit) lost() error {
	if t.term.Err() == nil {
		return nil
	}
	return fmt.Errorf("process pending: interrupted, %w: %w", context.Cause(t.term), ErrLockHeld)
}

// longestTry is the longest pause between two tries for the lock.
const longestTry = time.Second

// acquirePermit waits for the lock in Exclusive mode, for at most lockPatience. If this very processor
// is started and holds the lock, the permit shares it.
func (p *Processor) acquirePermit(ctx context.Context) (*permit, error) {
	if p.opts.Mode != ModeExclusive {
		return &permit{term: context.Background(), leave: func() {}}, nil
	}
	own := p.newLock(context.WithoutCancel(ctx), uuid.Must(uuid.NewV7()).String(), func() {})
	deadline := time.NewTimer(p.opts.lockPatience())
	defer deadline.Stop()
	refused := false // the database has refused the lock at least once
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, longestTry, p.opts.WorkerTimeout/3) {
		if t := p.joinLock(ctx); t != nil {
			p.giveUpLock(ctx, own.leave)
			return t, nil
		}
		err := own.hold.Try(ctx)
		if err == nil && own.hold.Held() {
			return p.ownPermit(ctx, own), nil
		}
		refused = refused || err == nil
		if err == nil || p.awaits(err) {
			select {
			case <-time.After(pause):
				continue
			case <-deadline.C:
				err = fmt.Errorf("waited for %s", p.opts.lockPatience())
				refused = true // if nothing else refused it, a busy file did
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
	p.mu.Lock()
	a := p.now
	p.mu.Unlock()
	if a == nil {
		return nil
	}
	s := a.current()
	if s == nil || s.lock == nil || !s.lock.acquireShared() {
		return nil
	}
	return &permit{term: s.lock.hold.Term(), held: s.lock.hold.Held, leave: func() {
		p.giveUpLock(ctx, func(ctx context.Context, _ bool) error { return s.lock.releaseShared(ctx) })
	}}
}

// ownPermit returns a permit that keeps renewing the lock until leave is called.
func (p *Processor) ownPermit(ctx context.Context, own *lock) *permit {
	keep, end := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		for keep.Err() == nil {
			if err := protect(func() { p.keepLock(keep, keep, own, nil) }); err != nil {
				p.locking.Begin(nil, err)
				routine.Sleep(keep, p.opts.restartDelay())
			}
		}
	}()
	return &permit{term: own.hold.Term(), held: own.hold.Held, leave: func() {
		end()
		<-kept
		p.giveUpLock(ctx, own.leave)
		p.lockFreed.Notify() // wakes this process's own worker, which may wait for the lock
	}}
}

// giveUpLock releases the lock, even if ctx has ended.
func (p *Processor) giveUpLock(ctx context.Context, leave func(ctx context.Context, giveUp bool) error) {
	if err := leave(context.WithoutCancel(ctx), true); err != nil {
		p.log.Warn("inbox: releasing the lock failed, it expires by itself", zap.String(telemetry.FieldLock, lockName),
			zap.Error(err))
	}
}
