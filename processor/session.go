package processor

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/store"
)

// session is one worker ID's life: from its registration to the stop, or to
// the moment the worker must take itself for dead (contract 5.9).
type session struct {
	id            string
	workerTimeout time.Duration
	// attempts is the context of everything that runs under this ID.
	attempts context.Context
	cancel   context.CancelCauseFunc
	lock     *lock // nil in Competing mode

	mu    sync.Mutex
	last  time.Time   // of the last successful heartbeat, monotonic
	fence *time.Timer // cancels everything when that is WorkerTimeout ago
}

func newSession(parent context.Context, workerTimeout time.Duration) *session {
	ctx, cancel := context.WithCancelCause(parent)
	return &session{id: uuid.Must(uuid.NewV7()).String(), workerTimeout: workerTimeout, attempts: ctx, cancel: cancel,
		last: time.Now()}
}

// beat notes a successful heartbeat sent at that time and reports whether the
// worker may claim again because of it. The fence is a timer of its own:
// whatever a later heartbeat hangs on, it comes in time, and if the process
// was stopped meanwhile, it comes first thing when that is continued.
func (s *session) beat(at time.Time) (back bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	back = time.Since(s.last) >= s.workerTimeout*2/3
	s.last = at
	if s.fence != nil {
		s.fence.Stop()
	}
	s.fence = time.AfterFunc(time.Until(at.Add(s.workerTimeout)), func() { s.cancel(errFenced) })
	return back
}

// mayStart returns an error if the worker must take itself for dead: then others
// may have released its claims, and a call that starts now could run beside theirs,
// or after their successors in a lane. The fence ends everything at that moment.
// But if the whole process was frozen, an attempt that was about to start may go on
// before the fence's timer fires, so each call asks here first.
func (s *session) mayStart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) >= s.workerTimeout {
		s.cancel(errFenced)
		return errFenced
	}
	if s.lock != nil && !s.lock.hold.Held() {
		return errLockLost
	}
	return barred(ctx)
}

// barred returns why others may have the claims, if the context has ended for that.
func barred(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errFenced) || errors.Is(cause, errLockLost) {
		return cause
	}
	return nil
}

// end cancels everything under this ID, for cause.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence != nil {
		s.fence.Stop()
	}
	s.cancel(cause)
}

// mayClaim: a worker without a heartbeat stops claiming early, so that no
// claim of its is younger than the silence the others judge it by.
func (s *session) mayClaim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts.Err() == nil && time.Since(s.last) < s.workerTimeout*2/3 && s.holdsLock()
}

// heartbeatStore is what a heart needs of an inbox's store.
type heartbeatStore interface {
	store.Workers
	Paused(ctx context.Context) ([]string, error)
	SingleWriter() bool
}

// heart keeps a worker alive in the database and fences it when that fails.
type heart struct {
	store   heartbeatStore
	opts    Options
	keys    []string
	report  func() string // the process's health
	now     func() time.Time
	beating *condition.Condition
	host    string
	onPause func(keys []string)
	onBack  func() // it may claim again
}

func newHeart(st heartbeatStore, opts Options, keys []string, report func() string, now func() time.Time,
	beating *condition.Condition, onPause func([]string), onBack func(),
) *heart {
	return &heart{store: st, opts: opts, keys: keys, report: report, now: now, beating: beating, host: hostname(),
		onPause: onPause, onBack: onBack}
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// beat sends one heartbeat and reads what operators paused. The moment that
// counts is the one before the statement: had the answer taken long, the
// database would have seen us earlier than we saw its answer.
func (h *heart) beat(ctx context.Context, s *session) error {
	stmt, cancel := context.WithTimeout(ctx, min(h.opts.StatementTimeout, h.opts.WorkerTimeout/3))
	defer cancel()
	at := time.Now()
	err := h.store.Heartbeat(stmt, store.Worker{ID: s.id, Host: h.host, PID: os.Getpid(), HandlerKeys: h.keys,
		Health: h.report()}, h.now())
	if err != nil {
		return err
	}
	if s.beat(at) {
		h.onBack()
	}
	paused, err := h.store.Paused(stmt)
	if err != nil {
		return err
	}
	h.onPause(paused)
	return nil
}

// look is what is left to a worker that cannot write at the moment.
func (h *heart) look(ctx context.Context, s *session) error {
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
		h.onBack()
	}
	return nil
}

// keep beats until ctx ends or the session must be taken for dead: when the
// others have declared it so, or when its fence has fallen because no
// heartbeat succeeded for WorkerTimeout. Its handlers are then cancelled; their
// claims are no longer this worker's, whatever they still write is judged by
// the version.
//
// Waiting in vain for a SQLite file does not count as silence: while somebody
// holds its only write lock (a long transactional handler, perhaps our own),
// nobody else can declare this worker dead either. But somebody may have done
// so between two times that the file was busy. Reading waits for nobody, so
// then the worker looks at its row, and what it sees was so at that moment:
// others that declare it dead now find it silent on two sweeps, each after a
// heartbeat of their own, and it beats in between; should it fail again and
// again to be the one whose turn to write comes, its next look shows it.
//
// A driver may wait longer for the file than the heartbeat's deadline, and
// than WorkerTimeout. So the worker also looks while a heartbeat is under way.
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
					var err error
					if crash := protect(func() { err = h.beat(ctx, s) }); crash != nil {
						err = crash
					}
					beaten <- err
				}()
				continue
			}
			err = context.DeadlineExceeded // or will be
			if !h.store.SingleWriter() {
				continue
			}
		}
		if ctx.Err() == nil && h.store.SingleWriter() && store.IsWaiting(err) {
			err = h.look(ctx, s)
		}
		switch {
		case err == nil:
			h.beating.End(nil)
		case errors.Is(err, store.ErrWorkerReleased):
			h.beating.Begin(nil, err)
			s.end(errFenced)
			return
		case ctx.Err() == nil:
			h.beating.Begin(nil, err)
		}
	}
}
