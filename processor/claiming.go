package processor

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

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

// claim starts a round of claiming, unless one is running, mayTake forbids it, nothing may be due
// or no slot is free. In the last two cases it still starts a round if claims must be reconciled.
func (l *loop) claim() {
	if l.claiming || !l.mayTake() {
		return
	}
	quotas := l.sched.Claim()
	if quotas == nil {
		// Reconcile even if all slots are busy, perhaps for hours: other workers can run lost
		// claims.
		if l.mayReconcile() {
			l.startClaiming(nil)
		}
		return
	}
	l.startClaiming(quotas)
}

// startClaiming starts a round of claiming. If reconciling is due, the round reconciles first, but
// only while no accept may bring claims: a claim whose response is on its way would look lost. For
// the same reason no accept may reserve slots until the round has ended.
func (l *loop) startClaiming(quotas map[string]scheduler.Quota) {
	l.reconciling = l.mayReconcile()
	l.claiming = true
	go l.claimRound(quotas, l.reconciling)
}

// mayReconcile reports whether reconciling is due and no response of an accept is on its way. A routine
// reconciliation waits for such a moment and does not stop accepts from reserving slots. Call it
// only while no claim is running.
func (l *loop) mayReconcile() bool {
	return len(l.reservations) == 0 && (l.reconcileDue() || !time.Now().Before(l.act.claimer.routine))
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
func (l *loop) claimRound(quotas map[string]scheduler.Quota, reconcile bool) {
	var c claimed
	if err := protect(func() { l.reconcileAndClaim(&c, quotas, reconcile) }); err != nil {
		c.err = err
	}
	switch {
	case c.err == nil:
		l.p.claiming.End(nil)
	case l.session.attempts.Err() == nil:
		l.p.claiming.Begin(nil, c.err, zap.Duration(telemetry.FieldTryingAgainAfter, l.p.opts.restartDelay()))
	}
	l.send(event{claimed: &c})
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
