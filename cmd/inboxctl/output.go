package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/gorm-inbox/inbox/ops"
)

// errorColumns is how wide an error in a table is unless the user asks for all of it.
const errorColumns = 60

// errorLimit returns the limit of a column of errors.
func errorLimit(wide bool) int {
	if wide {
		return 0
	}
	return errorColumns
}

// table aligns cells for people. It escapes cell texts so that they are safe for a terminal.
type table struct {
	right []bool
	// limits are the widths that the columns are cut to; 0 means any width.
	limits []int
	// lines are the header and the rows.
	lines [][]string
	// none is written instead of a table without rows, unless it is empty.
	none string
}

// newTable returns a table with these columns. A name that begins with ">" aligns its column right, as for numbers.
func newTable(columns ...string) *table {
	t := &table{right: make([]bool, len(columns)), limits: make([]int, len(columns)), lines: [][]string{columns}}
	for i, name := range columns {
		columns[i], t.right[i] = strings.CutPrefix(name, ">")
	}
	return t
}

// limit sets how wide a column's texts may be.
func (t *table) limit(column string, width int) *table {
	t.limits[slices.Index(t.lines[0], column)] = width
	return t
}

func (t *table) add(cells ...string) {
	for i, text := range cells {
		cells[i] = cmp.Or(cut(oneLine(text), t.limits[i]), "-")
	}
	t.lines = append(t.lines, cells)
}

func (t *table) write(w io.Writer) {
	if len(t.lines) == 1 && t.none != "" {
		fmt.Fprintln(w, t.none)
		return
	}
	widths := make([]int, len(t.right))
	for _, line := range t.lines {
		for i, cell := range line {
			widths[i] = max(widths[i], widthOf(cell))
		}
	}
	for _, line := range t.lines {
		var out strings.Builder
		for i, cell := range line {
			if i > 0 {
				out.WriteString("  ")
			}
			space := strings.Repeat(" ", widths[i]-widthOf(cell))
			if t.right[i] {
				out.WriteString(space + cell)
			} else {
				out.WriteString(cell + space)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(out.String(), " "))
	}
}

// fact writes a name and a value on a line. It writes nothing for an empty value.
func fact(w io.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%-14s %s\n", name, oneLine(value))
	}
}

// oneLine makes text from the database or an error safe for a terminal. It escapes everything that is not a letter,
// digit, mark, punctuation, symbol or space, including control characters and invisible characters that change the
// writing direction. So a message ID that starts with an escape sequence is shown as text.
func oneLine(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return out.String()
}

// widthOf returns how wide a terminal shows the text.
func widthOf(text string) int {
	n := 0
	for _, r := range text {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r < 0x1100:
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// maxMarks is how many combining marks one character keeps. More would overlap the neighboring lines.
const maxMarks = 4

// cut shortens text to a width, with an ellipsis. A limit of 0 means any width.
func cut(text string, limit int) string {
	var out strings.Builder
	taken, marks, end := 0, 0, 0 // end is where the ellipsis would go
	for _, r := range text {
		n := runeColumns(r)
		if n == 0 {
			if marks++; marks <= maxMarks {
				out.WriteRune(r)
			}
			if taken < limit {
				end = out.Len()
			}
			continue
		}
		marks = 0
		if limit > 0 && taken+n > limit {
			return out.String()[:end] + "…"
		}
		out.WriteRune(r)
		if taken += n; taken < limit {
			end = out.Len()
		}
	}
	return out.String()
}

// age formats a duration for people: "42s", "3m12s", "5h07m", "12d03h".
func age(d time.Duration) string {
	if d < 0 {
		return "-" + age(-d)
	}
	seconds := int64(d / time.Second)
	minutes, hours, days := seconds/60, seconds/3600, seconds/86400
	switch {
	case minutes == 0:
		return fmt.Sprintf("%ds", seconds)
	case hours == 0:
		return fmt.Sprintf("%dm%02ds", minutes, seconds%60)
	case days == 0:
		return fmt.Sprintf("%dh%02dm", hours, minutes%60)
	}
	return fmt.Sprintf("%dd%02dh", days, hours%24)
}

// ago formats how long before now a time was, or "-" for the zero time.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t))
}

func instant(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func count(c ops.Count) string { return c.String() }

func number[N ~int | ~int32 | ~int64](n N) string { return strconv.FormatInt(int64(n), 10) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
