package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// patience is how long nothing may change before the run is given up.
const patience = 45 * time.Second

// errStalled: the service does nothing any more and is not done.
var errStalled = fmt.Errorf("nothing has happened for %s", patience)

// Progress watches the service's database and shows how far it is: in a line
// of its own on a terminal, else by a line now and then.
type Progress struct {
	out      io.Writer
	terminal bool
	place    *scratch.Place
	child    *Child
	producer *Producer
	statuses int // of all orders together

	shown time.Time
	width int // of the terminal's line
}

// NewProgress makes a progress; statuses is how many there will be.
func NewProgress(out io.Writer, place *scratch.Place, child *Child, producer *Producer, statuses int) *Progress {
	return &Progress{out: out, terminal: isTerminal(out), place: place, child: child, producer: producer, statuses: statuses}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Until watches until enough says so. It fails if the service ends by itself
// or nothing changes any more.
func (p *Progress) Until(ctx context.Context, enough func(context.Context, Tally) (bool, error)) error {
	var last Tally
	changed := time.Now()
	for {
		began := time.Now()
		t, err := ReadTally(ctx, p.place.DB)
		if err != nil {
			return err
		}
		p.show(t)
		if done, err := enough(ctx, t); done || err != nil {
			return err
		}
		switch {
		case p.child.Exited():
			return p.child.unexpected()
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
	line := fmt.Sprintf("produced %d, accepted %d, rejected %d, completed %d of %d, retrying %d, poisoned %d",
		p.producer.Produced(), t.Accepted, t.Rejected, t.Completed, p.statuses, t.Retrying, t.Poisoned)
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
