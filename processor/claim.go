package processor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
)

// claimer turns claims into attempts.
type claimer struct {
	store interface {
		store.Claimer
		store.Completer
		store.Recoverer
	}
	registry *handler.Registry
	policies map[*handler.Handler]*policy
	opts     Options
	now      func() time.Time
	held     *held
	lanes    *lanes
	settle   func(r result) // for claims that end without an attempt

	// doubt is when to look for claims of ours that we do not know of, because
	// the answer of a claim, or of an accept that claims, was lost, at last at
	// lost; zero if there is no need. See reconcile for when a look ends it.
	doubt time.Time
	lost  time.Time
	// routine is when to look for them although no answer was lost.
	routine time.Time
}

const (
	// routineSweeps is how many sweeps pass between two routine looks.
	routineSweeps = 12
	// routineWindow is how many statuses of each handler key one reads. What is
	// claimed and not run becomes the oldest of its key in time.
	routineWindow = 1000
)

// nextLook is when to look for claims of ours that we do not know of.
func (c *claimer) nextLook() time.Time {
	if !c.doubt.IsZero() && c.doubt.Before(c.routine) {
		return c.doubt
	}
	return c.routine
}

// claim asks for due statuses and sorts out siblings under legacy keys.
func (c *claimer) claim(
	ctx context.Context, workerID string, quotas map[string]scheduler.Quota, at time.Time,
) ([]*task, map[*handler.Handler]bool, error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	req := store.ClaimRequest{WorkerID: workerID, Now: at}
	asked := map[*handler.Handler][]int{} // of each key
	for _, h := range c.registry.Handlers() {
		if n := quotas[h.Key()].Messages; n > 0 {
			asked[h] = split(n, h.Keys())
			for i, key := range h.Keys() {
				limit := store.KeyLimit{HandlerKey: key, Limit: asked[h][i], Lanes: c.policies[h].lanes}
				req.Limits = append(req.Limits, limit)
			}
		}
	}
	claimed, err := c.store.Claim(stmt, req)
	if err != nil {
		c.doubtFromNow()
		c.lanes.doubt() // it may have marked rows and not have looked after them
		return nil, nil, fmt.Errorf("claim: %w", err)
	}
	if claimed.Unlooked != nil {
		c.lanes.unlooked(claimed.Unlooked)
	}
	claims := claimed.Claims
	c.held.add(claims)
	got := map[string]int{}
	attempts := make([]*task, 0, len(claims))
	for _, claim := range claims {
		h, known := c.registry.Lookup(claim.HandlerKey)
		if !known { // only registered keys are asked for
			return nil, nil, fmt.Errorf("claim: the database returned unknown handler key %q", claim.HandlerKey)
		}
		got[claim.HandlerKey]++
		attempts = append(attempts, newTask(claim, h, c.policies[h]))
	}
	short := map[*handler.Handler]bool{}
	for h, limits := range asked {
		short[h] = true
		for i, key := range h.Keys() {
			if got[key] >= limits[i] || slices.Contains(claimed.Behind, key) {
				short[h] = false
			}
		}
	}
	attempts, err = c.resolveSiblings(stmt, attempts)
	return attempts, short, err
}

// split divides a handler's limit over its keys, at least one for each: a
// legacy key's rows are asked for as long as the key is registered.
func split(n int, keys []string) []int {
	quotas := make([]int, len(keys))
	for i := range keys {
		quotas[i] = max(1, n/len(keys))
	}
	quotas[0] = max(1, n-(len(keys)-1)*quotas[len(keys)-1])
	return quotas
}

// reconcile releases claims of this worker that it does not run: those of a
// claim or accept whose answer was lost (contract 5.9). The look reads all
// pending statuses, so it happens after such a failure only, when the statement
// has had its time, and between two claims of this worker and while it waits for
// none that accepts bring, so that it never takes a claim for lost whose answer is
// on its way.
//
// The server may be late: it stood still, or was cut off, and carries out what it
// was sent when the client has given that up long before, just after a look. So
// the looks go on, each after twice the time, for longer than WorkerTimeout: a
// server that is away for so long costs the worker its ID, under which nothing can
// be claimed from then on. What they do not find is a single statement that is
// later than that while heartbeats pass.
//
// Without a lost answer there is a routine look, which reads little: a claim can
// also be left by what no code foresees.
func (c *claimer) reconcile(ctx context.Context, workerID string) (released int, err error) {
	began := time.Now()
	c.routine = began.Add(routineSweeps * c.opts.SweepInterval)
	if c.doubt.IsZero() || began.Before(c.doubt) {
		return c.releaseOldest(ctx, workerID)
	}
	for more := true; more; {
		var n int
		n, more, err = c.releaseLost(ctx, workerID)
		if released += n; err != nil {
			c.lookLater()
			return released, err
		}
	}
	c.doubt = time.Time{}
	if since := began.Sub(c.lost); since < 2*c.opts.WorkerTimeout {
		c.doubt = c.lost.Add(max(2*since, c.opts.StatementTimeout))
	}
	return released, nil
}

// releaseLost releases one page of them, and reports whether there may be more.
// What is held grows by claims and accepts only, so a full page has lost ones;
// those that cannot be released were completed meanwhile, and are in no later
// page.
func (c *claimer) releaseLost(ctx context.Context, workerID string) (released int, more bool, err error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	limit := sweepBatch + c.held.count()
	refs, err := c.store.ClaimsOf(stmt, workerID, limit)
	if err != nil {
		return 0, false, fmt.Errorf("look for claims whose answer was lost: %w", err)
	}
	released, err = c.releaseUnheld(stmt, refs)
	return released, len(refs) == limit, err
}

// releaseOldest releases those among the statuses due longest.
func (c *claimer) releaseOldest(ctx context.Context, workerID string) (released int, err error) {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	refs, err := c.store.OldestClaimsOf(stmt, workerID, c.registry.Keys(), routineWindow)
	if err != nil {
		return 0, fmt.Errorf("look for claims that nothing runs: %w", err)
	}
	return c.releaseUnheld(stmt, refs)
}

// releaseUnheld releases, uncharged, what this worker does not know of.
func (c *claimer) releaseUnheld(stmt context.Context, refs []store.Ref) (released int, err error) {
	var lost []store.Settlement
	var ended []store.Ref
	for _, r := range refs {
		if !c.held.has(r) {
			ended = append(ended, r)
			lost = append(lost, store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
				Locator: r.Locator, ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount})
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

// doubtFromNow: an answer was lost. The look waits until its statement has had
// its time. One that is to come sooner, for an earlier loss, is not put off: answers
// may go on being lost, of accepts that their callers give no time.
func (c *claimer) doubtFromNow() {
	c.lost = time.Now()
	if first := c.lost.Add(c.opts.StatementTimeout); c.doubt.IsZero() || c.doubt.After(first) {
		c.doubt = first
	}
}

func (c *claimer) lookLater() { c.doubt = time.Now().Add(c.opts.StatementTimeout) }

// nextDue asks when the next status of these handlers comes due after at; zero
// if none is known.
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
		return time.Time{}, fmt.Errorf("look for the next due status: %w", err)
	}
	if !ok {
		return time.Time{}, nil
	}
	return due, nil
}

// held knows the statuses this process has claimed and not settled yet.
type held struct {
	mu  sync.Mutex
	ids map[string]int64 // with the claim's version
}

func newHeld() *held { return &held{ids: map[string]int64{}} }

func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ids)
}

func (h *held) add(claims []store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		h.ids[c.StatusID] = max(h.ids[c.StatusID], c.Version) // an answer may come after that of the next claim
	}
}

// has tells whether it knows of this very claim. An earlier one of the status may
// be held for some time after it has ended: its result is stored, the answer is
// lost, and until the completer has asked what became of it the status comes due
// and is claimed again. If that claim's answer is lost too, nobody runs it.
func (h *held) has(r store.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[r.StatusID] == r.Version
}

// drop forgets a claim, unless the status has been claimed anew meanwhile.
func (h *held) drop(c store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[c.StatusID] == c.Version {
		delete(h.ids, c.StatusID)
	}
}
