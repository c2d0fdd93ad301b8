package scratch

import (
	"context"
	"fmt"
	"time"
)

// patience is how long nothing may change before a run is given up.
const patience = 45 * time.Second

// ErrStalled says that nothing changes any more, and it is not done.
var ErrStalled = fmt.Errorf("nothing has happened for %s", patience)

// Watch reads how far things are until done says so or fails. It fails with
// ErrStalled if nothing changes any more.
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
			return ErrStalled
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

// Meanwhile does one thing on a goroutine and another here. A failure of either
// ends the context of both, and is what Meanwhile returns when both have ended.
func Meanwhile(ctx context.Context, one, another func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := one(ctx); err != nil {
			cancel(err)
		}
	}()
	if err := another(ctx); err != nil {
		cancel(err)
	}
	<-done
	return context.Cause(ctx)
}
