package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/telemetry"
)

// poisonUnknown poisons pending statuses whose handler key no worker lists.
// Keys of stopped and dead workers count for the grace after their last sign
// of life, and a key must have been missing for as long before this worker
// acts on it: in a rolling deploy a message can be accepted just before the
// worker that knows its handler registers (contract 5.7).
func (s *sweeper) poisonUnknown(ctx context.Context, workers []store.WorkerState, grace time.Duration) error {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	pending, err := s.store.PendingKeys(stmt)
	if err != nil {
		return fmt.Errorf("sweep: pending handler keys: %w", err)
	}
	known := map[string]bool{}
	for _, key := range s.known {
		known[key] = true
	}
	for _, w := range workers {
		if w.SilentFor <= s.opts.WorkerTimeout+grace {
			for _, key := range w.HandlerKeys {
				known[key] = true
			}
		}
	}
	for key := range s.unknown {
		if known[key] || !slices.Contains(pending, key) {
			delete(s.unknown, key)
		}
	}
	for _, key := range pending {
		if known[key] {
			continue
		}
		first, noticed := s.unknown[key]
		if !noticed {
			first = time.Now()
			s.unknown[key] = first
			if grace > 0 {
				s.log.Warn("inbox: pending statuses of a handler key that no worker knows", zap.String(telemetry.FieldHandlerKey, key), zap.Duration(telemetry.FieldPoisonedAfter, grace))
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
		found, applied, err := s.settle(ctx,
			func(stmt context.Context) ([]store.Ref, error) { return s.store.PendingOf(stmt, key, sweepBatch) },
			func(r store.Ref) store.Settlement {
				return store.Settlement{StatusID: r.StatusID, Version: r.Version, Locator: r.Locator, ErrorCount: r.ErrorCount,
					AbandonedCount: r.AbandonedCount, LastError: &reason, Poisoned: true}
			})
		if err != nil {
			return err
		}
		if applied > 0 {
			s.log.Error("inbox: poisoned statuses of an unknown handler key", zap.String(telemetry.FieldHandlerKey, key), zap.Int(telemetry.FieldStatuses, applied))
		}
		if found < sweepBatch || applied == 0 {
			return nil
		}
	}
}
