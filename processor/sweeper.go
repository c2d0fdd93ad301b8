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

// sweepBatch is the number of statuses that one statement of a sweep changes at most.
const sweepBatch = 500

// sweeperStore is the part of an inbox's store that a sweeper needs.
type sweeperStore interface {
	store.Recoverer
	store.Leases
	Settle(ctx context.Context, settlements []store.Settlement, locked store.Locked) ([]bool, error)
	States(ctx context.Context, refs []store.Ref) (map[string]store.State, error)
	Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error)
}

// sweeper recovers claims of dead workers and stuck claims without a worker (see recover), and finds statuses of
// handlers that no program has. Any number of workers may sweep concurrently; the versions make that harmless.
type sweeper struct {
	store    sweeperStore
	opts     Options
	now      func() time.Time
	log      *zap.Logger
	counters *telemetry.Counters
	lanes    *lanes
	// recovered is called when a released claim comes due, to wake the loop.
	recovered func(next time.Time)
	// poisoned is called for each status that the sweep poisons.
	poisoned func(ctx context.Context, r result)

	silent  map[string]int    // silent workers, and for how many sweeps in a row
	leads   bool              // whether this worker holds the lease
	frontAt time.Time         // when the front of each key was last read, monotonic
	left    bool              // whether claims could not be released then
	rest    []store.ClaimWalk // what is left of the walk to the end of all keys
	deaths  int               // how many such walks have to end because a worker died
}

func newSweeper(st sweeperStore, opts Options, now func() time.Time, log *zap.Logger,
	counters *telemetry.Counters,
	lanes *lanes, recovered func(time.Time), poisoned func(context.Context, result),
) *sweeper {
	return &sweeper{store: st, opts: opts, now: now, log: log, counters: counters, lanes: lanes,
		recovered: recovered, poisoned: poisoned}
}

// sweep does one sweep. The caller's own heartbeat must just have succeeded: a worker that is cut
// off from the database must not judge others by what it cannot see.
func (s *sweeper) sweep(ctx context.Context, self string, fleet *fleet, clock *databaseClock) error {
	asked := time.Now()
	workers, err := s.workers(ctx)
	if err != nil {
		return err
	}
	if len(workers) > 0 {
		clock.follow(workers[0].Read, asked)
	}
	fleet.check(self, workers, asked)
	pending, err := s.pendingKeys(ctx)
	if err != nil {
		return err
	}
	fleet.compareKeys(pending, workers)
	problems := []error{s.recover(ctx, self, workers, pending), s.prune(ctx, workers)}
	if s.lanes.checkDue() {
		problems = append(problems, s.lanes.check(ctx))
	}
	return errors.Join(problems...)
}

func (s *sweeper) pendingKeys(ctx context.Context) ([]string, error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	pending, err := s.store.PendingKeys(stmt)
	if err != nil {
		return nil, fmt.Errorf("sweep: pending handler keys: %w", err)
	}
	return pending, nil
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

// settleRefs writes the state that to returns for each status, and reports which were written. Rows
// that are locked, or have changed since, stay as they are.
func (s *sweeper) settleRefs(
	ctx context.Context, refs []store.Ref, to func(store.Ref) store.Settlement,
) (applied []bool, err error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	settlements := make([]store.Settlement, len(refs))
	for i, r := range refs {
		settlements[i] = to(r)
	}
	applied, err = s.store.Settle(stmt, settlements, store.SkipLocked)
	if err != nil {
		return nil, err
	}
	var ended []store.Ref
	for i, ok := range applied {
		if ok {
			ended = append(ended, refs[i])
		}
	}
	s.lanes.advance(stmt, ended)
	for i, ok := range applied {
		if !ok {
			continue
		}
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
	return applied, nil
}

// prune deletes the rows of dead workers, and of drains, once their keys no longer count.
func (s *sweeper) prune(ctx context.Context, workers []store.WorkerState) error {
	var ids []string
	for _, w := range workers {
		if (w.Released || w.Drains) && !s.opts.listsKeys(w) {
			ids = append(ids, w.ID)
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
// dead workers count for UnknownKeyGrace; those of drains for at least store.DrainKept.
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

// notePrograms records which handler keys this program drains, for the workers of other programs.
// It also warns of pending keys that no program lists. While the processor is started its heartbeats
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
	if due {
		p.mu.Lock()
		p.drained = time.Now()
		p.mu.Unlock()
	}
	p.fleet.warnUnknown(unknown)
	return nil
}

// drainRow returns the row that all programs share that drain the same handlers. One row per
// process would fill the table, because each run of a cron job is a new process.
func (p *Processor) drainRow() store.Worker {
	row := p.row()
	var listed strings.Builder
	for _, key := range row.HandlerKeys {
		fmt.Fprintf(&listed, "%s\x00%s\x00", key, row.Namespaces[key])
	}
	row.ID = uuid.NewSHA1(uuid.Nil, []byte(listed.String())).String()
	return row
}

// row returns what each of this program's rows says of it.
func (p *Processor) row() store.Worker {
	return store.Worker{Host: hostname(), PID: os.Getpid(), HandlerKeys: p.registry.Keys(), Namespaces: p.namespaces}
}
