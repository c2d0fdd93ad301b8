package processor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
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

// held tracks the statuses that this process has claimed and not yet settled.
type held struct {
	mu  sync.Mutex
	ids map[string]int64 // the claim's version by status ID
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
		h.ids[c.StatusID] = max(h.ids[c.StatusID], c.Version) // an accept's response may arrive after that of the next claim
	}
}

// has reports whether this very claim is held. Comparing status IDs alone would hide a lost claim:
//
//  1. The result of an earlier claim is stored, but the response is lost, so we still hold it.
//  2. Before the completer has read the status back, it comes due and is claimed again.
//  3. The response of that claim is lost too. Nothing runs it, although its status ID is held.
func (h *held) has(r store.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[r.StatusID] == r.Version
}

// drop forgets a claim, unless the status has been claimed again meanwhile.
func (h *held) drop(c store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[c.StatusID] == c.Version {
		delete(h.ids, c.StatusID)
	}
}

// claimed is the result of one round of claiming.
type claimed struct {
	attempts []*task
	short    map[*handler.Handler]bool // whether the handler had fewer due statuses than its quota
	asked    []*handler.Handler        // handlers whose next due time was asked
	next     time.Time                 // the earliest next due time of asked; zero if there is none
	err      error
}

// mayTake reports whether the loop may take claims. It may not for a while after a failed claim,
// while the session must not claim, and while too many results wait to be stored because the
// database is slow.
func (l *loop) mayTake() bool {
	return !time.Now().Before(l.notBefore) && l.session.mayClaim() &&
		l.act.completer.backlog() <= 2*l.p.opts.BatchSize+l.p.opts.Concurrency
}

// claim starts rounds of claiming, unless one is running. They end when there is none to begin.
func (l *loop) claim() {
	if l.claiming {
		return
	}
	if r := l.beginRound(); r != nil {
		go l.claimRounds(r)
	}
}

// round is a round of claiming: what it asks for, and whether it reconciles first.
type round struct {
	quotas    map[string]scheduler.Quota
	reconcile bool
}

// beginRound begins a round of claiming, unless mayTake forbids it, nothing may be due or no slot is
// free. In the last two cases it still begins a round if claims must be reconciled, even if all
// slots are busy, perhaps for hours: other workers can run lost claims.
func (l *loop) beginRound() *round {
	if !l.mayTake() {
		return nil
	}
	quotas := l.sched.Claim()
	if quotas == nil && !l.mayReconcile() {
		return nil
	}
	return l.newRound(quotas)
}

// newRound begins a round. If reconciling is due, the round reconciles first, but only while no
// accept may bring claims: a claim whose response is on its way would look lost. For the same reason
// no accept may reserve slots until the round has ended.
func (l *loop) newRound(quotas map[string]scheduler.Quota) *round {
	l.claiming, l.reconciling = true, l.mayReconcile()
	return &round{quotas: quotas, reconcile: l.reconciling}
}

// claimRounds claims, in a round that has begun and in further ones for as long as there is more to
// claim. Each begins as soon as the last one has ended, so that the database does not wait until
// the loop gets its turn among running handlers.
func (l *loop) claimRounds(r *round) {
	for r != nil {
		c := l.claimRound(r)
		r = nil
		l.update(func() {
			l.noteClaimed(c)
			if l.open() {
				l.start()
				r = l.beginRound()
			}
			l.changed.Notify()
		}, func() { l.giveBack(c.attempts, errStopping) })
	}
}

// mayReconcile reports whether reconciling is due and no response of an accept is on its way. A routine
// reconciliation waits for such a moment and does not stop accepts from reserving slots. Call it
// only while no claim is running.
func (l *loop) mayReconcile() bool {
	due := l.reconcileDue() // asked in any case, because it notes the date for accepts that come during the round
	return len(l.reservations) == 0 && (due || !time.Now().Before(l.act.claimer.routine))
}

// reconcileDue reports whether reconciling is due because a response was lost. While a round runs, its
// goroutine owns the claimer, so reconcileDue uses the date that was read before.
func (l *loop) reconcileDue() bool {
	if !l.claiming {
		l.claimerReconcileAt = l.act.claimer.reconcileAt
	}
	return !l.claimerReconcileAt.IsZero() && !time.Now().Before(l.claimerReconcileAt)
}

// claimRound claims, and asks for the next due time of each handler that ran short and whose next
// due time is not known yet. It asks for each such handler, not only when all ran short: otherwise
// one handler's backlog would hide the due times of others. Both statements use the same time, so a
// status that comes due between them cannot be missed by both.
func (l *loop) claimRound(r *round) *claimed {
	var c claimed
	err := routine.Protect("claiming", func() error { l.reconcileAndClaim(&c, r.quotas, r.reconcile); return nil })
	if err != nil {
		c.err = err
	}
	switch {
	case c.err == nil:
		l.p.claiming.End(nil)
	case l.session.attempts.Err() == nil:
		l.p.claiming.Begin(nil, c.err, zap.Duration(telemetry.FieldTryingAgainAfter, l.p.opts.restartDelay()))
	}
	return &c
}

func (l *loop) reconcileAndClaim(c *claimed, quotas map[string]scheduler.Quota, reconcile bool) {
	ctx := l.session.attempts
	if reconcile {
		released, err := l.act.claimer.reconcile(ctx, l.session.id)
		if err != nil && ctx.Err() == nil {
			l.p.log.Warn("inbox: reconciling lost claims failed, trying again", zap.Error(err))
		}
		if released > 0 {
			l.p.log.Warn("inbox: released claims of this worker that nothing runs", zap.Int(telemetry.FieldClaims, released))
			l.p.Wake()
		}
	}
	if len(quotas) == 0 {
		return
	}
	now := l.p.clock.Now()
	if c.attempts, c.short, c.err = l.act.claimer.claim(ctx, l.session.id, quotas, now); c.err != nil {
		return
	}
	for h, short := range c.short {
		if short && quotas[h.Key()].AskNextDue {
			c.asked = append(c.asked, h)
		}
	}
	if c.next, c.err = l.act.claimer.nextDue(ctx, c.asked, now); c.err != nil {
		c.asked = nil
	}
}

// noteClaimed queues the claimed tasks and records what may be left in the database.
func (l *loop) noteClaimed(c *claimed) {
	l.claiming, l.reconciling = false, false
	l.noteLost()
	if l.sched.EndClaim(c.found()) {
		l.poll = time.Now().Add(l.sched.PollWait())
	}
	if c.err != nil {
		l.notBefore = time.Now().Add(l.p.opts.restartDelay())
	}
	for i := range c.attempts {
		l.enqueue(c.attempts[i:i+1:i+1], false)
	}
	l.noteDue(c.next)
}

// found returns the round's result as the scheduler needs it.
func (c *claimed) found() scheduler.Claimed {
	found := scheduler.Claimed{Failed: c.err != nil}
	for _, a := range c.attempts {
		if key := a.Handler.Key(); a.claim.Due.Equal(a.claim.CreatedAt) && !slices.Contains(found.New, key) {
			found.New = append(found.New, key)
		}
	}
	for h, short := range c.short {
		if !short {
			found.Full = append(found.Full, h.Key())
		}
	}
	for _, h := range c.asked {
		found.NextDueKnown = append(found.NextDueKnown, h.Key())
	}
	return found
}

func (l *loop) noteDue(due time.Time) {
	if !due.IsZero() && (l.nextDue.IsZero() || due.Before(l.nextDue)) {
		l.nextDue = due
	}
}
