package processor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// sweepBatch is the number of claims that one recovery statement takes at most.
const sweepBatch = 500

// sweeperStore is the part of an inbox's store that a sweeper needs.
type sweeperStore interface {
	store.Recoverer
	Settle(ctx context.Context, settlements []store.Settlement, locked store.Locked) ([]bool, error)
	Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error)
}

// sweeper recovers claims of dead workers, stuck claims without a worker, and statuses of handlers
// that no longer exist. Any number of workers may sweep concurrently; the versions make that
// harmless.
type sweeper struct {
	store    sweeperStore
	opts     Options
	now      func() time.Time
	log      *zap.Logger
	counters *telemetry.Counters
	known    []string
	lanes    *lanes
	// recovered is called when a released claim comes due, to wake the loop.
	recovered func(next time.Time)
	// poisoned is called for each status that the sweep poisons.
	poisoned func(ctx context.Context, r result)

	suspects  map[string]int       // silent workers, and for how many sweeps in a row
	unknown   map[string]time.Time // unknown keys, and when they were first seen, monotonic
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

// sweep does one sweep. The caller's own heartbeat must just have succeeded: a worker that is cut
// off from the database must not judge others by what it cannot see.
func (s *sweeper) sweep(
	ctx context.Context, self string, check func(workers []store.WorkerState, asked time.Time),
) error {
	asked := s.now()
	workers, err := s.workers(ctx)
	if err != nil {
		return err
	}
	check(workers, asked)
	var problems []error // an error with one dead worker must not keep the others' claims from being released
	seen := map[string]bool{}
	for _, w := range workers {
		seen[w.ID] = true
		if w.ID == self || w.Released || w.Drains || (w.Stopped && w.SilentFor < 2*s.opts.WorkerTimeout) {
			continue // a worker that stopped in order has no claims that must be released soon
		}
		if w.SilentFor < s.opts.WorkerTimeout {
			delete(s.suspects, w.ID)
			continue
		}
		s.suspects[w.ID]++
		if s.suspects[w.ID] < 2 {
			continue
		}
		problems = append(problems, s.releaseDead(ctx, w))
	}
	for id := range s.suspects {
		if !seen[id] {
			delete(s.suspects, id)
		}
	}
	problems = append(problems, s.prune(ctx, workers))
	// Finding claims without a worker reads all pending statuses, so do it only as often as the
	// threshold requires.
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

// releaseDead releases a dead worker's claims. The worker is marked as released only when it has no claims
// left and has been silent for twice WorkerTimeout. Until then a claim statement that it sent last
// may still reach the database, and its transactional handlers may still lock their rows.
func (s *sweeper) releaseDead(ctx context.Context, w store.WorkerState) error {
	if s.suspects[w.ID] == 2 {
		s.lanes.recheck() // the worker may have died before it advanced its lanes
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
	s.lanes.recheck() // for the last time: nothing of this worker can follow
	err = s.store.MarkReleased(stmt, w.ID, s.now())
	if errors.Is(err, store.ErrWorkerBusy) { // one of its accepts is open, with claims that are not visible yet
		s.evict(stmt, w)
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep: mark worker %s released: %w", w.ID, err)
	}
	return nil
}

// evict ends the open transactions of a dead worker. If the worker was cut off, or its machine lost
// power, the server may keep a transaction open until TCP gives up, hours later. The next sweep
// finds the rows unlocked.
func (s *sweeper) evict(stmt context.Context, w store.WorkerState) {
	ended, err := s.store.EvictWorker(stmt, w.ID)
	if err != nil { // the database role may lack the permission
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

// release releases what find returns, batch by batch. It reports whether some could not be
// released, because their rows are locked or changed meanwhile.
func (s *sweeper) release(ctx context.Context, why string, abandon func(store.Ref, time.Time) store.Settlement,
	find func(context.Context) ([]store.Ref, error),
) (left bool, err error) {
	for {
		found, applied, err := s.settleBatch(ctx, find, func(r store.Ref) store.Settlement { return abandon(r, s.now()) })
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

// settleBatch writes the state that to returns for each status of one batch.
func (s *sweeper) settleBatch(
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

// prune deletes the rows of dead workers, and of drains, once their keys no longer count.
func (s *sweeper) prune(ctx context.Context, workers []store.WorkerState) error {
	var ids []string
	for _, w := range workers {
		if (w.Released || w.Drains) && !s.opts.listsKeys(w) {
			ids = append(ids, w.ID)
			// Release its claims once more, now that it can claim nothing: a claim that was running
			// when the worker was marked as released came after the last release.
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

// listsKeys reports whether the handler keys of a worker's row count as known. Keys of stopped and
// dead workers count for UnknownKeyGrace; keys of drains for at least store.DrainKept.
func (o Options) listsKeys(w store.WorkerState) bool {
	grace := o.UnknownKeyGrace
	if w.Drains {
		grace = max(grace, store.DrainKept)
	}
	return w.SilentFor <= o.WorkerTimeout+grace
}

// unknownKeys returns the pending handler keys that neither known nor any worker's row lists.
func (o Options) unknownKeys(pending, known []string, workers []store.WorkerState) []string {
	return slices.DeleteFunc(slices.Clone(pending), func(key string) bool {
		return slices.Contains(known, key) || slices.ContainsFunc(workers, func(w store.WorkerState) bool {
			return slices.Contains(w.HandlerKeys, key) && o.listsKeys(w)
		})
	})
}

// poisonUnknown poisons pending statuses whose handler key no worker lists. A key must have been
// unknown for UnknownKeyGrace before this worker poisons: in a rolling deploy a message can be
// accepted just before the worker that knows its handler registers.
func (s *sweeper) poisonUnknown(ctx context.Context, workers []store.WorkerState) error {
	grace := s.opts.UnknownKeyGrace
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	pending, err := s.store.PendingKeys(stmt)
	if err != nil {
		return fmt.Errorf("sweep: pending handler keys: %w", err)
	}
	unknown := s.opts.unknownKeys(pending, s.known, workers)
	for key := range s.unknown {
		if !slices.Contains(unknown, key) {
			delete(s.unknown, key)
		}
	}
	for _, key := range unknown {
		first, noticed := s.unknown[key]
		if !noticed {
			first = time.Now()
			s.unknown[key] = first
			if grace > 0 {
				s.log.Warn("inbox: pending statuses of a handler key that no worker knows",
					zap.String(telemetry.FieldHandlerKey, key), zap.Duration(telemetry.FieldPoisonedAfter, grace))
			}
		}
		if time.Since(first) < grace {
			continue
		}
		if err := s.poisonKey(ctx, key); err != nil {
			return fmt.Errorf("sweep: poison unknown handler key %q: %w", key, err)
		}
	}
	return nil
}

func (s *sweeper) poisonKey(ctx context.Context, key string) error {
	reason := store.SanitizeError(fmt.Sprintf("unknown handler key %q: no worker registers it", key))
	for {
		found, applied, err := s.settleBatch(ctx,
			func(stmt context.Context) ([]store.Ref, error) { return s.store.PendingOf(stmt, key, sweepBatch) },
			func(r store.Ref) store.Settlement {
				return store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
					ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount, LastError: &reason, Poisoned: true,
					FailedAt: s.now()}
			})
		if err != nil {
			return err
		}
		if applied > 0 {
			s.log.Error("inbox: poisoned statuses of an unknown handler key", zap.String(telemetry.FieldHandlerKey, key),
				zap.Int(telemetry.FieldStatuses, applied))
		}
		if found < sweepBatch || applied == 0 {
			return nil
		}
	}
}

// notePrograms records which handler keys this program drains, for the workers of other programs.
// It also warns of pending keys that no program lists. A drain does not poison those: the program
// that knows them may drain as rarely as this one. While the processor is started its heartbeats
// and sweeps do both, so notePrograms does nothing.
func (p *Processor) notePrograms(ctx context.Context) error {
	p.mu.Lock()
	started := p.now != nil
	due := time.Since(p.drained) >= p.opts.HeartbeatInterval
	p.mu.Unlock()
	if started {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	if due {
		if err := p.store.RecordDrain(stmt, p.drainRow(), p.clock.Now()); err != nil {
			return fmt.Errorf("process pending: %w", err)
		}
	}
	pending, err := p.store.PendingKeys(stmt)
	if err != nil {
		return fmt.Errorf("process pending: pending handler keys: %w", err)
	}
	unknown := p.opts.unknownKeys(pending, p.registry.Keys(), nil)
	if len(unknown) > 0 {
		workers, err := p.store.Workers(stmt, p.clock.Now())
		if err != nil {
			return fmt.Errorf("process pending: list workers: %w", err)
		}
		unknown = p.opts.unknownKeys(unknown, nil, workers)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if due {
		p.drained = time.Now()
	}
	for _, key := range unknown {
		if !p.warned[key] {
			p.warned[key] = true
			p.log.Warn("inbox: pending statuses of a handler key that no program lists, ProcessPending leaves them; a renamed handler needs handler.LegacyKeys",
				zap.String(telemetry.FieldHandlerKey, key))
		}
	}
	return nil
}

// drainRow returns the row that all programs share that drain the same handler keys. One row per
// process would fill the table, because each run of a cron job is a new process.
func (p *Processor) drainRow() store.Worker {
	keys := p.registry.Keys()
	id := uuid.NewSHA1(uuid.Nil, []byte(strings.Join(slices.Sorted(slices.Values(keys)), "\x00")))
	return store.Worker{ID: id.String(), Host: hostname(), PID: os.Getpid(), HandlerKeys: keys}
}
