package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// sweepBatch bounds how many claims one recovery statement takes.
const sweepBatch = 500

// sweeperStore is what a sweeper needs of an inbox's store.
type sweeperStore interface {
	store.Recoverer
	Settle(ctx context.Context, settlements []store.Settlement, locked store.Locked) ([]bool, error)
	Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error)
}

// sweeper recovers what others left behind: claims of dead workers, claims of
// nobody, statuses of handlers that no longer exist (contract 5.7, 5.9). Any
// number of workers sweep at once; the versions make that harmless.
type sweeper struct {
	store    sweeperStore
	opts     Options
	now      func() time.Time
	log      *zap.Logger
	counters *telemetry.Counters
	known    []string
	lanes    *lanes
	// recovered wakes the loop: released claims come due.
	recovered func(next time.Time)
	// poisoned is told of each status the sweep poisons.
	poisoned func(ctx context.Context, r result)

	suspects  map[string]int       // silent workers: sweeps in a row
	unknown   map[string]time.Time // unknown keys: first seen, monotonic
	lastStuck time.Time
}

func newSweeper(st sweeperStore, opts Options, known []string, now func() time.Time, log *zap.Logger,
	counters *telemetry.Counters,
	lanes *lanes, recovered func(time.Time), poisoned func(context.Context, result),
) *sweeper {
	return &sweeper{store: st, opts: opts, known: known, now: now, log: log, counters: counters, lanes: lanes,
		recovered: recovered, poisoned: poisoned,
		suspects: map[string]int{}, unknown: map[string]time.Time{}}
}

// sweep looks once. The caller's own heartbeat has just succeeded: a worker
// cut off from the database must not judge others by what it cannot see.
func (s *sweeper) sweep(
	ctx context.Context, self string, look func(workers []store.WorkerState, asked time.Time),
) error {
	asked := s.now()
	workers, err := s.workers(ctx)
	if err != nil {
		return err
	}
	look(workers, asked)
	var problems []error // one dead worker's trouble must not keep the others' claims
	seen := map[string]bool{}
	for _, w := range workers {
		seen[w.ID] = true
		if w.ID == self || w.Released || w.Drains || (w.Stopped && w.SilentFor < 2*s.opts.WorkerTimeout) {
			continue // one that took its leave has no claims to be released soon
		}
		if w.SilentFor < s.opts.WorkerTimeout {
			delete(s.suspects, w.ID)
			continue
		}
		s.suspects[w.ID]++
		if s.suspects[w.ID] < 2 {
			continue
		}
		problems = append(problems, s.bury(ctx, w))
	}
	for id := range s.suspects {
		if !seen[id] {
			delete(s.suspects, id)
		}
	}
	problems = append(problems, s.prune(ctx, workers))
	// The look for claims without a worker reads all pending statuses, so it
	// is not repeated more often than its threshold can matter.
	if time.Since(s.lastStuck) >= s.opts.StuckMessageThreshold/2 {
		s.lastStuck = time.Now()
		problems = append(problems, s.releaseStuck(ctx))
	}
	problems = append(problems, s.poisonUnknown(ctx, workers))
	if s.lanes.checkDue() {
		problems = append(problems, s.lanes.check(ctx))
	}
	return errors.Join(problems...)
}

func (s *sweeper) workers(ctx context.Context) ([]store.WorkerState, error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	workers, err := s.store.Workers(stmt, s.now())
	if err != nil {
		return nil, fmt.Errorf("sweep: list workers: %w", err)
	}
	return workers, nil
}

// bury releases a dead worker's claims. It is marked released only when it
// has none left and has been silent for twice the timeout: a claim statement
// it sent with its last breath may reach the database after the first look,
// and a transactional handler of its may still hold its row's lock.
func (s *sweeper) bury(ctx context.Context, w store.WorkerState) error {
	if s.suspects[w.ID] == 2 {
		s.lanes.doubt() // it may have died before it looked after lanes
	}
	left, err := s.releaseClaimsOf(ctx, w.ID)
	if err != nil {
		return err
	}
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	if left {
		s.evict(stmt, w)
		return nil
	}
	if w.SilentFor < 2*s.opts.WorkerTimeout {
		return nil
	}
	s.lanes.doubt() // a last time: nothing of it can follow
	err = s.store.MarkReleased(stmt, w.ID, s.now())
	if errors.Is(err, store.ErrWorkerBusy) { // an accept of its, with claims that nobody sees yet
		s.evict(stmt, w)
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep: mark worker %s released: %w", w.ID, err)
	}
	return nil
}

// evict ends what a partitioned worker has left open, or one whose machine lost
// its power: the server may hold a transaction open until TCP gives up, hours
// later. The next sweep finds the rows free.
func (s *sweeper) evict(stmt context.Context, w store.WorkerState) {
	ended, err := s.store.EvictWorker(stmt, w.ID)
	if err != nil { // the database's user may not be allowed to
		s.log.Warn("inbox: transactions that a dead worker left open cannot be ended, their statuses wait for the server to give them up",
			zap.String(telemetry.FieldWorker, w.ID), zap.Error(err))
	}
	if ended > 0 {
		s.log.Warn("inbox: ended transactions that a dead worker left open", zap.String(telemetry.FieldWorker, w.ID),
			zap.Int(telemetry.FieldTransactions, ended))
	}
}

func (s *sweeper) releaseClaimsOf(ctx context.Context, worker string) (left bool, err error) {
	left, err = s.release(ctx, "worker "+worker+" is gone", s.opts.abandon,
		func(stmt context.Context) ([]store.Ref, error) {
			return s.store.ClaimsOf(stmt, worker, sweepBatch)
		})
	if err != nil {
		return left, fmt.Errorf("sweep: release claims of worker %s: %w", worker, err)
	}
	return left, nil
}

func (s *sweeper) releaseStuck(ctx context.Context) error {
	before := s.now().Add(-s.opts.StuckMessageThreshold)
	_, err := s.release(ctx, "claim without a worker is stuck", s.opts.abandonStuck,
		func(stmt context.Context) ([]store.Ref, error) {
			return s.store.StuckClaims(stmt, before, sweepBatch)
		})
	if err != nil {
		return fmt.Errorf("sweep: release stuck claims: %w", err)
	}
	return nil
}

// release gives back what find finds, batch by batch, and reports whether
// some could not be (their rows are locked, or changed meanwhile).
func (s *sweeper) release(ctx context.Context, why string, abandon func(store.Ref, time.Time) store.Settlement,
	find func(context.Context) ([]store.Ref, error),
) (left bool, err error) {
	for {
		found, applied, err := s.settle(ctx, find, func(r store.Ref) store.Settlement { return abandon(r, s.now()) })
		if err != nil {
			return true, err
		}
		if applied > 0 {
			s.log.Warn("inbox: released abandoned claims", zap.String(telemetry.FieldReason, why),
				zap.Int(telemetry.FieldClaims, applied))
		}
		if found < sweepBatch || applied == 0 {
			return applied < found, nil
		}
	}
}

// settle gives one batch of found statuses the state that to says.
func (s *sweeper) settle(
	ctx context.Context, find func(context.Context) ([]store.Ref, error), to func(store.Ref) store.Settlement,
) (found, applied int, err error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	refs, err := find(stmt)
	if err != nil || len(refs) == 0 {
		return 0, 0, err
	}
	settlements := make([]store.Settlement, len(refs))
	for i, r := range refs {
		settlements[i] = to(r)
	}
	done, err := s.store.Settle(stmt, settlements, store.SkipLocked)
	if err != nil {
		return len(refs), 0, err
	}
	var ended []store.Ref
	for i, ok := range done {
		if ok {
			ended = append(ended, refs[i])
		}
	}
	s.lanes.advance(stmt, ended)
	for i, ok := range done {
		if !ok {
			continue
		}
		applied++
		if settlements[i].Poisoned {
			s.counters.OfHandler(telemetry.Poisoned, refs[i].HandlerKey, 1)
			s.log.Error("inbox: message poisoned", zap.String(telemetry.FieldHandlerKey, refs[i].HandlerKey),
				zap.String(telemetry.FieldMessageID, refs[i].MessageID),
				zap.Stringp(telemetry.FieldLastError, settlements[i].LastError))
			text := settlements[i].LastError
			s.poisoned(ctx, result{task: &task{claim: store.Claim{Ref: refs[i]}},
				verdict: poisonedBy(settlements[i], text, errors.New(*text))})
		} else {
			s.counters.OfHandler(telemetry.Recovered, refs[i].HandlerKey, 1)
			if next := settlements[i].NextAttemptAt; next != nil {
				s.recovered(*next)
			}
		}
	}
	return len(refs), applied, nil
}

// prune removes the rows of dead workers when their keys no longer count.
func (s *sweeper) prune(ctx context.Context, workers []store.WorkerState) error {
	var ids []string
	for _, w := range workers {
		if (w.Released || w.Drains) && !s.opts.listsKeys(w) {
			ids = append(ids, w.ID)
			// Once more, now that it can claim nothing any more: a claim that
			// was under way when it was marked came after the last look.
			if _, err := s.releaseClaimsOf(ctx, w.ID); err != nil {
				return err
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	if _, err := s.store.DeleteWorkers(stmt, ids); err != nil {
		return fmt.Errorf("sweep: prune workers: %w", err)
	}
	return nil
}
