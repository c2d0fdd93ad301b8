package processor

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// claimer claims statuses and turns them into tasks. It also releases claims of this worker that were lost on the way.
type claimer struct {
	*shared
	held      *held
	addResult func(r result) // stores the result of a claim that ends without an attempt
	cursors   cursors
	passes    map[string]*pass // over keys that other programs share

	// reconcileAt is when to reconcile claims because the response of a claim, or of an accept that claims, was lost; zero
	// if no response was lost. lostAt is when that happened last. See reconcile for how long reconciling goes on.
	reconcileAt time.Time
	lostAt      time.Time
	// rest is the rest of the walk over all claims that reconciles after a lost response.
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

func newClaimer(s *shared, h *held, addResult func(result)) *claimer {
	return &claimer{shared: s, held: h, addResult: addResult, cursors: cursors{}, passes: map[string]*pass{},
		routine: time.Now().Add(routineSweeps * s.opts.SweepInterval)}
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
	var sharedKeys []store.KeyLimit
	asked := map[*handler.Handler][]int{} // the limit of each key
	for h := range c.registry.Handlers() {
		if q := quotas[h.Key()]; q.Messages > 0 {
			asked[h] = split(q.Messages, h.Keys())
			atLeast, bytes := split(q.AtLeast, h.Keys()), split(q.Bytes, h.Keys())
			for i, key := range h.Keys() {
				limit := store.KeyLimit{HandlerKey: key, Limit: asked[h][i], Lanes: c.policies[h].lanes,
					AtLeast: atLeast[i], Bytes: bytes[i], Runs: workerID != "" && c.policies[h].runSize > 0}
				if c.foreign.of(key) != nil {
					sharedKeys = append(sharedKeys, limit)
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
	failed := c.addOurs(stmt, req, sharedKeys, &claimed)
	if claimed.LanesErr != nil {
		c.lanes.checkFailed(claimed.LanesErr)
	}
	c.lanes.notifyOthers(claimed.More)
	claims := claimed.Claims
	c.held.add(claims)
	got, end := map[string]int{}, map[string]store.Place{}
	tasks := make([]*task, 0, len(claims))
	for _, claim := range claims { // of each key in the order of Place
		h, known := c.registry.Lookup(claim.HandlerKey)
		if !known { // cannot happen: only registered keys are asked for
			return nil, nil, fmt.Errorf("claim: the database returned unknown handler key %q", claim.HandlerKey)
		}
		got[claim.HandlerKey]++
		end[claim.HandlerKey] = store.Place{Due: claim.Due, StatusID: claim.StatusID}
		tasks = append(tasks, newTask(claim, h, c.policies[h]))
	}
	for _, limit := range req.Limits {
		c.cursors.note(limit, got[limit.HandlerKey], end[limit.HandlerKey], at)
	}
	short := map[*handler.Handler]bool{}
	for h, limits := range asked {
		short[h] = true
		for i, key := range h.Keys() {
			if got[key] >= limits[i] || slices.Contains(claimed.More, key) || got[key] > 0 && c.policies[h].runSize > 0 {
				short[h] = false
			}
		}
	}
	if failed != nil {
		c.giveBack(tasks, failed)
		return nil, nil, failed
	}
	if tasks, err = c.leaveForeign(stmt, tasks, at); err == nil {
		tasks, err = c.resolveSiblings(stmt, tasks)
	}
	return tasks, short, err
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
	return c.store.NextDue(stmt, keys, at)
}

// giveBack releases claims that cannot run now. Random delays keep two programs from colliding over
// the same message again and again.
func (c *claimer) giveBack(tasks []*task, reason error) {
	for _, t := range tasks {
		delay := 100*time.Millisecond + rand.N(c.opts.SweepInterval)
		c.addResult(postponed(t, reason, delay, c.clock.Now()))
	}
}

// resumeFor is how long claims may resume before one begins at the status due longest (contract 5.2).
const resumeFor = time.Second

// cursors decides, by handler key, where claims begin. A claim that begins at the status due longest walks over
// everything that all workers have claimed and not completed. So in a backlog claims resume where the last one ended.
type cursors map[string]cursor

type cursor struct {
	// end is where the last claim ended. If it is nil, claims do not resume until resumeFor is over.
	end   *store.Place
	since time.Time // when a claim last began at the status due longest
}

func (c cursor) expired(at time.Time) bool {
	age := at.Sub(c.since)
	return age < 0 || age >= resumeFor
}

// after returns the place after which a claim begins, nil for the status due longest.
func (c cursors) after(key string, at time.Time) *store.Place {
	if c[key].expired(at) {
		return nil
	}
	return c[key].end
}

// note records a claim. A claim that resumed and got less than its limit may have walked over any
// number of rows that it must not take (see store.KeyLimit), so the next ones do not resume.
func (c cursors) note(limit store.KeyLimit, got int, end store.Place, at time.Time) {
	full, last := got == limit.Limit, c[limit.HandlerKey]
	switch {
	case limit.After != nil && full:
		c[limit.HandlerKey] = cursor{&end, last.since}
	case limit.After != nil:
		c[limit.HandlerKey] = cursor{nil, at}
	case last.end == nil && !last.expired(at):
	case full:
		c[limit.HandlerKey] = cursor{&end, at}
	default:
		delete(c, limit.HandlerKey)
	}
}

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
func (c *claimer) resolveSiblings(ctx context.Context, tasks []*task) ([]*task, error) {
	var numbers []int64
	var keys []string
	for _, t := range tasks {
		if len(t.Handler.LegacyKeys()) > 0 && t.claim.Message != nil {
			numbers = append(numbers, t.claim.MessageNumber)
			keys = append(keys, t.Handler.Keys()...)
		}
	}
	if len(numbers) == 0 {
		return tasks, nil
	}
	slices.Sort(keys)
	siblings, err := c.store.Siblings(ctx, numbers, slices.Compact(keys))
	if err != nil {
		c.giveBack(tasks, fmt.Errorf("find siblings: %w", err))
		return nil, fmt.Errorf("claim: find siblings: %w", err)
	}
	own := map[string]bool{}
	for _, t := range tasks {
		own[t.claim.StatusID] = true
	}
	of := map[pair][]store.Sibling{}
	for _, s := range siblings {
		if h, known := c.registry.Lookup(s.HandlerKey); known {
			at := pair{s.MessageNumber, h}
			of[at] = append(of[at], s)
		}
	}
	chosen := map[pair]bool{}
	kept := tasks[:0]
	for _, t := range tasks {
		if t.claim.Message == nil { // the message was deleted, and its statuses with it
			kept = append(kept, t)
			continue
		}
		run, err := c.choose(ctx, t, of[pair{t.claim.MessageNumber, t.Handler}], own, chosen)
		if err != nil {
			c.giveBack([]*task{t}, err)
			continue
		}
		if run {
			kept = append(kept, t)
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
// operator retries that sibling first, its version differs and our row is postponed.
func (c *claimer) choose(
	ctx context.Context, t *task, rows []store.Sibling, own map[string]bool, chosen map[pair]bool,
) (run bool, err error) {
	this := pair{t.claim.MessageNumber, t.Handler}
	retried := t.claim.RequeuedCount > 0
	if chosen[this] { // both rows were claimed together
		c.addResult(result{task: t, verdict: verdict{outcome: superseded}})
		return false, nil
	}
	var others []store.Completion
	var ended []store.Ref
	for _, s := range rows {
		switch {
		case s.StatusID == t.claim.StatusID || (s.Completed && s.Outcome == models.OutcomeSuperseded):
		case retried && s.Completed && s.Outcome == models.OutcomeDiscarded:
		case s.Completed || s.Poisoned && !retried:
			c.addResult(result{task: t, verdict: verdict{outcome: superseded}})
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
		applied, err := c.store.Complete(ctx, others, c.clock.Now(), store.AwaitLocked)
		if err != nil {
			return false, fmt.Errorf("supersede siblings: %w", err)
		}
		if slices.Contains(applied, false) {
			return false, fmt.Errorf("a sibling of message %q has just been claimed", t.claim.MessageID)
		}
		c.lanes.advance(ctx, ended)
	}
	chosen[this] = true
	return true, nil
}

// errForeign releases a claim, uncharged.
var errForeign = attempt.NewInterruption("another program declares the handler on the message's channel")

// foreign are the namespaces in which other programs declare our handler keys, as far as a claim has met their
// messages. A program that shares no key never reads the workers' rows for it. It is safe for concurrent use.
type foreign struct {
	*shared
	known atomic.Pointer[foreignKeys]
}

type foreignKeys struct {
	leave map[string][]string // by handler key
	read  time.Time
}

// of returns the namespaces whose messages of a handler key are left to other programs.
func (f *foreign) of(key string) []string {
	if known := f.known.Load(); known != nil {
		return known.leave[key]
	}
	return nil
}

// outdated reports whether the known state must be read again, because other programs may have ended.
func (f *foreign) outdated() bool {
	known := f.known.Load()
	return known != nil && time.Since(known.read) >= f.opts.SweepInterval
}

// learn takes the workers' rows that were read at that time.
func (f *foreign) learn(workers []store.WorkerState, read time.Time) {
	keys := foreignKeys{leave: map[string][]string{}, read: read}
	for _, w := range workers {
		if !f.opts.listsKeys(w) {
			continue
		}
		for key, theirs := range w.Namespaces {
			ours, has := f.namespaces[key]
			if has && ours != theirs && !slices.Contains(keys.leave[key], theirs) {
				keys.leave[key] = append(keys.leave[key], theirs)
			}
		}
	}
	if len(keys.leave) == 0 {
		f.known.Store(nil)
		return
	}
	f.known.Store(&keys)
}

// refreshForeign reads the workers' rows again, as long as a key is shared.
func (c *claimer) refreshForeign(ctx context.Context, at time.Time) error {
	if !c.foreign.outdated() {
		return nil
	}
	read := time.Now()
	workers, err := c.store.Workers(ctx, at)
	if err != nil {
		return fmt.Errorf("claim: list workers: %w", err)
	}
	c.foreign.learn(workers, read)
	return nil
}

// leaveForeign releases statuses that another program must run (contract 4.4): it declares the handler in the namespace
// of the message's ID, and we declare it in another. If no program declares it there any more, the handler was moved,
// and we run its statuses. The next claims for the key leave such statuses alone, see claimOurs.
//
// The workers' rows are read only for such messages, and after the claim: a program lists its handlers before it
// consumes for them. A released status stays due, so that a program that drains now and then finds it.
func (c *claimer) leaveForeign(ctx context.Context, tasks []*task, at time.Time) ([]*task, error) {
	if !slices.ContainsFunc(tasks, c.isForeign) {
		return tasks, nil
	}
	read := time.Now()
	workers, err := c.store.Workers(ctx, at)
	if err != nil {
		c.giveBack(tasks, fmt.Errorf("list workers: %w", err))
		return nil, fmt.Errorf("claim: list workers: %w", err)
	}
	c.foreign.learn(workers, read)
	kept := tasks[:0]
	for _, t := range tasks {
		if key := t.claim.HandlerKey; c.isForeign(t) && slices.Contains(c.foreign.of(key), t.claim.Message.Namespace) {
			t.Err = errForeign
			c.addResult(result{task: t, verdict: t.judge(c.clock.Now())})
			continue
		}
		kept = append(kept, t)
	}
	return kept, nil
}

// isForeign reports whether the message came on a channel of another namespace than the channel on which we declare the
// handler.
func (c *claimer) isForeign(t *task) bool {
	return t.claim.Message != nil && t.claim.Message.Namespace != c.namespaces[t.claim.HandlerKey]
}

// pass is a walk over the due statuses of a key that other programs share. Each claim reads one window of
// them, and claims only our own. So neither the number of the others nor their place stops us.
type pass struct {
	at *store.Place // after which the next window begins
	// first is where the first window with a status of ours began, once found is set.
	first *store.Place
	found bool
	spent time.Duration // in reading windows
	// next is when another pass may begin, zero while this one goes on.
	next time.Time
}

// claimOurs claims the statuses of a shared key that other programs do not run. more reports whether the pass goes on.
//
// Once a pass has reached the end it stays there, where new statuses come. For an ordered handler it goes back to the
// first status of ours, because a status that was not first in its lane may be now. The next pass begins at the status
// due longest: it finds statuses that were released or committed late. It comes no sooner than after nine times the
// duration of the read.
func (c *claimer) claimOurs(
	ctx context.Context, req store.ClaimRequest, limit store.KeyLimit,
) (claimed store.Claimed, more bool, err error) {
	p := c.passes[limit.HandlerKey]
	if p == nil || !p.next.IsZero() && !time.Now().Before(p.next) {
		p = &pass{}
		c.passes[limit.HandlerKey] = p
	}
	began := time.Now()
	w, err := c.store.NextWindow(ctx, limit.HandlerKey, p.at, c.foreign.of(limit.HandlerKey), req.Now)
	p.spent += time.Since(began)
	if err != nil {
		return claimed, false, err
	}
	if len(w.StatusIDs) > 0 {
		if !p.found {
			p.found, p.first = true, p.at
		}
		req.Limits, req.Within = []store.KeyLimit{limit}, &w
		claimed, err = c.store.Claim(ctx, req)
		if err != nil || len(claimed.Claims) >= limit.Limit || len(claimed.More) > 0 {
			return claimed, true, err
		}
	}
	if w.End != nil {
		p.at = w.End
		return claimed, true, nil
	}
	if limit.Lanes != nil && p.found {
		p.at = p.first
	}
	if p.next.IsZero() {
		p.next = time.Now().Add(max(resumeFor, 9*p.spent))
	}
	return claimed, false, nil
}

// addOurs adds the claims for shared keys. After an error, claimed holds the claims made before it.
func (c *claimer) addOurs(
	ctx context.Context, req store.ClaimRequest, sharedKeys []store.KeyLimit, claimed *store.Claimed,
) error {
	for _, limit := range sharedKeys {
		ours, more, err := c.claimOurs(ctx, req, limit)
		if err != nil {
			return c.claimFailed(err)
		}
		claimed.Claims = append(claimed.Claims, ours.Claims...)
		claimed.More = append(claimed.More, ours.More...)
		if more {
			claimed.More = append(claimed.More, limit.HandlerKey)
		}
		claimed.LanesErr = cmp.Or(claimed.LanesErr, ours.LanesErr)
	}
	return nil
}

// nextReconcile returns when to reconcile next.
func (c *claimer) nextReconcile() time.Time { return earlier(c.reconcileAt, c.routine) }

// reconcile releases claims that this worker holds in the database but does not run: the response
// of the claim, or of the accept, was lost. It runs only after such a loss, once the lost statement's
// timeout is over. It never runs during a claim of this worker or while an accept may still bring
// claims: a claim whose response is still to come would look like a lost one.
//
// It begins with the front of each handler key and goes on to the end of all keys. Between parts of
// that walk the worker claims: it holds the claims that it makes then.
//
// The database may carry out a statement long after the client gave it up, for instance because the server was
// suspended or cut off. A single reconciliation could come too early, so we repeat it, each time after twice the time,
// until the response has been lost for two WorkerTimeouts. A server that is unreachable for that long costs the worker
// its ID, and nothing can be claimed under that ID then. One case stays uncovered: a single statement that arrives even
// later while heartbeats succeed.
//
// Without a lost response a routine reconciliation reads the front of each key now and then. It reads little, and finds
// claims that were left by causes that the code does not foresee. In time a status that is claimed and never run
// becomes one of the longest due.
func (c *claimer) reconcile(ctx context.Context, workerID string) (released int, err error) {
	began := time.Now()
	c.routine = began.Add(routineSweeps * c.opts.SweepInterval)
	w := walker{c.shared}
	each := func(claims []store.OpenClaim) error {
		n, err := c.releaseUnheld(ctx, workerID, claims)
		released += n
		return err
	}
	rest := c.rest
	if len(rest) == 0 {
		rest, err = w.front(ctx, c.registry.Keys(), each)
	} else {
		rest, err = w.resume(ctx, rest, reconcilePart, each)
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

// releaseUnheld releases, uncharged, the claims of this worker that it does not hold in memory.
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
			settlements[i] = store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
				ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount, InterruptedCount: r.InterruptedCount}
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

// noteLostResponse records that a response was lost, and schedules reconcile for when the lost
// statement's timeout is over. It does not postpone an earlier date: accepts without a deadline may
// keep losing responses, and would postpone reconciling again and again.
func (c *claimer) noteLostResponse() {
	c.lostAt = time.Now()
	c.reconcileAt = earlier(c.reconcileAt, c.lostAt.Add(c.opts.StatementTimeout))
}

// lostResponse reports whether a response was lost for which reconciling is not over.
func (c *claimer) lostResponse() bool { return !c.reconcileAt.IsZero() }

// releaseAll releases everything that the worker has claimed and does not hold, at the end of a stop. The worker can
// claim nothing afterwards, so that no statement that is still running leaves a claim. It tries until ctx ends.
func (c *claimer) releaseAll(ctx context.Context, workerID string) (err error) {
	for {
		if err = c.endWorker(ctx, workerID); err == nil || ctx.Err() != nil {
			return err
		}
		routine.Sleep(ctx, 100*time.Millisecond)
	}
}

// endWorker marks the worker as released, which fails while a claim or an accept of it is open, and then releases the
// remaining claims.
func (c *claimer) endWorker(ctx context.Context, workerID string) error {
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	if err := c.store.MarkReleased(stmt, workerID, c.clock.Now()); err != nil {
		return err
	}
	each := func(claims []store.OpenClaim) error {
		_, err := c.releaseUnheld(ctx, workerID, claims)
		return err
	}
	w := walker{c.shared}
	rest, err := w.front(ctx, c.registry.Keys(), each)
	for len(rest) > 0 && err == nil {
		rest, err = w.resume(ctx, rest, time.Second, each)
	}
	return err
}

func (c *claimer) reconcileLater() { c.reconcileAt = time.Now().Add(c.opts.StatementTimeout) }

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
		h.ids[c.StatusID] = max(h.ids[c.StatusID], c.Version) // an accept's response may arrive after the next claim's
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

// drop forgets a claim, unless the status has been claimed again since.
func (h *held) drop(c store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[c.StatusID] == c.Version {
		delete(h.ids, c.StatusID)
	}
}
