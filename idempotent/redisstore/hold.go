package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// Fractions of the lease.
const (
	renewalsPerLease = 3
	retriesPerLease  = 30 // pauses after a renewal or a finalise that failed
	marginsPerLease  = 6  // see margin
)

// hold renews the claim until end is called, even if ctx has ended, because the body may take a while to notice. The
// body's context, held, is cancelled when the claim is lost. end returns why the claim was lost, if it was, after the
// renewal has ended.
func (s *Store) hold(ctx context.Context, c *claim) (held context.Context, end func() (lost error)) {
	held, cancel := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	late := fmt.Errorf("%w: its renewal did not return in time", idempotent.ErrLost)
	// Most bodies return before the first renewal is due. So the goroutine starts only then.
	first := time.AfterFunc(time.Until(c.until)-s.options.Lease+s.options.Lease/renewalsPerLease, func() {
		// A hook of the client may ignore deadlines. The body is cancelled in time even if a renewal does not return.
		fence := time.AfterFunc(time.Until(c.until)-s.margin(), func() { cancel(late) })
		lost := s.keep(renewing, c, fence)
		fence.Stop()
		if lost != nil {
			cancel(lost)
		}
		ended <- lost
	})
	return held, func() (lost error) {
		stop()
		if !first.Stop() {
			lost = <-ended
		}
		if lost == nil && errors.Is(context.Cause(held), late) {
			lost = late
		}
		cancel(nil)
		return lost
	}
}

// margin is how long before its end a claim that was not renewed counts as lost.
func (s *Store) margin() time.Duration { return s.options.Lease / marginsPerLease }

// keep renews the claim at once and then every third of its lease, more often after a failure. It returns why the claim
// was lost, or nil when ctx ends. fence fires when the claim counts as lost.
//
// By our own clock no other call can have the claim before the margin at the end of the lease. From then on the body
// must be cancelled: by the time it stops, another call may have begun.
func (s *Store) keep(ctx context.Context, c *claim, fence *time.Timer) error {
	margin := s.margin()
	var failed error
	for {
		pause := s.options.Lease / retriesPerLease
		switch renewed, err := s.renew(ctx, c, c.until.Add(-margin)); {
		case ctx.Err() != nil:
			return nil
		case err != nil && (failed == nil || !errors.Is(err, context.DeadlineExceeded)):
			failed = err // keep the last error that says more than that the time was up
		case err != nil:
		case !renewed:
			return fmt.Errorf("%w: its lease had run out when it was to be renewed", idempotent.ErrLost)
		default:
			failed, pause = nil, s.options.Lease/renewalsPerLease
			fence.Reset(time.Until(c.until) - margin)
		}
		// If the process was suspended while the command was running, a positive response is out of date: the claim is
		// lost nevertheless.
		left := time.Until(c.until) - margin
		if left <= 0 {
			if failed == nil {
				failed = errors.New("the answer came too late")
			}
			return fmt.Errorf("%w: it could not be renewed: %w", idempotent.ErrLost, failed)
		}
		if !routine.Sleep(ctx, min(pause, left)) {
			return nil
		}
	}
}

// renew restarts the lease. It returns false if the claim is not ours any more.
func (s *Store) renew(ctx context.Context, c *claim, deadline time.Time) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	sent := time.Now()
	renewed, err := do(ctx, s, s.script(renewScript, c, milliseconds(s.options.Lease)))
	if err != nil || renewed != 1 {
		return false, err
	}
	c.until = sent.Add(s.options.Lease)
	return true, nil
}
