package processor

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/routine"
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

// mayTake reports whether the loop may take claims. It may not for a while after a failed claim, while the session must
// not claim, and while too many results wait to be stored because the database is slow.
func (l *loop) mayTake() bool {
	return !time.Now().Before(l.notBefore) && l.session.mayClaim() &&
		l.act.completer.backlog() <= 2*l.p.opts.BatchSize+l.p.opts.Concurrency
}

// claim starts rounds of claiming, unless one is running. They end when there is none to begin.
func (l *loop) claim() {
	if l.round != nil {
		return
	}
	if r := l.beginRound(); r != nil {
		l.act.rounds.Go(func() { l.claimRounds(r) })
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
// accept may bring claims, because a claim that is committed and not yet received would seem lost.
// That is also why no accept may reserve slots until the round has ended.
func (l *loop) newRound(quotas map[string]scheduler.Quota) *round {
	l.round = &round{quotas: quotas, reconcile: l.mayReconcile()}
	return l.round
}

// claimRounds claims, in a round that has begun and in further ones for as long as there is more to
// claim. Each begins as soon as the last one has ended, so that the database does not wait until
// the loop gets its turn among running handlers.
func (l *loop) claimRounds(r *round) {
	var late []*task // claimed after the loop has ended
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
		}, func() { late = c.attempts })
	}
	l.giveBackLate(late)
}

// mayReconcile reports whether reconciling is due and no response of an accept is on its way. A routine reconciliation
// waits for such a moment and does not stop accepts from reserving slots. Call it only while no claim is running.
func (l *loop) mayReconcile() bool {
	due := l.reconcileDue() // asked in any case, because it notes the date for accepts that come during the round
	return len(l.reservations) == 0 && (due || !time.Now().Before(l.act.claimer.routine))
}

// reconcileDue reports whether reconciling is due because a response was lost. While a round runs, its
// goroutine owns the claimer, so reconcileDue uses the date that was read before.
func (l *loop) reconcileDue() bool {
	if l.round == nil {
		l.claimerReconcileAt = l.act.claimer.reconcileAt
	}
	return !l.claimerReconcileAt.IsZero() && !time.Now().Before(l.claimerReconcileAt)
}

// claimRound claims, and asks for the next due time of each handler that ran short and whose next due time is not known
// yet. It asks for each such handler, not only when all ran short: otherwise one handler's backlog would hide the due
// times of others. Both statements use the same time, so a status that comes due between them cannot be missed by both.
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
	attempts := l.session.attempts
	if reconcile {
		released, err := l.act.claimer.reconcile(attempts, l.session.id)
		if err != nil && attempts.Err() == nil {
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
	if c.err = context.Cause(attempts); c.err != nil {
		return
	}
	c.attempts, c.short, c.err = l.act.claimer.claim(l.session.claims, l.session.id, quotas, now)
	if c.err != nil {
		return
	}
	for h, short := range c.short {
		if short && quotas[h.Key()].AskNextDue {
			c.asked = append(c.asked, h)
		}
	}
	if c.next, c.err = l.act.claimer.nextDue(attempts, c.asked, now); c.err != nil {
		c.asked = nil
	}
}

// noteClaimed queues the claimed tasks and records what may be left in the database.
func (l *loop) noteClaimed(c *claimed) {
	l.round = nil
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
