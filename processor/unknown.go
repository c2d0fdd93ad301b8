package processor

import (
	"context"
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
					Locator: r.Locator, ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount, LastError: &reason, Poisoned: true}
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
