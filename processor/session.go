package processor

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/internal/store"
)

// session is one worker ID's life: from its registration to the stop, or to
// the moment the worker must take itself for dead (contract 5.9).
type session struct {
	id string
	// attempts is the context of everything that runs under this ID.
	attempts context.Context
	cancel   context.CancelCauseFunc

	mu   sync.Mutex
	last time.Time // of the last successful heartbeat, monotonic
}

func newSession(parent context.Context) *session {
	ctx, cancel := context.WithCancelCause(parent)
	return &session{id: uuid.Must(uuid.NewV7()).String(), attempts: ctx, cancel: cancel, last: time.Now()}
}

func (s *session) beat(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = at
}

func (s *session) silentFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}

// mayClaim: a worker without a heartbeat stops claiming early, so that no
// claim of its is younger than the silence the others judge it by.
func (s *session) mayClaim(workerTimeout time.Duration) bool {
	return s.attempts.Err() == nil && s.silentFor() < workerTimeout*2/3
}

// heart keeps a worker alive in the database and fences it when that fails.
type heart struct {
	store   store.Store
	opts    Options
	keys    []string
	now     func() time.Time
	log     *stateLog
	host    string
	onPause func(keys []string)
	onBack  func() // it may claim again
}

func newHeart(st store.Store, opts Options, keys []string, now func() time.Time, log *stateLog, onPause func([]string), onBack func()) *heart {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &heart{store: st, opts: opts, keys: keys, now: now, log: log, host: host, onPause: onPause, onBack: onBack}
}

// beat sends one heartbeat and reads what operators paused. The moment that
// counts is the one before the statement: had the answer taken long, the
// database would have seen us earlier than we saw its answer.
func (h *heart) beat(ctx context.Context, s *session) error {
	stmt, cancel := context.WithTimeout(ctx, min(h.opts.StatementTimeout, h.opts.WorkerTimeout/3))
	defer cancel()
	at := time.Now()
	err := h.store.Heartbeat(stmt, store.Worker{ID: s.id, Host: h.host, PID: os.Getpid(), HandlerKeys: h.keys}, h.now())
	if err != nil {
		return err
	}
	s.beat(at)
	paused, err := h.store.Paused(stmt)
	if err != nil {
		return err
	}
	h.onPause(paused)
	return nil
}

// keep beats until ctx ends or the session must be taken for dead: when the
// others have declared it so, or when no heartbeat succeeded for
// WorkerTimeout. Its handlers are then cancelled; their claims are no longer
// this worker's, whatever they still write is judged by the version.
func (h *heart) keep(ctx context.Context, s *session) {
	ticker := time.NewTicker(h.opts.HeartbeatInterval)
	defer ticker.Stop()
	for {
		// A tick may come late (the process was stopped and continued): look
		// at the silence before anything else.
		wait := h.opts.WorkerTimeout - s.silentFor()
		if wait <= 0 {
			s.cancel(errFenced)
			return
		}
		fence := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			fence.Stop()
			return
		case <-fence.C:
			continue
		case <-ticker.C:
			fence.Stop()
		}
		if s.silentFor() >= h.opts.WorkerTimeout {
			continue
		}
		claiming := s.mayClaim(h.opts.WorkerTimeout)
		err := h.beat(ctx, s)
		switch {
		case err == nil:
			h.log.healthy()
			if !claiming {
				h.onBack()
			}
		case errors.Is(err, store.ErrWorkerReleased):
			h.log.failing("inbox: this worker was taken for dead, coming back under a new ID", err)
			s.cancel(errFenced)
			return
		case ctx.Err() == nil:
			h.log.failing("inbox: heartbeat failed", err)
		}
	}
}
