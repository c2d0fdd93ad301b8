package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// claim is one call's claim on the keys of its run.
type claim struct {
	keys  []string // the first one is the handler's present key
	token string
	// until is the end of the lease by our monotonic clock, counted from before the command was sent: in Redis the
	// lease ends later than that.
	until time.Time
}

// Pauses between two checks of another call's claim.
const (
	firstPause = time.Millisecond // as long as a call takes whose body is short
	maxPause   = 750 * time.Millisecond
)

// claim claims the run's keys, or reports that one has been processed. It waits for a live claim of another call. If
// that claim has ended, by release or with its lease, the first call to set the keys gets them.
func (s *Store) claim(ctx context.Context, run idempotent.Run) (c *claim, duplicate bool, err error) {
	c = &claim{token: newToken()}
	for _, key := range run.Keys() {
		c.keys = append(c.keys, s.key(key))
	}
	waitUntil := time.Now().Add(s.options.WaitTimeout)
	retry := routine.Backoff{First: firstPause, Max: maxPause}
	for {
		sent := time.Now()
		made, value, err := s.setIfFree(ctx, c)
		if err != nil {
			s.forget(ctx, c) // it may have been made
			return nil, false, fmt.Errorf("claim: %w", err)
		}
		switch {
		// The value is our own if the client repeated the command after the response was lost, and if a script has
		// claimed the keys.
		case made || value == claimedValue(c.token):
			c.until = sent.Add(s.options.Lease)
			return c, false, nil
		case strings.HasPrefix(value, processedPrefix):
			return nil, true, nil
		case !known(value):
			return nil, false, errForeignValue
		}
		if err := s.wait(ctx, retry.Next(), waitUntil); err != nil {
			return nil, false, err
		}
	}
}

// wait waits for the pause, but not beyond until.
func (s *Store) wait(ctx context.Context, pause time.Duration, until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return idempotent.ErrInProgress
	}
	if !routine.Sleep(ctx, min(pause, left)) {
		return fmt.Errorf("%w: %w", idempotent.ErrInProgress, ctx.Err())
	}
	return nil
}

// giveUp releases a claim whose body has not succeeded, so that the message need not wait for the end of the lease. It
// does so even if ctx has ended, which may be why the body failed. It returns ErrLost if the claim has become another
// call's.
func (s *Store) giveUp(ctx context.Context, c *claim) error {
	switch released, err := do(context.WithoutCancel(ctx), s, s.script(releaseScript, c)); {
	case err != nil:
		return fmt.Errorf("release: %w", err)
	case released < 0:
		return fmt.Errorf("%w: its lease ran out, and another call has claimed it", idempotent.ErrLost)
	}
	return nil // released, or there was nothing to release
}

// forget releases a claim that may have been made although the command failed: its response may be lost, or the command
// may arrive late. If releasing fails too, or comes before the late command, the key waits for the end of the lease.
// The error is dropped, because the caller has the claim's error, which says more.
func (s *Store) forget(ctx context.Context, c *claim) { _ = s.giveUp(ctx, c) }

// finalise replaces the claim by the marker, even if ctx has ended, because the body has succeeded. If that fails it is
// tried again until the end of the lease (once, if ctx has ended): each time the marker is missing the body runs twice.
// A command that the server refuses permanently is not tried again, because waiting would not help. The claim is not
// released, so a command that arrives late can still write the marker.
func (s *Store) finalise(ctx context.Context, c *claim, marker string, retention time.Duration) error {
	for attempt := 1; ; attempt++ {
		kept, err := do(context.WithoutCancel(ctx), s, s.script(finaliseScript, c, marker, milliseconds(retention)))
		switch {
		case err == nil && kept == 1:
			return nil
		case err == nil:
			return fmt.Errorf("%w: its lease had run out when the body succeeded", idempotent.ErrLost)
		case isPermanent(err):
			return fmt.Errorf("%w: the body succeeded, but the marker was refused: %w", idempotent.ErrLost, err)
		case attempt > 1 && (ctx.Err() != nil || !time.Now().Before(c.until)):
			return fmt.Errorf("%w: the body succeeded, but finalise failed %d times: %w", idempotent.ErrLost, attempt, err)
		}
		routine.Sleep(ctx, s.options.Lease/retriesPerLease)
	}
}
