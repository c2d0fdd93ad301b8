package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Ledger compares what a run should have done with what is found afterwards. Its figures are printed
// in the order in which they were added. The zero value balances; a nil Ledger does not.
type Ledger struct {
	// Problems say where the two sides disagree.
	Problems []string
	// OneLine prints all figures in one line.
	OneLine bool

	names  []string
	values map[string]any
}

// Figure adds a figure.
func (l *Ledger) Figure(name string, value any) {
	if l.values == nil {
		l.values = map[string]any{}
	}
	l.names, l.values[name] = append(l.names, name), value
}

// Zero adds a figure that must be 0.
func (l *Ledger) Zero(name string, value int) {
	l.Figure(name, value)
	l.Expect(name, value, 0)
}

// Count returns a figure that is an int.
func (l *Ledger) Count(name string) int {
	n, _ := l.values[name].(int)
	return n
}

// Problem adds a problem.
func (l *Ledger) Problem(format string, args ...any) {
	l.Problems = append(l.Problems, fmt.Sprintf(format, args...))
}

// Expect adds a problem unless both numbers are the same.
func (l *Ledger) Expect(what string, got, want int) {
	if got != want {
		l.Problem("%s: %d, should be %d", what, got, want)
	}
}

// Balanced reports whether there are no problems.
func (l *Ledger) Balanced() bool { return l != nil && len(l.Problems) == 0 }

// mostProblems are printed: a broken ledger tends to repeat itself.
const mostProblems = 20

// Print writes the problems, then the figures.
func (l *Ledger) Print(out io.Writer) {
	for i, problem := range l.Problems {
		if i == mostProblems {
			fmt.Fprintf(out, "… and %d more\n", len(l.Problems)-i)
			break
		}
		fmt.Fprintln(out, "does not balance:", problem)
	}
	format, separator := "%s: %v", "\n"
	if l.OneLine {
		format, separator = "%s %v", ", "
	}
	figures := make([]string, len(l.names))
	for i, name := range l.names {
		figures[i] = fmt.Sprintf(format, name, l.values[name])
	}
	fmt.Fprintln(out, strings.Join(figures, separator))
}

// Once requires that each expected ID is found exactly once, and no other. It counts the IDs that are
// not found, and what is found beyond the first of each.
func Once[T any](l *Ledger, what string, expected map[string]T, found []string) (lost, doubled int) {
	times := count(l, what, expected, found)
	for _, id := range slices.Sorted(maps.Keys(expected)) {
		switch n := times[id]; {
		case n == 0:
			lost++
		case n > 1:
			doubled += n - 1
		}
		l.Expect(id+": "+what, times[id], 1)
	}
	return lost, doubled
}

// AtLeastOnce requires that each expected ID is found, and no other. It counts what is found beyond
// the first of each.
func AtLeastOnce[T any](l *Ledger, what string, expected map[string]T, found []string) (again int) {
	times := count(l, what, expected, found)
	for _, id := range slices.Sorted(maps.Keys(expected)) {
		if times[id] == 0 {
			l.Problem("%s: no %s", id, what)
		}
		again += max(0, times[id]-1)
	}
	return again
}

// count counts the IDs that are found. One that is not expected is a problem.
func count[T any](l *Ledger, what string, expected map[string]T, found []string) map[string]int {
	times := map[string]int{}
	for _, id := range found {
		if _, known := expected[id]; !known {
			l.Problem("%s of unknown %q", what, id)
		}
		times[id]++
	}
	return times
}
