package processor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// errForeign releases a claim, uncharged.
var errForeign = attempt.NewInterruption("another program declares the handler on the message's channel")

// foreign are the namespaces in which other programs declare our handler keys, as far as a claim has met their
// messages. A program that shares no key never reads the workers' rows for it. It is safe for concurrent use.
type foreign struct {
	opts       Options
	namespaces map[string]string // in which we declare our keys

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

// outdated reports whether what is known must be read again, because other programs may have ended.
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
func (c *claimer) leaveForeign(ctx context.Context, attempts []*task, at time.Time) ([]*task, error) {
	if !slices.ContainsFunc(attempts, c.elsewhere) {
		return attempts, nil
	}
	read := time.Now()
	workers, err := c.store.Workers(ctx, at)
	if err != nil {
		c.giveBack(attempts, fmt.Errorf("list workers: %w", err))
		return nil, fmt.Errorf("claim: list workers: %w", err)
	}
	c.foreign.learn(workers, read)
	kept := attempts[:0]
	for _, a := range attempts {
		if key := a.claim.HandlerKey; c.elsewhere(a) && slices.Contains(c.foreign.of(key), a.claim.Message.Namespace) {
			a.Err = errForeign
			c.addResult(result{task: a, verdict: a.judge(c.now())})
			continue
		}
		kept = append(kept, a)
	}
	return kept, nil
}

// elsewhere reports whether the message came on a channel of another namespace than that of the
// channel on which we declare the handler.
func (c *claimer) elsewhere(a *task) bool {
	return a.claim.Message != nil && a.claim.Message.Namespace != c.foreign.namespaces[a.claim.HandlerKey]
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

// claimOurs claims those statuses of a shared key that other programs do not run. more reports whether
// the pass goes on.
//
// Once a pass has reached the end it stays there, where new statuses come. For an ordered handler it goes back to the
// first status of ours, because what was not first in its lane may be now. The next pass begins at the status due
// longest: it finds what was released or committed late. It comes no sooner than after nine times what reading took.
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

// addOurs adds the claims for shared keys. After an error, what was claimed before it is in claimed.
func (c *claimer) addOurs(
	ctx context.Context, req store.ClaimRequest, shared []store.KeyLimit, claimed *store.Claimed,
) error {
	for _, limit := range shared {
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

// compareNamespaces warns of handler keys that another program declares on a channel of another
// namespace, once of each.
func (f *fleet) compareNamespaces(workers []store.WorkerState) {
	for _, w := range workers {
		if !f.opts.listsKeys(w) {
			continue
		}
		for key, theirs := range w.Namespaces {
			ours, has := f.namespaces[key]
			if !has || ours == theirs || f.split[[2]string{key, theirs}] {
				continue
			}
			f.split[[2]string{key, theirs}] = true
			f.log.Warn("inbox: another program declares a handler key on another channel: each program runs the messages of its own channel, and reads past those of the other; "+
				"give one of the handlers another key, or deploy one version if the handler was moved",
				zap.String(telemetry.FieldHandlerKey, key), zap.String(telemetry.FieldWorker, w.ID),
				zap.String(telemetry.FieldHost, w.Host), zap.String(telemetry.FieldChannel, theirs))
		}
	}
}
