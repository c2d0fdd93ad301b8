package scratch

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Screen shows how far a run is: in a line of its own on a terminal, else by a
// line now and then. It has one user at a time.
type Screen struct {
	out      io.Writer
	terminal bool
	shown    time.Time
	width    int // of the terminal's line
}

// NewScreen makes a screen.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Show shows a state, unless it is too soon after the last.
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
