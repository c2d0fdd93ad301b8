package processor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
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
		Workers(ctx context.Context, now time.Time) ([]store.WorkerState, error)
	}
	registry  *registry.Registry
	policies  map[*handler.Handler]*policy
	opts      Options
	now       func() time.Time
	held      *held
	lanes     *lanes
	addResult func(r result) // stores the result of a claim that ends without an attempt
	cursors   cursors
	others    otherKeys // of claims that were left to other programs

	foreign *foreign
	passes  map[string]*pass // over keys that other programs share

	// reconcileAt is when to reconcile claims because the response of a claim, or of an accept that
	// claims, was lost; zero if no response was lost. lostAt is when that happened last. See
	// reconcile for how long reconciling goes on.
	reconcileAt time.Time
	lostAt      time.Time
	// rest is what is left of the walk over all claims that reconciles after a lost response.
	rest []store.ClaimWalk
	// routine is when to reconcile although no response was lost.
	routine time.Time
}

const (
	// routineSweeps is the number of sweep intervals between two routine reconciliations.
	routineSweeps = 12
	// reconcilePart is how long a worker reads claims before it claims again.
	reconcilePart = 50 * time.Millisecond
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
	if err := c.refreshForeign(stmt, at); err != nil {
		return nil, nil, err
	}
	req := store.ClaimRequest{WorkerID: workerID, Now: at}
	var shared []store.KeyLimit
	asked := map[*handler.Handler][]int{} // the limit of each key
	for h := range c.registry.Handlers() {
		if q := quotas[h.Key()]; q.Messages > 0 {
			asked[h] = split(q.Messages, h.Keys())
			atLeast, bytes := split(q.AtLeast, h.Keys()), split(q.Bytes, h.Keys())
			for i, key := range h.Keys() {
				limit := store.KeyLimit{HandlerKey: key, Limit: asked[h][i], Lanes: c.policies[h].lanes,
					AtLeast: atLeast[i], Bytes: bytes[i]}
				if c.foreign.of(key) != nil {
					shared = append(shared, limit)
					continue
				}
				if workerID != "" && limit.Lanes == nil {
					limit.After = c.cursors.after(key, at)
				}
				req.Limits = append(req.Limits, limit)
			}
		}
	}
	claimed, err := c.store.Claim(stmt, req)
	if err != nil {
		return nil, nil, c.claimFailed(err)
	}
	failed := c.addOurs(stmt, req, shared, &claimed)
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
	if failed != nil {
		c.giveBack(attempts, failed)
		return nil, nil, failed
	}
	if attempts, err = c.leaveForeign(stmt, attempts, at); err == nil {
		attempts, err = c.resolveSiblings(stmt, attempts)
	}
	return attempts, short, err
}

// claimFailed notes that a claim may have been made all the same.
func (c *claimer) claimFailed(err error) error {
	c.noteLostResponse()
	c.lanes.recheck() // the claim may have marked rows and not advanced their lanes
	return fmt.Errorf("claim: %w", err)
}

// split divides one of a handler's limits over its keys. Each key gets at least one: rows of a legacy key
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
// of the claim, or of the accept, was lost. It runs only after such a loss, once the lost statement's
// timeout is over. It never runs during a claim of this worker or while an accept may still bring
// claims: a claim whose response is still to come would look like a lost one.
//
// It begins with the front of each handler key and goes on to the end of all keys. Between parts of
// that walk the worker claims: a claim that it makes meanwhile is one that it holds.
//
// The database may carry out a statement long after the client gave it up, for instance because the
// server was suspended or cut off. A single reconciliation could come too early, so we repeat it,
// each time after twice the time, until the response has been lost for two WorkerTimeouts. A server
// that is unreachable for that long costs the worker its ID, and nothing can be claimed under that
// ID then. One case stays uncovered: a single statement that arrives even later while heartbeats
// succeed.
//
// Without a lost response a routine reconciliation reads the front of each key now and then. It reads
// little, and finds claims that were left by causes that the code does not foresee. A status that is
// claimed and never run becomes one of those due longest in time.
func (c *claimer) reconcile(ctx context.Context, workerID string) (released int, err error) {
	began := time.Now()
	c.routine = began.Add(routineSweeps * c.opts.SweepInterval)
	w := walker{store: c.store, timeout: c.opts.StatementTimeout}
	each := func(claims []store.OpenClaim) error {
		n, err := c.releaseUnheld(ctx, workerID, claims)
		released += n
		return err
	}
	rest := c.rest
	if len(rest) == 0 {
		rest, err = w.front(ctx, c.claimable(), each)
	} else {
		rest, err = w.onward(ctx, rest, reconcilePart, each)
	}
	switch {
	case c.reconcileAt.IsZero() || began.Before(c.reconcileAt): // a routine one
	case err != nil:
		c.rest = rest
		c.reconcileLater()
	case len(rest) > 0:
		c.rest = rest // reconcileAt stays due
	default:
		c.rest, c.reconcileAt = nil, time.Time{}
		if since := began.Sub(c.lostAt); since < 2*c.opts.WorkerTimeout {
			c.reconcileAt = c.lostAt.Add(max(2*since, c.opts.StatementTimeout))
		}
	}
	if err != nil {
		return released, fmt.Errorf("reconcile claims: %w", err)
	}
	return released, nil
}

// releaseUnheld releases, uncharged, those claims of this worker that it does not hold in memory.
func (c *claimer) releaseUnheld(
	ctx context.Context, workerID string, claims []store.OpenClaim,
) (released int, err error) {
	var refs []store.Ref
	for _, claim := range claims {
		if claim.WorkerID == workerID && !c.held.has(claim.Ref) {
			refs = append(refs, claim.Ref)
		}
	}
	for lost := range slices.Chunk(refs, sweepBatch) {
		settlements := make([]store.Settlement, len(lost))
		for i, r := range lost {
			settlements[i] = givenBack(r)
		}
		stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
		_, err := c.store.Settle(stmt, settlements, store.AwaitLocked)
		if err == nil {
			released += len(lost)
			c.lanes.advance(stmt, lost)
		}
		cancel()
		if err != nil {
			return released, fmt.Errorf("release claims that nothing runs: %w", err)
		}
	}
	return released, nil
}

// givenBack is the settlement of a claim that is given back, uncharged, to run at once.
func givenBack(r store.Ref) store.Settlement {
	return store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version, ErrorCount: r.ErrorCount,
		AbandonedCount: r.AbandonedCount, InterruptedCount: r.InterruptedCount}
}

// claimable returns the handler keys under which this worker may have claims.
func (c *claimer) claimable() []string { return append(c.registry.Keys(), c.others.all()...) }

// otherKeys are handler keys that this program does not have. It has claimed statuses under them, as the next ones of
// lanes: reconciling reads them, too, because their release may have failed.
type otherKeys struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (o *otherKeys) add(keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys == nil {
		o.keys = map[string]bool{}
	}
	for _, key := range keys {
		o.keys[key] = true
	}
}

func (o *otherKeys) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.keys))
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
// worker can claim nothing afterwards, so that no statement that is still running leaves a claim
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
	each := func(claims []store.OpenClaim) error {
		_, err := c.releaseUnheld(ctx, workerID, claims)
		return err
	}
	w := walker{store: c.store, timeout: c.opts.StatementTimeout}
	rest, err := w.front(ctx, c.claimable(), each)
	for len(rest) > 0 && err == nil {
		rest, err = w.onward(ctx, rest, time.Second, each)
	}
	return err
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
