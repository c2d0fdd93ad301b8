package demo

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// patience is how long nothing may change before a run is given up.
const patience = 45 * time.Second

// Watch reads a state repeatedly until done reports true or fails. It fails if the state no longer changes.
func Watch[T comparable](ctx context.Context, read func(context.Context) (T, error), done func(T) (bool, error)) error {
	var last T
	changed := time.Now()
	for {
		began := time.Now()
		now, err := read(ctx)
		if err != nil {
			return err
		}
		if enough, err := done(now); enough || err != nil {
			return err
		}
		if now != last {
			last, changed = now, time.Now()
		} else if time.Since(changed) > patience {
			return fmt.Errorf("nothing has happened for %s", patience)
		}
		// Reading must not take more than a sixth of the time.
		if err := Pause(ctx, max(10*time.Millisecond, 5*time.Since(began))); err != nil {
			return err
		}
	}
}

// Pause waits for d, or fails when ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Concurrently runs both functions. A failure of either ends the context of both, and is returned
// when both have ended.
func Concurrently(ctx context.Context, first, second func(ctx context.Context) error) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return first(ctx) })
	running.Go(func() error { return second(ctx) })
	return running.Wait()
}
