package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// claim is one call's hold on a key.
type claim struct {
	key, token string
	// until is the end of the lease by our monotonic clock, counted from before
	// the command was sent: Redis lets it run out later than that.
	until time.Time
}

// Pauses between two looks at a claim of another call.
const (
	firstPause = 10 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// claim takes the key, or says that it has been processed. A live claim of
// another call is waited for; one that has ended, by release or with its lease,
// is free for whoever comes first.
func (s *Store) claim(ctx context.Context, key idempotent.Key) (c *claim, duplicate bool, err error) {
	c = &claim{key: s.key(key), token: newToken()}
	waitUntil := time.Now().Add(s.options.WaitTimeout)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		sent := time.Now()
		ours, err := s.setIfFree(ctx, c)
		if err != nil {
			s.forget(ctx, c)
			return nil, false, fmt.Errorf("claim: %w", err)
		}
		value := ""
		if !ours {
			if value, err = s.get(ctx, c.key); err != nil {
				s.forget(ctx, c) // it may be ours: see below
				return nil, false, fmt.Errorf("look at the claim: %w", err)
			}
		}
		switch {
		// The value is our own if the client repeated the command after it
		// had lost the answer.
		case ours || value == claimedValue(c.token):
			c.until = sent.Add(s.options.Lease)
			return c, false, nil
		case strings.HasPrefix(value, processedPrefix):
			return nil, true, nil
		case !known(value):
			return nil, false, errForeignValue
		}
		if err := s.wait(ctx, pause, waitUntil); err != nil {
			return nil, false, err
		}
	}
}

// wait waits for about the pause, not beyond the moment until which waiting is
// allowed: waiters that came together do not ask together for ever.
func (s *Store) wait(ctx context.Context, pause time.Duration, until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return idempotent.ErrInProgress
	}
	pause = min(pause/2+rand.N(pause), left)
	if !routine.Sleep(ctx, pause) {
		return fmt.Errorf("%w: %w", idempotent.ErrInProgress, ctx.Err())
	}
	return nil
}

// giveUp releases a claim whose body has not succeeded, so that the message need
// not wait for the lease's end; also when ctx has ended, which may be the reason.
// It returns ErrLost if the claim has become another call's.
func (s *Store) giveUp(ctx context.Context, c *claim) error {
	switch released, err := s.script(context.WithoutCancel(ctx), releaseScript, c); {
	case err != nil:
		return fmt.Errorf("release: %w", err)
	case released < 0:
		return fmt.Errorf("%w: its lease ran out, and another call has claimed it", idempotent.ErrLost)
	}
	return nil // released, or nothing was left to release
}

// forget releases a claim that may have been made though the command failed: its
// answer may be lost, or the command arrive yet. Should this fail too, or be
// overtaken, the key waits for the lease's end. The caller has the error of the
// claim, which says more.
func (s *Store) forget(ctx context.Context, c *claim) { _ = s.giveUp(ctx, c) }

// finalise replaces the claim by the marker, also when ctx has ended: the body
// has succeeded. What failed is asked for again until the lease's end (once, if
// ctx has ended), for each time that the marker is missed the body runs twice;
// but not what the server refuses for good, as nobody is served by the wait.
// The claim is not released: a command that is late can still write the marker.
func (s *Store) finalise(ctx context.Context, c *claim, marker string, retention time.Duration) error {
	for attempt := 1; ; attempt++ {
		kept, err := s.script(context.WithoutCancel(ctx), finaliseScript, c, marker, milliseconds(retention))
		switch {
		case err == nil && kept == 1:
			return nil
		case err == nil:
			return fmt.Errorf("%w: its lease had run out when the body succeeded", idempotent.ErrLost)
		case refusedForGood(err):
			return fmt.Errorf("%w: the body succeeded, but the marker was refused: %w", idempotent.ErrLost, err)
		case attempt > 1 && (ctx.Err() != nil || !time.Now().Before(c.until)):
			return fmt.Errorf("%w: the body succeeded, but finalise failed %d times: %w", idempotent.ErrLost, attempt, err)
		}
		routine.Sleep(ctx, s.options.Lease/retriesPerLease)
	}
}
