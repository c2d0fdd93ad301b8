package scratch

import (
	"fmt"
	"io"
)

// Ledger is a pointer to what was done and what is found, side by side, which a
// run is judged by. A nil one is none: neither method is called then.
type Ledger interface {
	comparable
	// Balanced reports whether the sides agree.
	Balanced() bool
	// Print writes the problems, if any, and the figures.
	Print(out io.Writer)
}

// Failed reports whether a run has come to anything but a ledger that balances.
func Failed[L Ledger](ledger L, err error) bool {
	var none L
	return err != nil || ledger == none || !ledger.Balanced()
}

// Problems say where the sides of a ledger disagree; none means that they
// balance. A Ledger embeds them.
type Problems []string

// Problem adds one.
func (p *Problems) Problem(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}

// Balanced reports whether there are none.
func (p Problems) Balanced() bool { return len(p) == 0 }

// mostProblems are printed; a broken ledger tends to repeat itself.
const mostProblems = 20

// Print writes the first ones, and how many more there are.
func (p Problems) Print(out io.Writer) {
	for i, problem := range p {
		if i == mostProblems {
			fmt.Fprintf(out, "… and %d more\n", len(p)-i)
			break
		}
		fmt.Fprintln(out, "does not balance:", problem)
	}
}
