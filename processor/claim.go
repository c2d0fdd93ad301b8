package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// claimer claims statuses and turns them into tasks. It also releases claims of this worker that
// were lost on the way.
type claimer struct {
	store interface {
		store.Claimer
		store.Completer
		store.Recoverer
	}
	registry  *registry.Registry
	policies  map[*handler.Handler]*policy
	opts      Options
	now       func() time.Time
	held      *held
	lanes     *lanes
	addResult func(r result) // stores the result of a claim that ends without an attempt
	cursors   cursors

	// reconcileAt is when to reconcile claims because the response of a claim, or of an accept that
	// claims, was lost; zero if no response was lost. lostAt is when that happened last. See
	// reconcile for how long reconciling goes on.
	reconcileAt time.Time
	lostAt      time.Time
	// routine is when to reconcile although no response was lost.
	routine time.Time
}

const (
	// routineSweeps is the number of sweep intervals between two routine reconciliations.
	routineSweeps = 12
	// routineWindow is how many statuses of each handler key a routine reconciliation reads. It
	// reads those due longest: a status that is claimed and never run becomes one of them in time.
	routineWindow = 1000
)

// nextReconcile returns when to reconcile next.
func (c *claimer) nextReconcile() time.Time {
	if !c.reconcileAt.IsZero() && c.reconcileAt.Before(c.routine) {
		return c.reconcileAt
	}
	return c.routine
}

// claim claims due statuses and resolves siblings under legacy keys. It returns the tasks to run
// and, for each handler that was asked for, whether it had fewer due statuses than its quota.
func (c *claimer) claim(
	ctx context.Context, workerID string, quotas map[string]scheduler.Quota, at time.Time,
) ([]*task, map[*handler.Handler]bool, error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	req := store.ClaimRequest{WorkerID: workerID, Now: at}
	asked := map[*handler.Handler][]int{} // the limit of each key
	for h := range c.registry.Handlers() {
		if n := quotas[h.Key()].Messages; n > 0 {
			asked[h] = split(n, h.Keys())
			for i, key := range h.Keys() {
				limit := store.KeyLimit{HandlerKey: key, Limit: asked[h][i], Lanes: c.policies[h].lanes}
				if workerID != "" && limit.Lanes == nil {
					limit.After = c.cursors.after(key, at)
				}
				req.Limits = append(req.Limits, limit)
			}
		}
	}
	claimed, err := c.store.Claim(stmt, req)
	if err != nil {
		c.noteLostResponse()
		c.lanes.recheck() // the claim may have marked rows and not advanced their lanes
		return nil, nil, fmt.Errorf("claim: %w", err)
	}
	if claimed.LanesErr != nil {
		c.lanes.checkFailed(claimed.LanesErr)
	}
	claims := claimed.Claims
	c.held.add(claims)
	got, end := map[string]int{}, map[string]store.Place{}
	attempts := make([]*task, 0, len(claims))
	for _, claim := range claims { // those of a key in the order of Place
		h, known := c.registry.Lookup(claim.HandlerKey)
		if !known { // cannot happen: only registered keys are asked for
			return nil, nil, fmt.Errorf("claim: the database returned unknown handler key %q", claim.HandlerKey)
		}
		got[claim.HandlerKey]++
		end[claim.HandlerKey] = store.Place{Due: claim.Due, StatusID: claim.StatusID}
		attempts = append(attempts, newTask(claim, h, c.policies[h]))
	}
	for _, limit := range req.Limits {
		c.cursors.note(limit, got[limit.HandlerKey], end[limit.HandlerKey], at)
	}
	short := map[*handler.Handler]bool{}
	for h, limits := range asked {
		short[h] = true
		for i, key := range h.Keys() {
			if got[key] >= limits[i] || slices.Contains(claimed.More, key) {
				short[h] = false
			}
		}
	}
	attempts, err = c.resolveSiblings(stmt, attempts)
	return attempts, short, err
}

// split divides a handler's limit over its keys. Each key gets at least one: rows of a legacy key
// are claimed for as long as the key is registered.
func split(n int, keys []string) []int {
	quotas := make([]int, len(keys))
	for i := range keys {
		quotas[i] = max(1, n/len(keys))
	}
	quotas[0] = max(1, n-(len(keys)-1)*quotas[len(keys)-1])
	return quotas
}

// reconcile releases claims that this worker holds in the database but does not run: the response
// of the claim, or of the accept, was lost. It reads all pending statuses, so it runs only after
// such a loss, once the lost statement's timeout is over. It never runs during a claim of this
// worker or while an accept may still bring claims: a claim whose response is on its way would look
// like a lost one.
//
// The database may carry out a statement long after the client gave it up, for instance because the
// server was suspended or cut off. A single reconciliation could come too early, so we repeat it,
// each time after twice the time, until the response has been lost for two WorkerTimeouts. A server
// that is unreachable for that long costs the worker its ID, and nothing can be claimed under that
// ID then. One case stays uncovered: a single statement that arrives even later while heartbeats
// succeed.
//
// Without a lost response a routine reconciliation runs now and then. It reads little, and finds
// claims that were left by causes that the code does not foresee.
func (c *claimer) reconcile(ctx context.Context, workerID string) (released int, err error) {
	began := time.Now()
	c.routine = began.Add(routineSweeps * c.opts.SweepInterval)
	if c.reconcileAt.IsZero() || began.Before(c.reconcileAt) {
		return c.releaseOldest(ctx, workerID)
	}
	for more := true; more; {
		var n int
		n, more, err = c.releaseLost(ctx, workerID)
		if released += n; err != nil {
			c.reconcileLater()
			return released, err
		}
	}
	c.reconcileAt = time.Time{}
	if since := began.Sub(c.lostAt); since < 2*c.opts.WorkerTimeout {
		c.reconcileAt = c.lostAt.Add(max(2*since, c.opts.StatementTimeout))
	}
	return released, nil
}

// releaseLost releases one page of lost claims, and reports whether there may be more. The page is
// larger than the number of claims we hold, so a full page contains lost claims. Lost claims that
// cannot be released were completed meanwhile, so the next page does not contain them again.
func (c *claimer) releaseLost(ctx context.Context, workerID string) (released int, more bool, err error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	limit := sweepBatch + c.held.count()
	refs, err := c.store.ClaimsOf(stmt, workerID, limit)
	if err != nil {
		return 0, false, fmt.Errorf("find claims whose response was lost: %w", err)
	}
	released, err = c.releaseUnheld(stmt, refs)
	return released, len(refs) == limit, err
}

// releaseOldest releases the lost claims among the statuses that are due longest.
func (c *claimer) releaseOldest(ctx context.Context, workerID string) (released int, err error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	refs, err := c.store.OldestClaimsOf(stmt, workerID, c.registry.Keys(), routineWindow)
	if err != nil {
		return 0, fmt.Errorf("find claims that nothing runs: %w", err)
	}
	return c.releaseUnheld(stmt, refs)
}

// releaseUnheld releases, uncharged, those claims that this worker does not hold in memory.
func (c *claimer) releaseUnheld(stmt context.Context, refs []store.Ref) (released int, err error) {
	var lost []store.Settlement
	var ended []store.Ref
	for _, r := range refs {
		if !c.held.has(r) {
			ended = append(ended, r)
			lost = append(lost, store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
				ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount})
		}
	}
	if len(lost) == 0 {
		return 0, nil
	}
	if _, err := c.store.Settle(stmt, lost, store.AwaitLocked); err != nil {
		return 0, fmt.Errorf("release claims that nothing runs: %w", err)
	}
	c.lanes.advance(stmt, ended)
	return len(lost), nil
}

// noteLostResponse records that a response was lost, and schedules reconcile for when the lost
// statement's timeout is over. It does not postpone an earlier date: accepts without a deadline may
// keep losing responses, and would postpone reconciling again and again.
func (c *claimer) noteLostResponse() {
	c.lostAt = time.Now()
	if first := c.lostAt.Add(c.opts.StatementTimeout); c.reconcileAt.IsZero() || c.reconcileAt.After(first) {
		c.reconcileAt = first
	}
}

// lostResponse reports whether a response was lost for which reconciling is not over.
func (c *claimer) lostResponse() bool { return !c.reconcileAt.IsZero() }

// releaseAll releases whatever the worker has claimed and does not hold, at the end of a stop. The
// worker can claim nothing afterwards, so that no statement that is still on its way leaves a claim
// behind. It tries until ctx ends.
func (c *claimer) releaseAll(ctx context.Context, workerID string) (err error) {
	for {
		if err = c.endWorker(ctx, workerID); err == nil || ctx.Err() != nil {
			return err
		}
		routine.Sleep(ctx, 100*time.Millisecond)
	}
}

// endWorker marks the worker as released, which fails while a claim or an accept of it is open, and
// then releases what is left.
func (c *claimer) endWorker(ctx context.Context, workerID string) error {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	if err := c.store.MarkReleased(stmt, workerID, c.now()); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if _, more, err = c.releaseLost(ctx, workerID); err != nil {
			return err
		}
	}
	return nil
}

func (c *claimer) reconcileLater() { c.reconcileAt = time.Now().Add(c.opts.StatementTimeout) }

// nextDue returns when the next status of these handlers comes due after at; zero if none is known.
func (c *claimer) nextDue(ctx context.Context, handlers []*handler.Handler, at time.Time) (time.Time, error) {
	if len(handlers) == 0 {
		return time.Time{}, nil
	}
	var keys []string
	for _, h := range handlers {
		keys = append(keys, h.Keys()...)
	}
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	due, ok, err := c.store.NextDue(stmt, keys, at)
	if err != nil {
		return time.Time{}, fmt.Errorf("find the next due status: %w", err)
	}
	if !ok {
		return time.Time{}, nil
	}
	return due, nil
}
