package demo

import (
	"fmt"
	"io"
	"maps"
	"os"
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

	figures []figure
}

type figure struct {
	name  string
	value any
}

// Figure adds a figure.
func (l *Ledger) Figure(name string, value any) { l.figures = append(l.figures, figure{name, value}) }

// Zero adds a figure that must be 0.
func (l *Ledger) Zero(name string, value int) {
	l.Figure(name, value)
	l.Expect(name, value, 0)
}

// Positive adds a figure that must be above 0.
func (l *Ledger) Positive(name string, value int) {
	l.Figure(name, value)
	if value <= 0 {
		l.Problem("%s: %d, should be above 0", name, value)
	}
}

// Count returns a figure that is an int.
func (l *Ledger) Count(name string) int {
	for _, f := range l.figures {
		if n, ok := f.value.(int); ok && f.name == name {
			return n
		}
	}
	return 0
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

// maxProblems are printed: a broken ledger tends to repeat itself.
const maxProblems = 20

// Print writes the problems, then the figures.
func (l *Ledger) Print(out io.Writer) {
	for i, problem := range l.Problems {
		if i == maxProblems {
			fmt.Fprintf(out, "… and %d more\n", len(l.Problems)-i)
			break
		}
		fmt.Fprintln(out, "does not balance:", problem)
	}
	format, separator := "%s: %v", "\n"
	if l.OneLine {
		format, separator = "%s %v", ", "
	}
	figures := make([]string, len(l.figures))
	for i, f := range l.figures {
		figures[i] = fmt.Sprintf(format, f.name, f.value)
	}
	fmt.Fprintln(out, strings.Join(figures, separator))
}

// Once requires that each expected ID is found exactly once, and no other. It returns the IDs that are
// not found, and counts what is found beyond the first of each.
func Once[T any](l *Ledger, what string, expected map[string]T, found []string) (lost []string, doubled int) {
	times := count(l, what, expected, found)
	for _, id := range slices.Sorted(maps.Keys(expected)) {
		if times[id] == 0 {
			lost = append(lost, id)
		}
		doubled += max(0, times[id]-1)
		l.Expect(id+": "+what, times[id], 1)
	}
	return lost, doubled
}

// Same requires that the rows found are the expected ones, each once and in any order. Rows are the same if their
// strings are.
func Same[R fmt.Stringer](l *Ledger, what string, expected, found []R) (lost []string, doubled int) {
	rows, texts := map[string]bool{}, make([]string, len(found))
	for _, row := range expected {
		rows[row.String()] = true
	}
	for i, row := range found {
		texts[i] = row.String()
	}
	return Once(l, what, rows, texts)
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

// OpenLines opens a file that several processes append lines to, each in one write, so that a kill cannot tear
// it. Handlers note their calls in one, outside their transactions: it shows how often they ran.
func OpenLines(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// ReadLines returns the lines, which must not contain spaces.
func ReadLines(file string) ([]string, error) {
	lines, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read lines: %w", err)
	}
	return strings.Fields(string(lines)), nil
}
