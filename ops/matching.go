package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// Bulk configures an action on all matching statuses or rejected messages, or a backfill.
type Bulk struct {
	// DryRun only counts, and leaves an audit row with the count.
	DryRun bool
	// ChunkSize is how many statuses are changed in one transaction, with one audit row: 1 to MaxLimit, 0 for 200.
	// ReAcceptMatching reads so many at a time.
	ChunkSize int
	// Max is the number that was confirmed: the action stops there, and the result reports whether more match by then.
	// 0 is no limit, for a count that was capped.
	Max int64
	// Reason goes into the audit rows of DiscardMatching, but for those of a DryRun: at most 500 characters, or empty.
	// Other actions have none.
	Reason string
	// NotBefore is when RescheduleMatching makes statuses due, see Reschedule. Other actions have none.
	NotBefore time.Time
	// Progress, if not nil, is called after each chunk in the caller's goroutine.
	Progress func(BulkResult)
}

// BulkResult is the result of an action on all matching statuses or rejected messages, or of a backfill.
type BulkResult struct {
	// Matched is the dry run's count; zero otherwise.
	Matched Count
	// Done is how many were retried, discarded, rescheduled, accepted again or added.
	Done int64
	// Skipped is how many matched and were not touched: someone else changed, added or deleted them first, they wait in
	// their lanes, or they are rejected messages of a channel that is not declared here, of a paused handler, of one
	// that runs, or whose accept timed out or lost its connection three times.
	Skipped int64
	// Duplicates is how many of the accepted records held only messages that were known.
	Duplicates int64 `json:",omitempty"`
	// StillBad is how many rejected messages stay, each with its new reason.
	StillBad int64 `json:",omitempty"`
	// Reasons are why rejected messages stay, the most frequent first, 20 at most.
	Reasons []ReasonCount `json:",omitempty"`
	// Scanned is the number of rows that were read, matching or not.
	Scanned int64
	// More means that more than Bulk.Max match by now; these were not touched.
	More bool
}

// RetryMatching retries every poisoned status that matches the filter, in chunks. Each chunk is a transaction with its
// own audit row; one more audit row records the end. Filter.States may contain StatePoisoned, which is the default, and
// StateFailing. The rest of the filter must not be empty: to retry everything, name the handler keys. Each status is
// retried once: if it is poisoned again during the action, it stays poisoned. The end of ctx stops the action between
// two chunks, or rolls back the current one. The result counts the done statuses, also with an error.
//
// Do a DryRun first, have the operator confirm its count, and pass it as Max, because no one has seen the statuses that
// were poisoned since then. Set the filter's To for the same reason.
func (o statusActions) RetryMatching(ctx context.Context, actor Actor, filter Filter, bulk Bulk) (BulkResult, error) {
	return o.actOnMatching(ctx, actor, ActionRetry, filter, bulk)
}

// DiscardMatching discards every poisoned status that matches the filter, in the same way as RetryMatching.
// Filter.States may contain StatePoisoned, which is the default, StateFailing and StatePending, which includes failing
// statuses and those that wait in lanes. Use it to give up the pending statuses of a handler that no program has any
// more. It may skip statuses that a worker claims, or frees in their lanes, during the action: pause the handler first
// to discard all of them.
func (o statusActions) DiscardMatching(ctx context.Context, actor Actor, filter Filter, bulk Bulk) (BulkResult, error) {
	return o.actOnMatching(ctx, actor, ActionDiscard, filter, bulk)
}

// RescheduleMatching reschedules every pending status that matches the filter to Bulk.NotBefore, in the same way as
// RetryMatching. Filter.States may contain StatePending, which is the default and includes failing statuses and those
// that wait in lanes, and StateFailing.
func (o statusActions) RescheduleMatching(ctx context.Context, actor Actor, filter Filter, bulk Bulk) (
	BulkResult, error,
) {
	return o.actOnMatching(ctx, actor, ActionReschedule, filter, bulk)
}

const defaultChunk = 200

// errNothing rolls back a part that changed nothing: it needs no audit row. auditedThrough returns nil for it.
var errNothing = errors.New("nothing was changed")

func (o statusActions) actOnMatching(
	ctx context.Context, actor Actor, action Action, filter Filter, bulk Bulk,
) (BulkResult, error) {
	var result BulkResult
	fail := func(err error) (BulkResult, error) {
		return result, fmt.Errorf("%s matching statuses: %w", action, err)
	}
	if err := actor.check(); err != nil {
		return fail(err)
	}
	f, err := forAction(action, filter)
	if err == nil {
		bulk.NotBefore, err = o.checkDue(bulk.NotBefore)
	}
	if err != nil {
		return fail(err)
	}
	// f keeps the filter as it was given, for the audit.
	filter.ErrorText = o.redactor.Error(redact.Value{}, filter.ErrorText)
	result, err = o.inChunks(ctx, actor, action, allMatching, filter, bulk,
		func(ctx context.Context) (Count, error) { return o.Count(ctx, f.Filter) },
		func(ctx context.Context, bulk Bulk) (BulkResult, error) {
			return o.actOnChunks(ctx, actor, action, f, filter, bulk)
		})
	if err != nil {
		return fail(err)
	}
	return result, nil
}

// inChunks runs a bulk action and adds the audit row of its end. In a dry run it only counts, and adds the row of that.
// given is the filter that these rows have. run gets bulk with its default.
func (o *access) inChunks(ctx context.Context, actor Actor, action Action, target string, given any, bulk Bulk,
	count func(context.Context) (Count, error), run func(context.Context, Bulk) (BulkResult, error),
) (result BulkResult, err error) {
	if bulk, err = bulk.checked(); err != nil {
		return result, err
	}
	if err = bulk.checkReason(action); err != nil {
		return result, err
	}
	if bulk.DryRun {
		matched, err := count(ctx)
		if err == nil {
			err = o.note(ctx, actor, action, target,
				countDetail{Event: "counted", Filter: given, Matched: matched.N, Capped: matched.Capped})
		}
		if err != nil {
			return result, err
		}
		result.Matched = matched
		return result, nil
	}
	result, err = run(ctx, bulk)
	end := endDetail{Event: "ended", Filter: given, Done: result.Done, Duplicates: result.Duplicates,
		StillBad: result.StillBad, Skipped: result.Skipped, More: result.More, Reason: bulk.Reason,
		NotBefore: dueText(action, bulk.NotBefore)}
	if err != nil {
		end.Error = o.redactor.Error(redact.Value{}, err.Error())
	}
	return result, errors.Join(err, o.noteAnyway(ctx, actor, action, target, end))
}

// checked returns bulk with its default.
func (b Bulk) checked() (Bulk, error) {
	if b.ChunkSize == 0 {
		b.ChunkSize = defaultChunk
	}
	_, err := checkLimit(b.ChunkSize)
	if err == nil && b.Max < 0 {
		err = badInput("max", "%d: must be 0 or more", b.Max)
	}
	return b, err
}

// checkReason returns an error if the action has no reason or no time, or the reason does not fit the audit.
func (b Bulk) checkReason(action Action) error {
	if action != ActionDiscard && b.Reason != "" {
		return badInput("reason", "only a discard has one")
	}
	if action != ActionReschedule && !b.NotBefore.IsZero() {
		return badInput("time", "only a reschedule has one")
	}
	return checkText("reason", b.Reason, 0, maxReason)
}

// next returns how many to take in the next chunk. enough means that the confirmed number was taken: the chunk only
// shows whether there are more.
func (b Bulk) next(taken int64) (n int, enough bool) {
	if b.Max == 0 {
		return b.ChunkSize, false
	}
	left := b.Max - taken
	return int(min(int64(b.ChunkSize), max(left, 1))), left <= 0
}

// allMatching is the audit's target of an action on all matching statuses.
const allMatching = "matching statuses"

func (o statusActions) actOnChunks(
	ctx context.Context, actor Actor, action Action, f *filter, given Filter, bulk Bulk,
) (result BulkResult, err error) {
	// A status that fails again after its retry, or is rescheduled, can come again in the order of due times. Each is
	// changed once.
	retried := map[string]bool{}
	for after := (*place)(nil); ; {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		next, enough := bulk.next(result.Done + result.Skipped)
		out, err := o.findChunk(ctx, f, after, next)
		if err != nil {
			return result, err
		}
		out.rows = slices.DeleteFunc(out.rows, func(h hit) bool { return retried[h.ID] })
		if enough { // this was only to see whether there are more
			if result.More, after = len(out.rows) > 0, out.next; result.More || after == nil {
				return result, nil
			}
			continue
		}
		if action == ActionReschedule || action == ActionRetry && slices.Contains(given.States, StateFailing) {
			for _, h := range out.rows {
				retried[h.ID] = true
			}
		}
		done, err := o.actOnChunk(ctx, actor, action, bulk.NotBefore, chunkDetail{Filter: given, Reason: bulk.Reason,
			NotBefore: dueText(action, bulk.NotBefore)}, out.rows)
		if err != nil {
			return result, err
		}
		result.Done += int64(done)
		result.Skipped += int64(len(out.rows) - done)
		result.Scanned += int64(out.looked)
		if bulk.Progress != nil {
			bulk.Progress(result)
		}
		if after = out.next; after == nil {
			return result, nil
		}
	}
}

// forAction checks the filter of an action on all matching statuses.
func forAction(action Action, given Filter) (*filter, error) {
	allowed := map[Action][]State{ActionRetry: {StatePoisoned, StateFailing},
		ActionDiscard:    {StatePoisoned, StateFailing, StatePending},
		ActionReschedule: {StatePending, StateFailing}}[action]
	if slices.ContainsFunc(given.States, func(s State) bool { return !slices.Contains(allowed, s) }) {
		return nil, badInput("state", "only poisoned, failing and pending statuses may be discarded, only poisoned and "+
			"failing ones retried, only pending and failing ones rescheduled")
	}
	if len(given.HandlerKeys) == 0 && given.MessageID == "" && given.Type == "" && given.From.IsZero() &&
		given.To.IsZero() && given.ErrorText == "" && given.Fingerprint == "" {
		return nil, badInput("filter", "it takes every status: name the handler keys")
	}
	if len(given.States) == 0 {
		given.States = allowed[:1]
	}
	f, err := given.checked()
	if err == nil {
		f.acting = true
	}
	return f, err
}

func (o statusActions) findChunk(ctx context.Context, f *filter, after *place, chunk int) (found, error) {
	var out found
	err := untilDatabaseAnswers(ctx, func() (err error) {
		ctx, cancel := o.bounded(ctx)
		defer cancel()
		out, err = o.find(ctx, f, after, chunk)
		return err
	})
	return out, err
}

// actOnChunk changes the rows that are still as they were found. The audit gets detail with these rows.
func (o statusActions) actOnChunk(ctx context.Context, actor Actor, action Action, at time.Time, detail chunkDetail,
	rows []hit,
) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	refs := make([]store.VersionedID, len(rows))
	for i, r := range rows {
		refs[i] = store.VersionedID{ID: r.ID, Version: r.Version}
	}
	// Most plans lock the rows in this order. Two actions that list the same rows by different indexes would otherwise
	// end in a deadlock, chunk after chunk.
	slices.SortFunc(refs, func(a, b store.VersionedID) int { return strings.Compare(a.ID, b.ID) })
	var done []store.ChangedStatus
	err := o.auditedThrough(ctx, actor, action, allMatching, func(ctx context.Context, tx *gorm.DB) (any, error) {
		var err error
		if done, err = o.change(ctx, tx, action, refs, at); err == nil && len(done) == 0 {
			err = errNothing
		}
		detail.Statuses = make([]string, len(done))
		for i, c := range done {
			detail.Statuses[i] = c.ID
		}
		return detail, err
	})
	if err != nil || len(done) == 0 {
		return 0, err
	}
	o.wakeAfter(ctx, o.makesDue(action, at), done)
	return len(done), nil
}

// countDetail is the audit's detail of a dry run.
type countDetail struct {
	Event   string `json:"event"`
	Filter  any    `json:"filter"`
	Matched int64  `json:"matched"`
	Capped  bool   `json:"capped"`
}

// endDetail is the audit's detail of the end.
type endDetail struct {
	Event      string `json:"event"`
	Filter     any    `json:"filter"`
	Done       int64  `json:"done"`
	Duplicates int64  `json:"duplicates,omitempty"`
	StillBad   int64  `json:"still_bad,omitempty"`
	Skipped    int64  `json:"skipped"`
	More       bool   `json:"more"`
	Reason     string `json:"reason,omitempty"`
	NotBefore  string `json:"not_before,omitempty"`
	Error      string `json:"error,omitempty"`
}

// chunkDetail is the audit's detail of a chunk.
type chunkDetail struct {
	Filter    Filter   `json:"filter"`
	Statuses  []string `json:"status_ids"`
	Reason    string   `json:"reason,omitempty"`
	NotBefore string   `json:"not_before,omitempty"`
}
