package processor

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// result is a finished attempt with its verdict, to be stored.
type result struct {
	*task
	verdict
	// tried says that an earlier write returned an error. That write may have been committed all
	// the same.
	tried bool
	// found says that the attempt's commit got no response and was found by reading back.
	found bool
}

// ended reports whether the status is completed or poisoned.
func (r result) ended() bool {
	return r.outcome == handler.AttemptCompleted || r.outcome == superseded || r.outcome == handler.AttemptPoisoned
}

// mayHaveCommitted reports whether the commit of the attempt's transaction got no response and was
// not visible when the status was read back. It may still have committed later.
func (r result) mayHaveCommitted() bool {
	var cut *attempt.Uncharged
	return errors.As(r.failure, &cut) && cut.Unknown
}

// writeGroup stores a batch together or, if the database refuses that, each result alone: a status
// that the database refuses (a damaged page, a trigger of the application) must not block the
// others. left are the results to put aside; refused is how many of them are refused rather than
// locked. An error means that the outcome of the whole batch is unknown.
func (c *completer) writeGroup(
	ctx context.Context, batch []result, careful bool,
) (left []result, refused int, err error) {
	left, err = c.write(ctx, batch, careful)
	if err == nil || store.IsTransient(err) {
		return left, 0, err
	}
	for i := range batch { // one of the two statements may have been committed
		batch[i].tried = true
	}
	for i, r := range batch {
		waiting, err := c.write(ctx, []result{r}, true)
		switch {
		case err == nil:
			left = append(left, waiting...)
			continue
		case store.IsTransient(err): // the same would happen to the others
			c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)-i))
			return append(left, batch[i:]...), refused + len(batch) - i, nil
		}
		left, refused = append(left, r), refused+1
		c.storing.Begin(nil, err, zap.String(telemetry.FieldHandlerKey, r.claim.HandlerKey),
			zap.String(telemetry.FieldMessageID, r.claim.MessageID))
	}
	return left, refused, nil
}

// write stores one batch: the completions in one statement, everything else in another. If careful,
// it skips rows that others have locked and returns their results.
func (c *completer) write(ctx context.Context, batch []result, careful bool) (left []result, err error) {
	locked := store.AwaitLocked
	if careful {
		locked = store.SkipLocked
	}
	var (
		completions = make([]store.Completion, 0, len(batch))
		completes   = make([]int, 0, len(batch))
		settlements []store.Settlement
		settles     []int
		applied     = make([]bool, len(batch))
	)
	for i, r := range batch {
		switch {
		case r.Stored:
			applied[i] = true
		case r.Stale:
		case r.outcome == handler.AttemptCompleted:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeProcessed)), append(completes, i)
		case r.outcome == superseded:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeSuperseded)), append(completes, i)
		default:
			settlements, settles = append(settlements, r.settlement), append(settles, i)
		}
	}
	stmt, cancel := context.WithTimeout(ctx, c.statementTimeout)
	defer cancel()
	if len(completions) > 0 {
		done, err := c.store.Complete(stmt, completions, c.now(), locked)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[completes[k]] = ok
		}
	}
	if len(settlements) > 0 {
		done, err := c.store.Settle(stmt, settlements, locked)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[settles[k]] = ok
		}
	}
	waiting, err := c.readBack(stmt, batch, applied, careful)
	if err != nil {
		return nil, err
	}
	ended := make([]store.Ref, 0, len(batch))
	for i, r := range batch {
		if applied[i] {
			ended = append(ended, r.claim.Ref)
		}
	}
	c.lanes.advance(stmt, ended)
	for i, r := range batch {
		if waiting[i] {
			left = append(left, r)
			continue
		}
		if r.found { // only now, so that nothing waits for the application's hooks
			r.NotifyCommitted()
		}
		c.settled(ctx, r, applied[i])
	}
	return left, nil
}

// readBack reads the rows that the write did not change, before they are counted as stale:
//
//   - A row that a careful write skipped and that still has the claim's version is locked: waiting.
//   - If an earlier write of the result returned an error, it may have committed without a response. So
//     a row that is one version ahead of the claim, in the state we wrote, counts as our own write.
//   - If the attempt's own commit had no response, a row completed at the next version counts as
//     completed by the attempt: only the holder of the claim can complete it at that version.
func (c *completer) readBack(
	ctx context.Context, batch []result, applied []bool, careful bool,
) (waiting []bool, err error) {
	waiting = make([]bool, len(batch))
	var ids []string
	for i, r := range batch {
		if !applied[i] && !r.Stale && (careful || r.tried || r.mayHaveCommitted()) {
			ids = append(ids, r.claim.StatusID)
		}
	}
	if len(ids) == 0 {
		return waiting, nil
	}
	states, err := c.store.States(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, r := range batch {
		if applied[i] || r.Stale {
			continue
		}
		s, found := states[r.claim.StatusID]
		switch {
		case !found:
		case careful && s.Version == r.claim.Version:
			waiting[i] = true
		case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version+1:
			applied[i], batch[i].verdict = true, verdict{outcome: handler.AttemptCompleted}
			batch[i].found = true
		case r.tried:
			applied[i] = s.Version == r.claim.Version+1 && !s.Processing &&
				s.Completed == (r.outcome == handler.AttemptCompleted || r.outcome == superseded) &&
				s.Poisoned == (r.outcome == handler.AttemptPoisoned)
		}
	}
	return waiting, nil
}
