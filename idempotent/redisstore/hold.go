package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Parts of the lease.
const (
	renewalsPerLease = 3
	retriesPerLease  = 30 // of a renewal or a finalise that failed
	marginsPerLease  = 6  // before its end a claim that was not renewed counts as lost
)

// hold renews the claim until end is called, also when ctx has ended: the body
// may need a while to notice. The body's context is cancelled when the claim is
// lost; end tells whether it was, and returns when the renewal has ended.
func (s *Store) hold(ctx context.Context, c *claim) (held context.Context, end func() (lost error)) {
	held, cancel := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		lost := s.keep(renewing, c)
		if lost != nil {
			cancel(lost)
		}
		ended <- lost
	}()
	return held, func() error {
		stop()
		lost := <-ended
		cancel(nil)
		return lost
	}
}

// keep renews the claim every third of its lease, oftener after a failure, and
// returns why it was lost, or nil when ctx ends.
//
// Until the margin before the lease's end, by our own clock, nobody else can
// have the claim. Then the body has to know: when it has stopped, another call
// may already have begun.
func (s *Store) keep(ctx context.Context, c *claim) error {
	margin := s.options.Lease / marginsPerLease
	timer := time.NewTimer(time.Until(c.until) - s.options.Lease + s.options.Lease/renewalsPerLease)
	defer timer.Stop()
	var failed error
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		pause := s.options.Lease / retriesPerLease
		switch renewed, err := s.renew(ctx, c, c.until.Add(-margin)); {
		case ctx.Err() != nil:
			return nil
		case err != nil && (failed == nil || !errors.Is(err, context.DeadlineExceeded)):
			failed = err // the last that says more than that time was up
		case err != nil:
		case !renewed:
			return fmt.Errorf("%w: its lease had run out when it was to be renewed", idempotent.ErrLost)
		default:
			failed, pause = nil, s.options.Lease/renewalsPerLease
		}
		// A process that was frozen while the command was under way gets a yes
		// that is out of date: it has lost the claim nevertheless.
		left := time.Until(c.until) - margin
		if left <= 0 {
			if failed == nil {
				failed = errors.New("the answer came too late")
			}
			return fmt.Errorf("%w: it could not be renewed: %w", idempotent.ErrLost, failed)
		}
		timer.Reset(min(pause, left))
	}
}

// renew lets the lease begin anew, unless the claim is not ours any more.
func (s *Store) renew(ctx context.Context, c *claim, deadline time.Time) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	sent := time.Now()
	renewed, err := s.script(ctx, renewScript, c, milliseconds(s.options.Lease))
	if err != nil || renewed != 1 {
		return false, err
	}
	c.until = sent.Add(s.options.Lease)
	return true, nil
}
