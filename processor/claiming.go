package processor

import (
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
)

// claimed is what one round of claiming found.
type claimed struct {
	attempts []*attempt
	short    map[*handler.Handler]bool // had fewer due statuses than asked for
	asked    []*handler.Handler        // whose next due status is in next
	next     time.Time                 // when that is due; zero if there is none
	doubt    time.Time                 // when to look for claims whose answer was lost; zero if there is no need
	err      error
}

// claim starts a round of claiming unless one is under way, nothing may be
// due, nothing is free, or the database is too slow for the results already
// waiting to be stored.
func (l *loop) claim() {
	if l.claiming || time.Now().Before(l.notBefore) || !l.session.mayClaim() ||
		l.act.completer.backlog() > 2*l.p.opts.BatchSize+l.p.opts.Concurrency {
		return
	}
	shares := l.board.limits()
	if shares == nil {
		return
	}
	limits := make(map[*handler.Handler]int, len(shares))
	unasked := map[*handler.Handler]bool{}
	for s, n := range shares {
		limits[s.handler] = n
		unasked[s.handler] = !s.asked
		// Set again by a full claim, and by a wake-up that comes while the
		// claim is under way and whose status it may have missed.
		s.more = false
	}
	l.claiming = true
	l.polling.claim()
	go l.claimRound(limits, unasked)
}

// claimRound claims, and asks when the next status comes due for each handler
// that has no more now and was not asked for yet: not only when none has more,
// or one handler's backlog would hide another's due times. Both look at the
// same moment: a status that came due after the claim and before the question
// would be in neither answer.
func (l *loop) claimRound(limits map[*handler.Handler]int, unasked map[*handler.Handler]bool) {
	var c claimed
	if err := protect(func() { l.lookUp(&c, limits, unasked) }); err != nil {
		c.err = err
	}
	c.doubt = l.act.claimer.doubt
	switch {
	case c.err == nil:
		l.p.claimLog.healthy()
	case l.session.attempts.Err() == nil:
		l.p.claimLog.failing("inbox: claiming failed, trying again", c.err, zap.Duration("after", l.p.opts.RestartDelay))
	}
	if !l.send(event{claimed: &c}) {
		l.giveBack(c.attempts) // nobody is left to run them
	}
}

func (l *loop) lookUp(c *claimed, limits map[*handler.Handler]int, unasked map[*handler.Handler]bool) {
	ctx := l.session.attempts
	if err := l.act.claimer.reconcile(ctx, l.session.id); err != nil && ctx.Err() == nil {
		l.p.log.Warn("inbox: will look again for lost claims", zap.Error(err))
	}
	if len(limits) == 0 {
		return
	}
	now := l.p.clock.Now()
	if c.attempts, c.short, c.err = l.act.claimer.claim(ctx, l.session.id, limits, now); c.err != nil {
		return
	}
	for h, short := range c.short {
		if short && unasked[h] {
			c.asked = append(c.asked, h)
		}
	}
	if c.next, c.err = l.act.claimer.nextDue(ctx, c.asked, now); c.err != nil {
		c.asked = nil
	}
}

// noteClaimed queues what was claimed and learns what is left in the database.
func (l *loop) noteClaimed(c *claimed) {
	l.claiming = false
	l.doubt = c.doubt
	if l.polling.claimed(len(c.attempts)) {
		l.poll = time.Now().Add(l.polling.wait)
	}
	if c.err != nil {
		l.notBefore = time.Now().Add(l.p.opts.RestartDelay)
		l.board.wake(nil, true)
	}
	for h, short := range c.short {
		if !short {
			l.board.byHandler[h].more = true
		}
	}
	for _, a := range c.attempts {
		s := l.board.byHandler[a.handler]
		l.enqueue(s, []*attempt{a}, false)
	}
	for _, h := range c.asked {
		l.board.byHandler[h].asked = true
	}
	l.noteDue(c.next)
}

func (l *loop) noteDue(due time.Time) {
	if !due.IsZero() && (l.nextDue.IsZero() || due.Before(l.nextDue)) {
		l.nextDue = due
	}
}
