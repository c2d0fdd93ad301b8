package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// sweepBatch is the number of statuses that one statement of a sweep changes at most.
const sweepBatch = 500

// sweeper recovers claims of dead workers and stuck claims without a worker (see recover), and finds statuses of
// handlers that no program has. Any number of workers may sweep concurrently; the versions make that harmless.
type sweeper struct {
	*shared
	limits *allotments // the worker's
	// poisoned is called for each status that the sweep poisons.
	poisoned func(ctx context.Context, r result)

	silent  map[string]int    // silent workers, and for how many sweeps in a row
	leads   bool              // whether this worker holds the lease
	frontAt time.Time         // when the front of each key was last read, monotonic
	left    bool              // whether claims could not be released then
	rest    []store.ClaimWalk // keys whose walk has not reached its end
	deaths  int               // how many such walks have to end because a worker died
}

// sweep runs the sweeper until ctx ends.
func (p *Processor) sweep(ctx context.Context, h *heart, s *session) {
	sw := &sweeper{shared: p.shared, limits: s.limits,
		poisoned: func(ctx context.Context, r result) { p.reports.CallHooks(ctx, r.event()) }}
	defer sw.leave(ctx, s.id)
	ticker := time.NewTicker(p.opts.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if s.attempts.Err() != nil {
			continue
		}
		err := h.beat(ctx, s)
		if err == nil {
			err = sw.sweep(ctx, s.id, p.fleet)
		}
		switch {
		case err == nil:
			p.recovering.End(nil)
		case ctx.Err() == nil && !errors.Is(err, store.ErrWorkerReleased):
			p.recovering.Begin(nil, err)
		}
	}
}

// sweep does one sweep. The caller's heartbeat must just have succeeded: a worker that is cut off from the database
// must not judge others.
func (s *sweeper) sweep(ctx context.Context, self string, fleet *fleet) error {
	asked := time.Now()
	workers, err := s.workers(ctx)
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if len(workers) > 0 {
		s.clock.Follow(workers[0].Read, asked)
	}
	fleet.check(self, workers, asked)
	pending, err := s.pendingKeys(ctx)
	if err != nil {
		return err
	}
	fleet.compareKeys(pending, workers)
	problems := []error{s.recover(ctx, self, workers, pending), s.limits.adjust(ctx, workers, s.isDead),
		s.prune(ctx, workers)}
	if s.lanes.checkDue() {
		problems = append(problems, s.lanes.check(ctx))
	}
	return errors.Join(problems...)
}

func (s *sweeper) pendingKeys(ctx context.Context) ([]string, error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	pending, err := s.store.PendingKeys(stmt)
	if err != nil {
		return nil, fmt.Errorf("sweep: pending handler keys: %w", err)
	}
	return pending, nil
}

// recoveryLease is the lease of the worker that recovers claims. It expires well before the silence
// of its owner counts as death, so that another worker recovers the owner's claims in time.
const recoveryLease = "recovery"

// recover releases the claims of dead workers, and stuck claims without a worker. Every worker counts
// which others are silent, but only the one that holds the lease reads claims. The lease only saves
// work: the versions make it harmless if two workers recover the same claims.
//
// Claimed statuses are the ones due longest, so a sweep reads the front of each handler key, however many are pending
// after it. Claims may come later in the order: a worker dispatches a new message locally
// while another program stores a million older ones. So each death also starts a walk to the end of
// all keys. It goes on over several sweeps and leaves the database half of the time to others. Without
// a death such walks go on slowly, for claims that were committed after their worker was found dead.
func (s *sweeper) recover(ctx context.Context, self string, workers []store.WorkerState, keys []string) error {
	s.noteSilence(self, workers)
	if err := s.acquireLease(ctx, self); err != nil || !s.leads {
		return err
	}
	known := map[string]bool{}
	var dead []store.WorkerState
	for _, w := range workers {
		known[w.ID] = true
		if !w.Released && s.isDead(w.ID) {
			dead = append(dead, w)
		}
	}
	r := &release{sweeper: s, self: self, known: known}
	each := func(claims []store.OpenClaim) error { return r.claims(ctx, claims) }
	began, urgent := len(s.rest) == 0, s.deaths > 0
	if len(dead) > 0 || s.left || began && urgent || time.Since(s.frontAt) >= s.opts.routineRecovery() {
		rest, err := walker{s.shared}.front(ctx, keys, each)
		s.left = r.left || err != nil
		if err != nil {
			return fmt.Errorf("sweep: recover claims: %w", err)
		}
		if s.frontAt = time.Now(); began {
			s.rest = rest
		}
	}
	part := s.opts.SweepInterval / 50
	if urgent {
		part = s.opts.SweepInterval / 2
	}
	rest, err := walker{s.shared}.resume(ctx, s.rest, part, each)
	if s.rest = rest; err != nil {
		return fmt.Errorf("sweep: recover claims: %w", err)
	}
	if len(rest) == 0 && urgent {
		s.deaths--
	}
	if r.locked {
		s.left = true
		s.leave(ctx, self) // another worker's role may have the right that ours lacks
	}
	return s.markReleased(ctx, dead)
}

// releaseStuck releases, for a drain, stuck claims without a worker at the front of each handler key. After the front
// there are none for long: drains run the statuses before them.
func (s *sweeper) releaseStuck(ctx context.Context) error {
	keys, err := s.pendingKeys(ctx)
	if err != nil {
		return err
	}
	r := &release{sweeper: s}
	_, err = walker{s.shared}.front(ctx, keys, func(claims []store.OpenClaim) error { return r.stuck(ctx, claims) })
	if err != nil {
		return fmt.Errorf("release stuck claims: %w", err)
	}
	return nil
}

// deadAfter is the number of sweeps in a row that must find a worker silent.
const deadAfter = 2

// isDead reports whether enough sweeps in a row have found a worker silent.
func (s *sweeper) isDead(workerID string) bool { return s.silent[workerID] >= deadAfter }

// noteSilence counts for how many sweeps in a row each worker has been silent.
func (s *sweeper) noteSilence(self string, workers []store.WorkerState) {
	silent := map[string]int{}
	for _, w := range workers {
		limit := s.opts.WorkerTimeout
		if w.Stopped {
			limit *= 2 // a worker that stopped in order has no claims that must be released soon
		}
		if w.ID == self || w.Drains || w.SilentFor < limit {
			continue
		}
		silent[w.ID] = s.silent[w.ID] + 1
		// A worker that is released and not stopped has ended its own right to claim in a stop, and may
		// have left claims all the same.
		if silent[w.ID] == deadAfter && !w.Stopped {
			s.frontAt = time.Time{}
			s.lanes.recheck() // the worker may have died before it advanced its lanes
			s.deaths = 1
			if len(s.rest) > 0 {
				s.deaths = 2 // the walk that is going on may have passed the worker's claims
			}
		}
	}
	s.silent = silent
}

// acquireLease takes or renews the lease.
func (s *sweeper) acquireLease(ctx context.Context, self string) error {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	held, err := s.store.AcquireLease(stmt, recoveryLease, self, s.opts.WorkerTimeout/2, s.clock.Now())
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if held && !s.leads {
		s.frontAt = time.Time{} // the worker that had the lease may have left something
	}
	s.leads = held
	return nil
}

// leave gives the lease up, so that another worker need not wait until it expires.
func (s *sweeper) leave(ctx context.Context, self string) {
	if !s.leads {
		return
	}
	s.leads = false
	stmt, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(s.opts.StatementTimeout, time.Second/2))
	defer cancel()
	if err := s.store.ReleaseLease(stmt, recoveryLease, self); err != nil {
		s.log.Info("inbox: releasing the lease failed, it expires by itself", zap.String(telemetry.FieldLock, recoveryLease),
			zap.Error(err))
	}
}

// routineRecovery is the time after which the claims at the front of each handler key are read
// although no worker has died.
func (o Options) routineRecovery() time.Duration {
	return min(o.StuckMessageThreshold/2, routineSweeps*o.SweepInterval)
}

// markReleased marks dead workers that have been silent for twice WorkerTimeout. Until then a sweep
// reads claims each time, because a claim that the worker sent last may still reach the database.
func (s *sweeper) markReleased(ctx context.Context, dead []store.WorkerState) error {
	for _, w := range dead {
		if w.SilentFor < 2*s.opts.WorkerTimeout {
			continue
		}
		s.lanes.recheck() // for the last time: nothing of this worker can follow
		stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
		err := s.store.MarkReleased(stmt, w.ID, s.clock.Now())
		cancel()
		if errors.Is(err, store.ErrWorkerBusy) { // one of its accepts is open, with claims that are not visible yet
			s.evict(ctx, nil, []string{w.ID})
			continue
		}
		if err != nil {
			return fmt.Errorf("sweep: mark worker %s released: %w", w.ID, err)
		}
	}
	return nil
}

// prune deletes the rows of dead workers, and of drains, once their keys no longer count.
func (s *sweeper) prune(ctx context.Context, workers []store.WorkerState) error {
	var ids []string
	for _, w := range workers {
		if (w.Released || w.Drains) && !s.opts.listsKeys(w) {
			ids = append(ids, w.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	if _, err := s.store.DeleteWorkers(stmt, ids); err != nil {
		return fmt.Errorf("sweep: prune workers: %w", err)
	}
	return nil
}

// release releases the claims that one sweep finds.
type release struct {
	*sweeper
	self   string
	known  map[string]bool // workers that have a row
	left   bool            // whether a claim could not be released, because its row is locked
	locked bool            // whether rows stay locked by transactions that could not be ended
}

// claims releases the claims whose worker is gone and those that are stuck without a worker.
func (r *release) claims(ctx context.Context, claims []store.OpenClaim) error {
	if err := r.stuck(ctx, claims); err != nil {
		return err
	}
	if err := r.refreshKnown(ctx, claims); err != nil {
		return err
	}
	var gone []store.OpenClaim
	for _, c := range claims {
		if c.WorkerID != "" && c.WorkerID != r.self && (!r.known[c.WorkerID] || r.isDead(c.WorkerID)) {
			gone = append(gone, c)
		}
	}
	kept, err := r.settle(ctx, gone, r.opts.abandon)
	if err == nil {
		kept, err = r.unchanged(ctx, kept)
	}
	if err != nil || len(kept) == 0 {
		return err
	}
	r.left = true
	ended := r.evict(ctx, kept, nil)
	r.locked = r.locked || ended == 0
	return nil
}

// stuck releases claims without a worker that have reached StuckMessageThreshold.
func (r *release) stuck(ctx context.Context, claims []store.OpenClaim) error {
	before := r.clock.Now().Add(-r.opts.StuckMessageThreshold)
	var stuck []store.OpenClaim
	for _, c := range claims {
		if c.WorkerID == "" && !c.StartedAt.After(before) {
			stuck = append(stuck, c)
		}
	}
	_, err := r.settle(ctx, stuck, r.opts.abandonStuck)
	return err
}

// refreshKnown reads the workers again if a claim has one without a row. The worker may have begun
// since the sweep read them, but not since its claim was read.
func (r *release) refreshKnown(ctx context.Context, claims []store.OpenClaim) error {
	if !slices.ContainsFunc(claims, func(c store.OpenClaim) bool { return c.WorkerID != "" && !r.known[c.WorkerID] }) {
		return nil
	}
	workers, err := r.workers(ctx)
	for _, w := range workers {
		r.known[w.ID] = true
	}
	return err
}

// settle releases claims and returns those that it could not release.
func (r *release) settle(
	ctx context.Context, claims []store.OpenClaim, abandon func(store.Ref, time.Time) store.Settlement,
) (kept []store.Ref, err error) {
	for page := range slices.Chunk(claims, sweepBatch) {
		refs := make([]store.Ref, len(page))
		for i, c := range page {
			refs[i] = c.Ref
		}
		applied, err := r.settleRefs(ctx, refs, func(ref store.Ref) store.Settlement { return abandon(ref, r.clock.Now()) })
		if err != nil {
			return nil, err
		}
		released := map[string]int{}
		for i, ok := range applied {
			if ok {
				released[page[i].WorkerID]++
			} else {
				kept = append(kept, refs[i])
			}
		}
		for worker, n := range released {
			why := "worker " + worker + " is gone"
			if worker == "" {
				why = "claim without a worker is stuck"
			}
			r.log.Warn("inbox: released abandoned claims", zap.String(telemetry.FieldReason, why),
				zap.Int(telemetry.FieldClaims, n))
		}
	}
	return kept, nil
}

// settleRefs writes the state that to returns for each status, and reports which were written. Rows
// that are locked, or have changed since, stay as they are.
func (s *sweeper) settleRefs(
	ctx context.Context, refs []store.Ref, to func(store.Ref) store.Settlement,
) (applied []bool, err error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	settlements := make([]store.Settlement, len(refs))
	for i, r := range refs {
		settlements[i] = to(r)
	}
	applied, err = s.store.Settle(stmt, settlements, store.SkipLocked)
	if err != nil {
		return nil, err
	}
	var ended []store.Ref
	for i, ok := range applied {
		if ok {
			ended = append(ended, refs[i])
		}
	}
	s.lanes.advance(stmt, ended)
	for i, ok := range applied {
		if !ok {
			continue
		}
		if settlements[i].Poisoned {
			s.counters.OfHandler(telemetry.Poisoned, refs[i].HandlerKey, 1)
			s.log.Error("inbox: message poisoned", zap.String(telemetry.FieldHandlerKey, refs[i].HandlerKey),
				zap.String(telemetry.FieldMessageID, refs[i].MessageID),
				zap.Stringp(telemetry.FieldLastError, settlements[i].LastError))
			text := settlements[i].LastError
			s.poisoned(ctx, result{task: &task{claim: store.Claim{Ref: refs[i]}},
				verdict: poisonedBy(settlements[i], text, errors.New(*text))})
		} else {
			s.counters.OfHandler(telemetry.Recovered, refs[i].HandlerKey, 1)
			if next := settlements[i].NextAttemptAt; next != nil {
				s.wakeup.at(*next)
			}
		}
	}
	return applied, nil
}

// unchanged returns the claims that are still as they were read: their rows are locked. The others
// have ended, or another sweeper has released them.
func (r *release) unchanged(ctx context.Context, refs []store.Ref) ([]store.Ref, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	stmt, cancel := context.WithTimeout(ctx, r.opts.StatementTimeout)
	defer cancel()
	states, err := r.store.States(stmt, refs)
	if err != nil {
		return nil, fmt.Errorf("read claims that could not be released: %w", err)
	}
	return slices.DeleteFunc(refs, func(ref store.Ref) bool {
		state, found := states[ref.StatusID]
		return !found || state.Version != ref.Version
	}), nil
}

// evict ends the open transactions that lock claims of dead workers, or accept for them. If a worker was cut
// off, or its machine lost power, the server may keep a transaction open until TCP gives up, hours later. The
// next sweep finds the rows unlocked.
func (s *sweeper) evict(ctx context.Context, kept []store.Ref, dead []string) (ended int) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	ended, err := s.store.EvictHolders(stmt, kept, dead)
	if err != nil { // the database role may lack the permission
		s.log.Warn("inbox: transactions that dead workers left open cannot be ended, their statuses wait for the server to give them up",
			zap.Error(err))
	}
	if ended > 0 {
		s.log.Warn("inbox: ended transactions that dead workers left open", zap.Int(telemetry.FieldTransactions, ended))
	}
	return ended
}

// abandon returns the result of recovery for a claim whose worker vanished. The claim is released with a backoff, so
// that suspects drift apart, or poisoned when too many workers have vanished while running it.
func (o Options) abandon(r store.Ref, now time.Time) store.Settlement {
	s := store.Settlement{StatusID: r.StatusID, HandlerKey: r.HandlerKey, Version: r.Version,
		ErrorCount: r.ErrorCount, AbandonedCount: r.AbandonedCount + 1,
		InterruptedCount: r.InterruptedCount, FailedAt: now}
	if s.AbandonedCount >= o.MaxAbandoned {
		text := "workers vanish while running it"
		s.Poisoned, s.LastError = true, &text
		return s
	}
	next := now.Add(attempt.Backoff(s.AbandonedCount, o.MaxRetryDelay))
	s.NextAttemptAt = &next
	return s
}

// abandonStuck is abandon for a drain's claim, which has no worker. The first time the status is
// due at once: it has waited for StuckMessageThreshold already, and a program that is killed during
// a drain is usually not the message's fault.
func (o Options) abandonStuck(r store.Ref, now time.Time) store.Settlement {
	s := o.abandon(r, now)
	if s.NextAttemptAt != nil && r.AbandonedCount == 0 {
		s.NextAttemptAt = &now
	}
	return s
}

// walker reads claims page by page, each by a statement that reads a bounded number of rows.
type walker struct{ *shared }

// front reads each handler key from the status due longest on, until a page of it has no claims. It returns the rest of
// the keys.
func (w walker) front(
	ctx context.Context, keys []string, each func([]store.OpenClaim) error,
) (rest []store.ClaimWalk, err error) {
	walks := make([]store.ClaimWalk, len(keys))
	for i, key := range keys {
		walks[i].HandlerKey = key
	}
	for len(walks) > 0 {
		some := walks[:min(len(walks), store.ClaimWalks)]
		walks = walks[len(some):]
		pages, err := w.read(ctx, some)
		if err != nil {
			return nil, err
		}
		for i, page := range pages {
			if err := each(page.Claims); err != nil {
				return nil, err
			}
			next := store.ClaimWalk{HandlerKey: some[i].HandlerKey, After: page.Next}
			switch {
			case page.Next == nil:
			case len(page.Claims) > 0:
				walks = append(walks, next)
			default:
				rest = append(rest, next)
			}
		}
	}
	return rest, nil
}

// resume continues walks for some time, by one page at least, and returns the unfinished ones.
func (w walker) resume(
	ctx context.Context, rest []store.ClaimWalk, some time.Duration, each func([]store.OpenClaim) error,
) ([]store.ClaimWalk, error) {
	for end := time.Now().Add(some); len(rest) > 0; {
		pages, err := w.read(ctx, rest[:1])
		if err != nil {
			return rest, err
		}
		if err := each(pages[0].Claims); err != nil {
			return rest, err
		}
		if rest[0].After = pages[0].Next; rest[0].After == nil {
			rest = rest[1:]
		}
		if time.Now().After(end) {
			break
		}
	}
	return rest, nil
}

func (w walker) read(ctx context.Context, walks []store.ClaimWalk) ([]store.OpenClaims, error) {
	stmt, cancel := context.WithTimeout(ctx, w.opts.StatementTimeout)
	defer cancel()
	return w.store.OpenClaims(stmt, walks)
}
