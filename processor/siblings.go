package processor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// resolveSiblings keeps a renamed handler from running one message twice. A rolling rename can leave a row under the
// new key and one under the old key. One of them runs, the other is completed as superseded.
//
// The old program does not know the new key, so the row under the legacy key decides. Before a row
// runs, its pending siblings are completed under their versions:
//
//   - If the old program claims a sibling first, our completion finds another version and changes
//     nothing. Our row is postponed until the sibling's result is known.
//   - If our completion comes first, the old program finds nothing left to claim.
//   - If two new programs hold one row each, each sees that the other row is processing. Both postpone
//     theirs by random times, until one program claims alone.
func (c *claimer) resolveSiblings(ctx context.Context, attempts []*task) ([]*task, error) {
	var numbers []int64
	var keys []string
	for _, a := range attempts {
		if len(a.Handler.LegacyKeys()) > 0 && a.claim.Message != nil {
			numbers = append(numbers, a.claim.MessageNumber)
			keys = append(keys, a.Handler.Keys()...)
		}
	}
	if len(numbers) == 0 {
		return attempts, nil
	}
	slices.Sort(keys)
	siblings, err := c.store.Siblings(ctx, numbers, slices.Compact(keys))
	if err != nil {
		c.giveBack(attempts, fmt.Errorf("find siblings: %w", err))
		return nil, fmt.Errorf("claim: find siblings: %w", err)
	}
	own := map[string]bool{}
	for _, a := range attempts {
		own[a.claim.StatusID] = true
	}
	of := map[pair][]store.Sibling{}
	for _, s := range siblings {
		if h, known := c.registry.Lookup(s.HandlerKey); known {
			at := pair{s.MessageNumber, h}
			of[at] = append(of[at], s)
		}
	}
	chosen := map[pair]bool{}
	kept := attempts[:0]
	for _, a := range attempts {
		if a.claim.Message == nil { // the message was deleted, and its statuses with it
			kept = append(kept, a)
			continue
		}
		run, err := c.choose(ctx, a, of[pair{a.claim.MessageNumber, a.Handler}], own, chosen)
		if err != nil {
			c.giveBack([]*task{a}, err)
			continue
		}
		if run {
			kept = append(kept, a)
		}
	}
	return kept, nil
}

type pair struct {
	messageNumber int64
	handler       *handler.Handler
}

// choose decides whether a runs, given all rows of its message and handler.
//
// A row that an operator has retried runs: the operator decided so, and if it ended without a run there would be
// nothing left to retry. So a discarded sibling does not stop it, and a poisoned sibling is superseded by it. If an
// operator retries that sibling meanwhile, its version differs and our row is postponed.
func (c *claimer) choose(
	ctx context.Context, a *task, rows []store.Sibling, own map[string]bool, chosen map[pair]bool,
) (run bool, err error) {
	this := pair{a.claim.MessageNumber, a.Handler}
	retried := a.claim.RequeuedCount > 0
	if chosen[this] { // both rows were claimed together
		c.addResult(result{task: a, verdict: verdict{outcome: superseded}})
		return false, nil
	}
	var others []store.Completion
	var ended []store.Ref
	for _, s := range rows {
		switch {
		case s.StatusID == a.claim.StatusID || (s.Completed && s.Outcome == models.OutcomeSuperseded):
		case retried && s.Completed && s.Outcome == models.OutcomeDiscarded:
		case s.Completed || s.Poisoned && !retried:
			c.addResult(result{task: a, verdict: verdict{outcome: superseded}})
			return false, nil
		case own[s.StatusID]:
			// It was claimed together with this row and will find this one chosen.
		case s.Processing:
			return false, fmt.Errorf("its sibling under handler key %q is being processed", s.HandlerKey)
		default:
			others = append(others, store.Completion{StatusID: s.StatusID, Version: s.Version,
				Outcome: models.OutcomeSuperseded})
			ended = append(ended, s.Ref)
		}
	}
	if len(others) > 0 {
		applied, err := c.store.Complete(ctx, others, c.now(), store.AwaitLocked)
		if err != nil {
			return false, fmt.Errorf("supersede siblings: %w", err)
		}
		if slices.Contains(applied, false) {
			return false, fmt.Errorf("a sibling of message %q was claimed meanwhile", a.claim.MessageID)
		}
		c.lanes.advance(ctx, ended)
	}
	chosen[this] = true
	return true, nil
}

// giveBack releases claims that cannot run now. Random delays keep two programs from colliding over
// the same message again and again.
func (c *claimer) giveBack(attempts []*task, reason error) {
	for _, a := range attempts {
		delay := 100*time.Millisecond + rand.N(c.opts.SweepInterval)
		a.Err = &attempt.Cut{Reason: reason, Delay: delay}
		c.addResult(result{task: a, verdict: a.judge(c.now())})
	}
}
