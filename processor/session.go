package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// session is the life of one worker ID: from its registration to the stop, or to the moment when
// the worker must assume that others take it for dead.
type session struct {
	id            string
	workerTimeout time.Duration
	// attempts is the context of everything that runs under this ID.
	attempts context.Context
	cancel   context.CancelCauseFunc
	// claims is the context of its claims. It ends with attempts, except at a stop: a claim that is
	// cancelled may be committed all the same, so a stop lets it finish while there is time.
	claims    context.Context
	endClaims context.CancelFunc
	lock      *lock // nil in Competing mode
	limits    *allotments

	mu    sync.Mutex
	last  time.Time   // when the last successful heartbeat was sent, monotonic
	fence *time.Timer // cancels everything once last is WorkerTimeout ago
	// lastWall is last by the wall clock.
	lastWall time.Time
}

func newSession(parent context.Context, workerTimeout time.Duration) *session {
	ctx, cancel := context.WithCancelCause(parent)
	claims, endClaims := context.WithCancel(parent)
	context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errStopping) {
			endClaims()
		}
	})
	return &session{id: uuid.Must(uuid.NewV7()).String(), workerTimeout: workerTimeout, attempts: ctx, cancel: cancel,
		claims: claims, endClaims: endClaims, last: time.Now(), lastWall: time.Now().Round(0)}
}

// beat records a successful heartbeat that was sent at that time. It reports whether the worker may claim again because
// of it. The fence is a separate timer, so it fires in time even if a later heartbeat hangs. If the process is
// suspended, the timer fires when it resumes.
func (s *session) beat(at time.Time) (back bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	back = s.silence() >= s.workerTimeout*2/3
	s.last, s.lastWall = at, at.Round(0)
	if s.fence != nil {
		s.fence.Stop()
	}
	s.fence = time.AfterFunc(time.Until(at.Add(s.workerTimeout)), func() { s.cancel(errFenced) })
	return back
}

// silence returns the time since the last heartbeat: the longer one of the monotonic and the wall clock. While a
// machine is suspended, its monotonic clock may stand still, and the fence with it. The wall clock may also have been
// set, so that alone does not fence the worker: its next heartbeat decides.
func (s *session) silence() time.Duration {
	return max(time.Since(s.last), time.Now().Round(0).Sub(s.lastWall))
}

// mayStart returns an error if the worker must assume that others take it for dead. They may have released its claims
// then, and a call that starts now could run beside theirs, or after later messages of its lane. Usually the fence has
// cancelled everything by that moment. But after the whole process was suspended an attempt may continue before the
// fence's timer fires, so each call checks here first.
func (s *session) mayStart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) >= s.workerTimeout {
		s.cancel(errFenced)
		return errFenced
	}
	if s.silence() >= s.workerTimeout {
		return errSuspended
	}
	if s.lock != nil && !s.lock.hold.Held() {
		return errLockLost
	}
	return claimsLost(ctx)
}

// claimsLost returns the context's cause if that means that other workers may have the claims.
func claimsLost(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errFenced) || errors.Is(cause, errLockLost) {
		return cause
	}
	return nil
}

// end cancels everything under this ID with a cause.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence != nil {
		s.fence.Stop()
	}
	s.cancel(cause)
}

// mayClaim reports whether the worker may claim. It may not once its last heartbeat is two thirds
// of WorkerTimeout old, so that its latest claim is well before the others take it for dead.
func (s *session) mayClaim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts.Err() == nil && s.silence() < s.workerTimeout*2/3 && s.holdsLock()
}

// heart sends a worker's heartbeats and fences its session when they fail.
type heart struct {
	*shared
	row    store.Worker // the fields that each heartbeat repeats
	report func() (health, consumers string)
}

// beat sends one heartbeat and reads which handlers operators have paused. The heartbeat counts from the moment before
// the statement. If the response took long, the database saw us earlier than we saw the response. Portions of limits
// are renewed after that moment, too, so they last as long as the session.
func (h *heart) beat(ctx context.Context, s *session) error {
	stmt, cancel := context.WithTimeout(ctx, min(h.opts.StatementTimeout, h.opts.WorkerTimeout/3))
	defer cancel()
	at := time.Now()
	row := h.row
	row.ID = s.id
	row.Health, row.Consumers = h.report()
	if err := h.store.Heartbeat(stmt, row, h.clock.Now()); err != nil {
		return err
	}
	if err := s.limits.renew(stmt); err != nil {
		return err
	}
	if s.beat(at) {
		h.wakeup.wake()
	}
	return h.takePaused(stmt)
}

// checkOwnRow replaces a heartbeat while the worker cannot write: it reads the worker's row, and counts as
// a heartbeat if the row says that the worker lives.
func (h *heart) checkOwnRow(ctx context.Context, s *session) error {
	stmt, cancel := context.WithTimeout(ctx, min(h.opts.StatementTimeout, h.opts.WorkerTimeout/6))
	defer cancel()
	at := time.Now()
	lives, err := h.store.WorkerLives(stmt, s.id)
	switch {
	case err != nil:
		return err
	case !lives:
		return store.ErrWorkerReleased
	}
	if s.beat(at) {
		h.wakeup.wake()
	}
	return nil
}

// keep sends heartbeats until ctx ends or the session is over: because other workers have declared it dead, or because
// its fence fired after WorkerTimeout without a heartbeat. Its handlers are cancelled then. Their claims are no longer
// this worker's, and the version decides whether their late writes have an effect.
//
// On SQLite, waiting in vain for the file does not count as silence. While another transaction holds the only write
// lock (such as a long handler, perhaps ours), no worker can declare us dead either. But a worker may have done so
// between two moments at which the file was busy. Reading does not wait for the lock, so the worker then reads its own
// row. If the row says that it lives, it lived at that moment. A worker that declares us dead later must find us silent
// in two sweeps, with its own heartbeat before each; our next heartbeat comes in between. If that heartbeat again fails
// to get the lock, reading the row shows whether we were declared dead.
//
// A driver may wait for the file for longer than the heartbeat's deadline, and for longer than
// WorkerTimeout. So the worker also reads its row while a heartbeat is running.
func (h *heart) keep(ctx context.Context, s *session) {
	ticker := time.NewTicker(h.opts.HeartbeatInterval)
	defer ticker.Stop()
	beaten := make(chan error, 1)
	beating := false
	defer func() {
		if beating {
			<-beaten
		}
	}()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-s.attempts.Done():
			return
		case err = <-beaten:
			beating = false
		case <-ticker.C:
			if !beating {
				beating = true
				go func() {
					beaten <- routine.Protect("the heartbeat", func() error { return h.beat(ctx, s) })
				}()
				continue
			}
			err = context.DeadlineExceeded // or will be exceeded
			if !h.store.SingleWriter() {
				continue
			}
		}
		if ctx.Err() == nil && h.store.SingleWriter() && store.IsWaiting(err) {
			err = h.checkOwnRow(ctx, s)
		}
		switch {
		case err == nil:
			h.beating.End(nil)
		case s.attempts.Err() != nil: // a stop may have released the worker
			return
		case errors.Is(err, store.ErrWorkerReleased):
			h.beating.Begin(nil, err)
			s.end(errFenced)
			return
		case ctx.Err() == nil:
			h.beating.Begin(nil, err)
		}
	}
}
