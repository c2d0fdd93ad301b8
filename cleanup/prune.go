package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// vanishedAge is how long rows of vanished processes (their leases and workers) stay for inspection.
const vanishedAge = 24 * time.Hour

// prune deletes rows that are not messages or statuses, under the run's lease.
func (r *run) prune(ctx context.Context) error {
	if r.cfg.Options.SweepMarkers && r.waitingFor == nil {
		if err := r.waits(r.pruneMarkers(ctx)); err != nil {
			return err
		}
	}
	return r.pruneOthers(ctx)
}

// pruneMarkers deletes markers that have expired and that no redelivery needs.
func (r *run) pruneMarkers(ctx context.Context) error {
	if err := r.hold(ctx, true); err != nil {
		return err
	}
	defer func() { r.held = nil }()
	return r.pruneRows(ctx, &r.deleted.Markers, r.until, r.cfg.Store.DeleteMarkers)
}

// pruneOthers deletes the rows that no redelivery needs.
func (r *run) pruneOthers(ctx context.Context) error {
	if age := r.cfg.Options.AuditRetention; age > 0 {
		if err := r.pruneRows(ctx, &r.deleted.Audit, r.now.Add(-age), r.cfg.Store.DeleteAudit); err != nil {
			return err
		}
	}
	if age := r.cfg.Options.RejectedRetention; age > 0 {
		if err := r.pruneRows(ctx, &r.deleted.Rejected, r.now.Add(-age), r.cfg.Store.DeleteRejected); err != nil {
			return err
		}
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		r.deleted.Leases, err = r.cfg.Store.DeleteExpiredLeases(ctx, vanishedAge, r.now)
		return err
	})
	if err == nil {
		err = r.bounded(ctx, r.pruneWorkers)
	}
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	return nil
}

// pruneRows deletes in batches until one is smaller than the limit.
func (r *run) pruneRows(ctx context.Context, sum *int64, before time.Time,
	remove func(ctx context.Context, before time.Time, limit int) (int64, error),
) error {
	return r.batches(ctx, func(limit int) (deleted int64, done bool, err error) {
		err = r.bounded(ctx, func(ctx context.Context) error {
			deleted, err = remove(ctx, before, limit)
			return err
		})
		*sum += deleted
		return deleted, deleted < int64(limit), err
	})
}

// pruneWorkers deletes the rows of workers that have been silent for long. Running processors prune dead workers
// themselves. The remaining rows belong to an inbox without a processor, such as one that is now processed by hand.
//
// A worker that neither stopped nor was released is first marked as released. If it were still alive,
// it would come back under a new ID. Its claims need no row: the sweeps of a processor that starts
// later release claims whose worker has none.
func (r *run) pruneWorkers(ctx context.Context) error {
	workers, err := r.cfg.Store.Workers(ctx, r.now)
	if err != nil {
		return err
	}
	var gone, drains []string
	for _, w := range workers {
		if w.SilentFor <= r.cfg.WorkerAge {
			continue
		}
		if !w.Stopped && !w.Released {
			err := r.cfg.Store.MarkReleased(ctx, w.ID, r.now)
			if errors.Is(err, store.ErrWorkerBusy) {
				continue // one of its statements is open
			}
			if err != nil {
				return err
			}
		}
		if w.Drains {
			drains = append(drains, w.ID)
		} else {
			gone = append(gone, w.ID)
		}
	}
	if len(drains) > 0 { // not counted, because no process has vanished
		if _, err := r.cfg.Store.DeleteWorkers(ctx, drains); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	r.deleted.Workers, err = r.cfg.Store.DeleteWorkers(ctx, gone)
	return err
}
