package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// Screen prints progress: on a terminal in one line that is overwritten, else as a line per second.
// It has one user at a time.
type Screen struct {
	out      io.Writer
	terminal bool
	shown    time.Time
	width    int // of the terminal's line
}

// NewScreen returns a screen that prints to out.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Show prints progress, unless it is too soon after the last.
func (s *Screen) Show(format string, args ...any) {
	interval := time.Second
	if s.terminal {
		interval = 100 * time.Millisecond
	}
	if time.Since(s.shown) < interval {
		return
	}
	s.shown = time.Now()
	line := fmt.Sprintf(format, args...)
	if s.terminal {
		fmt.Fprintf(s.out, "\r%-*s", s.width, line)
		s.width = len(line)
		return
	}
	fmt.Fprintln(s.out, line)
}

// Say prints a line that stays.
func (s *Screen) Say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if s.terminal {
		line = fmt.Sprintf("\r%-*s", s.width, line)
		s.width = 0
	}
	fmt.Fprintln(s.out, line)
}

// patience is how long nothing may change before a run is given up.
const patience = 45 * time.Second

// ErrStalled is returned when nothing changes any more although the run is not done.
var ErrStalled = fmt.Errorf("nothing has happened for %s", patience)

// Watch reads a state repeatedly until done reports true or fails. It fails with ErrStalled if the
// state no longer changes.
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

// Concurrently runs both functions. A failure of either ends the context of both, and is returned
// when both have ended.
func Concurrently(ctx context.Context, first, second func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := first(ctx); err != nil {
			cancel(err)
		}
	}()
	if err := second(ctx); err != nil {
		cancel(err)
	}
	<-done
	return context.Cause(ctx)
}
