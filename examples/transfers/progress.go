package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// patience is how long nothing may change before the run is given up.
const patience = 45 * time.Second

var (
	// errStalled: the workers do nothing any more and are not done.
	errStalled = fmt.Errorf("nothing has happened for %s", patience)
	// errPoisoned: no transfer fails often enough for that.
	errPoisoned = errors.New("a transfer is poisoned: its lane stands still until somebody retries or discards it")
)

// Progress watches the database and shows how far the work is: in a line of
// its own on a terminal, else by a line now and then.
type Progress struct {
	out       io.Writer
	terminal  bool
	place     *scratch.Place
	team      Team
	transfers int // there will be

	shown time.Time
	width int // of the terminal's line
}

// NewProgress makes a progress; transfers is how many there will be.
func NewProgress(out io.Writer, place *scratch.Place, team Team, transfers int) *Progress {
	return &Progress{out: out, terminal: isTerminal(out), place: place, team: team, transfers: transfers}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Until watches until it is enough. It fails if a worker ends by itself, a
// transfer is poisoned, or nothing changes any more.
func (p *Progress) Until(ctx context.Context, enough func(Tally) bool) error {
	var last Tally
	changed := time.Now()
	for {
		began := time.Now()
		t, err := ReadTally(ctx, p.place.DB)
		if err != nil {
			return err
		}
		p.show(t)
		if enough(t) {
			return nil
		}
		if err := p.team.unexpected(); err != nil {
			return err
		}
		switch {
		case t.Poisoned > 0:
			return errPoisoned
		case t != last:
			last, changed = t, time.Now()
		case time.Since(changed) > patience:
			return errStalled
		}
		// Counting must not take more than a sixth of the time.
		if err := pause(ctx, max(10*time.Millisecond, 5*time.Since(began))); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (p *Progress) show(t Tally) {
	interval := time.Second
	if p.terminal {
		interval = 100 * time.Millisecond
	}
	if time.Since(p.shown) < interval {
		return
	}
	p.shown = time.Now()
	line := fmt.Sprintf("accepted %d of %d, completed %d, retrying %d", t.Accepted(), p.transfers, t.Completed, t.Retrying)
	if p.terminal {
		fmt.Fprintf(p.out, "\r%-*s", p.width, line)
		p.width = len(line)
		return
	}
	fmt.Fprintln(p.out, line)
}

// Say prints a line of its own.
func (p *Progress) Say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if p.terminal {
		line = fmt.Sprintf("\r%-*s", p.width, line)
		p.width = 0
	}
	fmt.Fprintln(p.out, line)
}
