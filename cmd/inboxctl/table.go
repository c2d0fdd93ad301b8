package main

import (
	"fmt"
	"io"
	"strings"
)

// column is one column of a table. Numbers are aligned right. Text is cut to limit.
type column struct {
	name  string
	right bool
	limit int
}

// errorColumns is how wide an error in a table is unless the user asks for all of it.
const errorColumns = 60

// table aligns cells for people. It escapes cell texts so that they are safe for a terminal.
type table struct {
	columns []column
	rows    [][]string
}

func newTable(columns ...column) *table { return &table{columns: columns} }

func (t *table) add(cells ...string) {
	row := make([]string, len(t.columns))
	for i := range row {
		row[i] = cut(oneLine(cells[i]), t.columns[i].limit)
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(w io.Writer) {
	header := make([]string, len(t.columns))
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		header[i] = c.name
	}
	lines := append([][]string{header}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], widthOf(cell))
		}
	}
	for _, line := range lines {
		var out strings.Builder
		for i, cell := range line {
			if i > 0 {
				out.WriteString("  ")
			}
			space := strings.Repeat(" ", widths[i]-widthOf(cell))
			if t.columns[i].right {
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
