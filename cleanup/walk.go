package cleanup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// retentions are those of one inbox.
type retentions struct {
	inbox time.Duration // 0 is for ever
	own   []ownRetention
	// longest is what the last status of any message waits for; 0 is for ever.
	longest time.Duration
}

// ownRetention is that of a handler, for one of its keys.
type ownRetention struct {
	key       string
	retention time.Duration
}

func retentionsOf(opts Options, handlers []*handler.Handler) retentions {
	r := retentions{inbox: opts.Retention}
	seen := map[string]bool{}
	forEver := false
	for _, h := range handlers {
		retention := h.Retention()
		if retention == 0 {
			forEver = forEver || r.inbox == 0
			r.longest = max(r.longest, r.inbox)
			continue
		}
		r.longest = max(r.longest, retention)
		for _, key := range h.Keys() {
			if !seen[key] {
				seen[key] = true
				r.own = append(r.own, ownRetention{key, retention})
			}
		}
	}
	if forEver {
		r.longest = 0
	}
	return r
}

// request has the cutoffs of this moment.
func (r retentions) request(now time.Time) store.CleanupRequest {
	var req store.CleanupRequest
	if r.inbox > 0 {
		req.Cutoff = now.Add(-r.inbox)
	}
	for _, own := range r.own {
		req.HandlerCutoffs = append(req.HandlerCutoffs, store.HandlerCutoff{HandlerKey: own.key, Cutoff: now.Add(-own.retention)})
	}
	return req
}

// walked decides which messages a run looks at, so that its cost does not grow
// with what it keeps. With one retention, everything behind the cutoff is
// looked at each time: that is what is to be deleted, and the poisoned and
// pending. With several (contract 6.2), messages that a short retention has
// passed and a long one keeps may be millions. A run looks at these when they
// pass the short retention and for lateCompletion longer, and then not again
// until they pass the longest, but for every fullEvery'th run, which looks at
// everything: statuses that completed late are found by it. The first run of
// a process is such a full one, because where earlier ones got is not stored.
type walked struct {
	retentions

	mu sync.Mutex
	// reached: all that was received before was looked at by cutoffs as late.
	reached time.Time
	runs    int // since the last full one
}

const (
	lateCompletion = time.Hour
	fullEvery      = 24
)

// span is a part of the walk: messages received from (inclusive) until.
type span struct{ from, until time.Time }

func (w *walked) any() bool { return w.inbox > 0 || len(w.own) > 0 }

// plan returns the spans of a run, and whether they are a full walk.
func (w *walked) plan(now time.Time, latest time.Time) (spans []span, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	whole := []span{{until: latest}}
	if w.reached.IsZero() || w.runs+1 >= fullEvery {
		return whole, true
	}
	var oldest time.Time
	if w.longest > 0 {
		oldest = now.Add(-w.longest)
	}
	from := w.reached.Add(-lateCompletion)
	if !from.After(oldest) {
		return whole, true
	}
	if !oldest.IsZero() {
		spans = append(spans, span{until: oldest})
	}
	return append(spans, span{from, latest}), false
}

// done notes that a run looked at everything it planned; whole is false if it
// had to leave something for the next one.
func (w *walked) done(latest time.Time, full, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !whole:
	case full:
		w.reached, w.runs = latest, 0
	default:
		w.reached = latest
		w.runs++
	}
}

// walk deletes statuses and messages (contract 6.1, 6.4).
func (r *run) walk(ctx context.Context) error {
	req := r.walked.request(r.now)
	latest := req.Latest()
	if latest.IsZero() {
		return nil
	}
	spans, full := r.walked.plan(r.now, latest)
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
	r.walked.done(latest, full, r.passed == 0 && r.refused == nil)
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
