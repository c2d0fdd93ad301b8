package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// claim is one call's claim on the keys of its run.
type claim struct {
	keys []string // the first one is the handler's present key
	// token is unique to a call, which must not take another call's claim for its own, not even one of this process.
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
	c = &claim{token: rand.Text()}
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
		left := time.Until(waitUntil)
		if left <= 0 {
			return nil, false, idempotent.ErrInProgress
		}
		if !routine.Sleep(ctx, min(retry.Next(), left)) {
			return nil, false, fmt.Errorf("%w: %w", idempotent.ErrInProgress, ctx.Err())
		}
	}
}

// giveUp releases a claim whose body has not succeeded, so that the message need not wait for the end of the lease. It
// does so even if ctx has ended, which may be why the body failed. It returns ErrLost if another call has the claim.
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

// Fractions of the lease.
const (
	renewalsPerLease = 3
	retriesPerLease  = 30 // pauses after a renewal or a finalise that failed
	marginsPerLease  = 6  // see margin
)

// hold renews the claim until end is called, even after ctx has ended, as the body may notice late. The body's context
// is cancelled when the claim is lost. end returns why the claim was lost, if it was, after the renewal has ended.
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
		if left <= 0 && failed == nil {
			failed = errors.New("the answer came too late")
		}
		// The fence fires when left is over. The body may then return before this goroutine wakes up.
		if left > 0 && !routine.Sleep(ctx, min(pause, left)) && (failed == nil || time.Until(c.until) > margin) {
			return nil
		}
		if failed != nil && time.Until(c.until) <= margin {
			return fmt.Errorf("%w: it could not be renewed: %w", idempotent.ErrLost, failed)
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

// Prefixes of the values.
const (
	claimedPrefix   = "claimed "
	processedPrefix = "processed "
)

var errForeignValue = errors.New("its key in Redis holds something that is no claim and no marker: give the store a KeyPrefix of its own")

// escaped encodes the characters that have a meaning in a key. Then the last "{" ends the prefix, even if the prefix
// contains one, and each ":" after it ends the message ID or the namespace. So no two keys are the same, not even with
// different prefixes. The text in the braces is the same for all handlers of a message, so that a script may use
// several of its keys in a cluster.
var escaped = strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D")

func (s *Store) key(key idempotent.Key) string {
	message := escaped.Replace(key.MessageID)
	if key.Namespace != "" {
		message += ":" + escaped.Replace(key.Namespace)
	}
	return s.options.KeyPrefix + ":{" + message + "}:" + escaped.Replace(key.HandlerKey)
}

func claimedValue(token string) string { return claimedPrefix + token }

// processedValue returns the value of a marker. It contains the token, so that a finalise whose response was lost
// recognises it when it is repeated.
func processedValue(token string, at time.Time, messageType string) string {
	return processedPrefix + token + " " + at.UTC().Format(time.RFC3339Nano) + " " + messageType
}

// known reports whether a value, or its absence, comes from a store and not from another program.
func known(value string) bool {
	return value == "" || strings.HasPrefix(value, claimedPrefix) || strings.HasPrefix(value, processedPrefix)
}
