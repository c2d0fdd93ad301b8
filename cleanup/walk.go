package cleanup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// retentions are those of one inbox, as far as this process knows its handlers.
type retentions struct {
	inbox time.Duration // 0 is for ever
	own   []ownRetention
	// lengths are all that there are, the longest first.
	lengths []time.Duration
	// forEver: some handler keeps its statuses for ever.
	forEver bool
	keys    map[string]bool // of all handlers
}

// ownRetention is that of a handler, for one of its keys.
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
			r.forEver = true
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

// request has the cutoffs of this moment. Foreign keys are those of handlers
// that only other processes of the inbox register: their retention is not
// known here, so they are left to cleaners that know it. What nobody registers
// any more is judged by the inbox's.
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

// walked decides which messages a run looks at, so that its cost does not grow
// with what it keeps. With one retention, everything behind the cutoff is
// looked at each time: that is what is to be deleted, and the poisoned and
// pending. With several (contract 6.2), messages that a short retention has
// passed and a long one keeps may be millions. A run looks at these when they
// pass a retention and for lateCompletion longer, and then not again until
// they pass the next; but every fullEvery'th run looks at everything, and
// finds statuses that completed late. The first run of a process is such a
// full one, because where earlier ones got is not stored.
type walked struct {
	retentions
	every bool // the inbox's retention is for handlers of other processes, too

	mu sync.Mutex
	// at is when the last complete run was: what had passed a retention by
	// then was looked at.
	at   time.Time
	runs int // since the last full one
}

const (
	lateCompletion = time.Hour
	fullEvery      = 24
)

// span is a part of the walk: messages received from (inclusive) until.
type span struct{ from, until time.Time }

// plan returns the spans of a run, in order and apart from each other, and
// whether they are a full walk. kept: statuses stay whatever their age.
func (w *walked) plan(now time.Time, kept bool) (spans []span, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.IsZero() || w.runs+1 >= fullEvery {
		return []span{{until: now.Add(-w.lengths[len(w.lengths)-1])}}, true
	}
	for i, length := range w.lengths {
		next := span{from: w.at.Add(-length - lateCompletion), until: now.Add(-length)}
		if i == 0 && !kept && !w.forEver {
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

// done notes a run that looked at everything it planned; whole is false if it
// had to leave something for the next one, which then looks at it again. It
// counts all the same: a message that no run can take, and every run has to
// leave, must not put off the next full one for ever.
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

// foreignKeys are the handler keys that other workers list and this process
// does not register; none if its retention is for every handler.
func (r *run) foreignKeys(ctx context.Context) ([]string, error) {
	if r.walked.every {
		return nil, nil
	}
	var workers []store.WorkerState
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		workers, err = r.store.Workers(ctx, r.now)
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

// walk deletes statuses and messages (contract 6.1, 6.4).
func (r *run) walk(ctx context.Context) error {
	if len(r.walked.lengths) == 0 {
		return nil
	}
	foreign, err := r.foreignKeys(ctx)
	if err != nil {
		return err
	}
	req := r.walked.request(r.now, foreign)
	spans, full := r.walked.plan(r.now, len(foreign) > 0)
	for _, s := range spans {
		req.Until, req.After = s.until, store.CleanupCursor{ReceivedAt: s.from}
		err := r.batches(ctx, func(limit int) (int64, bool, error) {
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
		})
		if err != nil {
			return err
		}
		if r.givenUp {
			break
		}
	}
	r.walked.done(r.now, full && !r.givenUp, r.passed == 0 && r.refused == nil)
	if r.refused != nil {
		return fmt.Errorf("cleanup: %w, %d messages stay: %w", ErrArchiveFailed, r.deleted.Unarchived, r.refused)
	}
	return nil
}

func (r *run) batch(ctx context.Context, req store.CleanupRequest) (result store.CleanupResult, err error) {
	if r.archive != nil {
		return r.archiveBatch(ctx, req)
	}
	err = r.bounded(ctx, func(ctx context.Context) error {
		result, err = r.store.Cleanup(ctx, req)
		return err
	})
	return result, err
}
