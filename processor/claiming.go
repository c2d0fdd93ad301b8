package processor

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/scheduler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// claimed is what one round of claiming found.
type claimed struct {
	attempts []*task
	short    map[*handler.Handler]bool // had fewer due statuses than asked for
	asked    []*handler.Handler        // whose next due status is in next
	next     time.Time                 // when that is due; zero if there is none
	err      error
}

// mayTake is false after a claim that failed, while the worker must not claim,
// and while the database is too slow for the results already waiting to be
// stored.
func (l *loop) mayTake() bool {
	return !time.Now().Before(l.notBefore) && l.session.mayClaim() &&
		l.act.completer.backlog() <= 2*l.p.opts.BatchSize+l.p.opts.Concurrency
}

// claim starts a round of claiming unless one is under way, nothing may be
// due, nothing is free, or it may not. If nothing is free, or due, the round may be
// for a look for lost claims alone.
func (l *loop) claim() {
	if l.claiming || !l.mayTake() {
		return
	}
	quotas := l.sched.Claim()
	if quotas == nil {
		// Handlers may be busy for hours; what is claimed and lost others can run.
		if l.mayLook() {
			l.startClaiming(nil)
		}
		return
	}
	l.startClaiming(quotas)
}

// startClaiming begins a round. It looks for lost claims, if that is due, only
// while no accept may bring any: one whose answer is on its way would be taken
// for lost. Until the round is over none may be promised either.
func (l *loop) startClaiming(quotas map[string]scheduler.Quota) {
	l.reconciling = l.mayLook()
	l.claiming = true
	go l.claimRound(quotas, l.reconciling)
}

// mayLook: a look is due, and no answer is on its way that it would take for lost.
// A routine look waits for such a moment, and keeps no accept from handing off. No
// claim is under way.
func (l *loop) mayLook() bool {
	return len(l.promised) == 0 && (l.lookDue() || !time.Now().Before(l.act.claimer.routine))
}

// lookDue: claims are to be looked for whose answer was lost. While a round is
// under way, the claimer is that one's: what was known before is what counts.
func (l *loop) lookDue() bool {
	if !l.claiming {
		l.lookAt = l.act.claimer.doubt
	}
	return !l.lookAt.IsZero() && !time.Now().Before(l.lookAt)
}

// claimRound claims, and asks when the next status comes due for each handler
// that has no more now and was not asked for yet: not only when none has more,
// or one handler's backlog would hide another's due times. Both look at the
// same moment: a status that came due after the claim and before the question
// would be in neither answer.
func (l *loop) claimRound(quotas map[string]scheduler.Quota, reconcile bool) {
	var c claimed
	if err := protect(func() { l.lookUp(&c, quotas, reconcile) }); err != nil {
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

func (l *loop) lookUp(c *claimed, quotas map[string]scheduler.Quota, reconcile bool) {
	ctx := l.session.attempts
	if reconcile {
		released, err := l.act.claimer.reconcile(ctx, l.session.id)
		if err != nil && ctx.Err() == nil {
			l.p.log.Warn("inbox: will look again for lost claims", zap.Error(err))
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

// noteClaimed queues what was claimed and learns what is left in the database.
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

// found is what the scheduler learns of it.
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
