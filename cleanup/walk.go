package cleanup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// retentions are the retentions of one inbox, as far as this process knows its handlers.
type retentions struct {
	inbox time.Duration // 0 means forever
	own   []ownRetention
	// lengths are all different retentions, the longest first.
	lengths []time.Duration
	// keepsForever says that at least one handler keeps its statuses forever.
	keepsForever bool
	keys         map[string]bool // keys of all handlers
}

// ownRetention is a handler's own retention, for one of its keys.
type ownRetention struct {
	key       string
	retention time.Duration
}

func retentionsOf(opts Options, handlers []*handler.Handler) retentions {
	r := retentions{inbox: opts.Retention, keys: map[string]bool{}}
	if r.inbox > 0 {
		r.lengths = append(r.lengths, r.inbox)
	}
	for _, h := range handlers {
		retention := h.Retention()
		if retention == 0 && r.inbox == 0 {
			r.keepsForever = true
		}
		for _, key := range h.Keys() {
			if retention > 0 && !r.keys[key] {
				r.own = append(r.own, ownRetention{key, retention})
				r.lengths = append(r.lengths, retention)
			}
			r.keys[key] = true
		}
	}
	slices.Sort(r.lengths)
	slices.Reverse(r.lengths)
	r.lengths = slices.Compact(r.lengths)
	return r
}

// request returns a request with the cutoffs at this moment. foreign are keys of handlers that only
// other processes of the inbox register. Their retention is not known here, so they are left to
// cleaners that know it. Keys that no process registers any more follow the inbox's retention.
func (r retentions) request(now time.Time, foreign []string) store.CleanupRequest {
	var req store.CleanupRequest
	if r.inbox > 0 {
		req.Cutoff = now.Add(-r.inbox)
	}
	for _, own := range r.own {
		req.HandlerCutoffs = append(req.HandlerCutoffs,
			store.HandlerCutoff{HandlerKey: own.key, Cutoff: now.Add(-own.retention)})
	}
	for _, key := range foreign {
		req.HandlerCutoffs = append(req.HandlerCutoffs, store.HandlerCutoff{HandlerKey: key})
	}
	return req
}

// shorter returns a request without the longest retention, for rows in partitions that have not expired as a whole.
func (r retentions) shorter(req store.CleanupRequest) store.CleanupRequest {
	earliest := req.Earliest()
	req.Live, req.HandlerCutoffs = true, slices.Clone(req.HandlerCutoffs)
	if req.Cutoff.Equal(earliest) {
		req.Cutoff = time.Time{}
	}
	for i := range req.HandlerCutoffs {
		if req.HandlerCutoffs[i].Cutoff.Equal(earliest) {
			req.HandlerCutoffs[i].Cutoff = time.Time{}
		}
	}
	return req
}

// walked decides which messages a run reads, so that its cost does not grow with the kept messages. With one retention
// a run reads everything older than the cutoff, and deletes it.
//
// With several retentions there may be millions of messages that are older than a short retention and kept by a long
// one. A run reads a message when it passes a retention, and for lateCompletion after that; then not again until it
// passes the next retention. But every run number fullEvery reads everything, and so finds statuses that completed
// late. The first run of a process is such a full run, because the position of earlier runs is not stored.
type walked struct {
	retentions
	every bool // the inbox's retention also applies to handlers of other processes

	mu sync.Mutex
	// at is when the last complete run was: everything that had passed a retention by then was read.
	at   time.Time
	runs int // runs since the last full one
}

const (
	lateCompletion = time.Hour
	fullEvery      = 24
)

// span is a part of the walk: messages received from (inclusive) until.
type span struct{ from, until time.Time }

// plan returns the spans of a run, in order and disjoint, and whether they are a full walk. kept says that there are
// statuses that stay at any age.
func (w *walked) plan(now time.Time, kept bool) (spans []span, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.IsZero() || w.runs+1 >= fullEvery {
		return []span{{until: now.Add(-w.lengths[len(w.lengths)-1])}}, true
	}
	for i, length := range w.lengths {
		next := span{from: w.at.Add(-length - lateCompletion), until: now.Add(-length)}
		if i == 0 && !kept && !w.keepsForever {
			next.from = time.Time{}
		}
		if n := len(spans); n > 0 && !next.from.After(spans[n-1].until) {
			spans[n-1].until = next.until
			continue
		}
		spans = append(spans, next)
	}
	return spans, false
}

// done records a run. whole is false if the run had to leave something, which the next run then
// reads again. Such a run counts all the same towards the next full one: otherwise a message that
// no run can delete would postpone full runs forever.
func (w *walked) done(now time.Time, full, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if whole {
		w.at = now
	}
	w.runs++
	if full {
		w.runs = 0
	}
}

// foreignKeys returns the handler keys that other workers list and this process does not register.
// It returns none if the inbox's retention applies to every handler.
func (r *run) foreignKeys(ctx context.Context) ([]string, error) {
	if r.walked.every {
		return nil, nil
	}
	var workers []store.WorkerState
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		workers, err = r.cfg.Store.Workers(ctx, r.now)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cleanup: %w", err)
	}
	foreign := map[string]bool{}
	for _, w := range workers {
		for _, key := range w.HandlerKeys {
			if !r.walked.keys[key] {
				foreign[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(foreign)), nil
}

// walk deletes statuses and messages.
func (r *run) walk(ctx context.Context) error {
	if len(r.walked.lengths) == 0 {
		return nil
	}
	foreign, err := r.foreignKeys(ctx)
	if err == nil {
		err = r.waits(r.hold(ctx, false))
	}
	if err != nil || r.waitingFor != nil {
		return err
	}
	defer func() { r.held = nil }()
	req := r.walked.request(r.until, foreign)
	spans, full := r.walked.plan(r.until, len(foreign) > 0)
	partitioned := false
	err = r.bounded(ctx, func(ctx context.Context) (err error) {
		partitioned, err = r.cfg.Store.Partitioned(ctx)
		return err
	})
	switch {
	case err != nil:
		err = fmt.Errorf("cleanup: %w", err)
	case partitioned:
		err = r.walkPartitions(ctx, req, spans)
	default:
		err = r.walkSpans(ctx, req, spans)
	}
	if err != nil {
		return err
	}
	return r.walkEnded(full)
}

// walkPartitions first walks what is in partitions that have expired as a whole, and what was kept of earlier ones, and
// then drops these partitions. If there are several retentions, it also deletes what has passed a shorter one, row by
// row: rows that have the longest retention are left for the time when their partition has expired.
func (r *run) walkPartitions(ctx context.Context, req store.CleanupRequest, spans []span) error {
	err := r.walkSpans(ctx, req, []span{{until: req.Latest()}})
	if err == nil && r.waitingFor == nil && !r.givenUp && len(r.walked.lengths) > 1 {
		err = r.walkSpans(ctx, r.walked.shorter(req), spans)
	}
	if ctx.Err() == nil && r.waitingFor == nil { // what the walk has left is still known
		err = errors.Join(err, r.keepPartitions(ctx, req.Earliest()))
	}
	return err
}

// A change of partitions waits for the longest open transaction, and all statements behind it, for half a second for
// each of its locks. Within five minutes a busy inbox has a moment for it.
const (
	partitionTries = 30
	partitionPause = 10 * time.Second
)

// keepPartitions drops expired partitions and begins new ones. Rows that wait for the archive are still known, so their
// partition is not dropped.
func (r *run) keepPartitions(ctx context.Context, before time.Time) error {
	every := r.cfg.Options.PartitionInterval
	if every == 0 {
		every = r.walked.lengths[0] / 8
	}
	var total store.PartitionsResult
	err := r.partitions(ctx, &total, store.PartitionsRequest{Before: before, Every: every, Now: r.now})
	if total != (store.PartitionsResult{}) {
		r.cfg.Logger.Info("inbox: partitions changed", zap.Int(telemetry.FieldDropped, total.Dropped),
			zap.Int(telemetry.FieldMoved, total.Moved), zap.Int(telemetry.FieldCrowded, total.Crowded),
			zap.Int(telemetry.FieldBegan, total.Began))
	}
	return err
}

// partitions repeats a request until nothing is left to read, and where it does not get the locks.
func (r *run) partitions(ctx context.Context, total *store.PartitionsResult, req store.PartitionsRequest) error {
	for tries := 1; ; {
		if err := r.ready(ctx); err != nil {
			return err
		}
		req.Limit = r.limit
		var kept store.PartitionsResult
		err := r.bounded(ctx, func(ctx context.Context) (err error) {
			kept, err = r.cfg.Store.KeepPartitions(ctx, req)
			return err
		})
		total.Add(kept)
		rest := pauseBetweenBatches
		switch {
		case errors.Is(err, store.ErrPartitionsBusy) && tries < partitionTries:
			tries, rest = tries+1, partitionPause
		case err != nil:
			return fmt.Errorf("cleanup: %w", err)
		case kept.Next == 0:
			return nil
		}
		if kept.Next != 0 {
			req.After = kept.Next
		}
		if !routine.Sleep(ctx, rest) {
			return fmt.Errorf("cleanup: %w", ctx.Err())
		}
	}
}

// walkSpans deletes in parts of the walk.
func (r *run) walkSpans(ctx context.Context, req store.CleanupRequest, spans []span) error {
	for _, s := range spans {
		req.Until, req.After = s.until, store.CleanupCursor{ReceivedAt: s.from}
		err := r.waits(r.batches(ctx, func(limit int) (int64, bool, error) {
			req.Limit = limit
			result, err := r.batch(ctx, req)
			r.deleted.Messages += result.Messages
			r.deleted.Statuses += result.Statuses
			r.passed += result.Passed
			if err != nil {
				return 0, false, err
			}
			req.After = result.Next
			return result.Messages + result.Statuses, result.Done || r.givenUp, nil
		}))
		if err != nil {
			return err
		}
		if r.givenUp || r.waitingFor != nil {
			break
		}
	}
	return nil
}

// walkEnded notes a walk, and returns why the archive function failed.
func (r *run) walkEnded(full bool) error {
	if r.waitingFor == nil {
		r.walked.done(r.until, full && !r.givenUp, r.passed == 0 && r.refused == nil)
	}
	if r.refused != nil {
		return fmt.Errorf("cleanup: %w, %d messages stay: %w", ErrArchiveFailed, r.deleted.Unarchived, r.refused)
	}
	return nil
}

func (r *run) batch(ctx context.Context, req store.CleanupRequest) (result store.CleanupResult, err error) {
	if r.cfg.Archive != nil {
		return r.archiveBatch(ctx, req)
	}
	err = r.bounded(ctx, func(ctx context.Context) error {
		result, err = r.cfg.Store.Cleanup(ctx, req)
		return err
	})
	return result, err
}
