package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// exportHelp describes --export in the help of the commands that have it.
const exportHelp = `--export prints all rows that match, as they are read, or with --limit the first ones:
jsonl has one JSON object in each line, csv starts with a line of column names. In
csv, characters that a terminal would interpret are escaped, and a text that a
spreadsheet would take for a formula begins with an apostrophe.`

// bindExport adds --export.
func (p *pageFlags) bindExport(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.export, "export", "", "print all rows that match, as jsonl or csv")
	completeFlag(cmd, "export", "jsonl", "csv")
}

// checkExport reports flags that contradict an export.
func (p *pageFlags) checkExport(cmd *cobra.Command) error {
	switch p.export {
	case "jsonl", "csv":
		if given := changed(cmd, []string{"after", "output", "watch", "count", "wide"}); len(given) > 0 {
			return misuse("--export prints all rows in its own format: omit %s", given[0])
		}
	default:
		if cmd.Flags().Changed("export") {
			return misuse("--export = %q: must be jsonl or csv", p.export)
		}
	}
	return nil
}

// exportPage is how many rows are held in memory at once. It is small because the audit row of a
// bulk action names up to 1,000 statuses.
const exportPage = 100

// export prints the pages of a list one after the other, up to most rows. A most of 0 prints all.
func export[T any](
	a *app, format string, most int, page func(after ops.Cursor, limit int) (ops.Page[T], error),
) error {
	write := func(names, _ []string, compact []byte) error {
		_, err := fmt.Fprintf(a.out, "%s\n", escapeUnprintable(compact))
		return err
	}
	if format == "csv" {
		lines := csv.NewWriter(a.out)
		write = func(_, cells []string, _ []byte) error {
			_ = lines.Write(cells) // Error returns its error after Flush
			lines.Flush()
			return lines.Error()
		}
		names, _, _, err := cellsOf(*new(T))
		if err != nil {
			return err
		}
		if err := write(nil, names, nil); err != nil {
			return err
		}
	}
	after := ops.Cursor("")
	for written := 0; ; {
		limit := exportPage
		if most > 0 {
			limit = min(limit, most-written)
		}
		found, err := page(after, limit)
		if err != nil {
			return err
		}
		for _, item := range found.Items {
			names, cells, compact, err := cellsOf(item)
			if err == nil {
				err = write(names, cells, compact)
			}
			if err != nil {
				return err
			}
		}
		written += len(found.Items)
		if after = found.Next; after == "" || most > 0 && written >= most {
			return nil
		}
	}
}

// cellsOf returns a row as JSON, and the names and texts of its fields as CSV has them.
func cellsOf(item any) (names, cells []string, compact []byte, err error) {
	var row bytes.Buffer
	if err := encode(&row, reflect.ValueOf(item)); err != nil {
		return nil, nil, nil, fmt.Errorf("print as JSON: %w", err)
	}
	fields, err := membersOf(row.Bytes())
	if err != nil {
		return nil, nil, nil, fmt.Errorf("print as CSV: %w", err)
	}
	for _, f := range fields {
		names, cells = append(names, f.name), append(cells, f.cell())
	}
	return names, cells, row.Bytes(), nil
}

type member struct {
	name  string
	value json.RawMessage
}

// membersOf returns the members of a JSON object in their order.
func membersOf(object []byte) (all []member, err error) {
	in := json.NewDecoder(bytes.NewReader(object))
	if _, err := in.Token(); err != nil { // {
		return nil, err
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: fmt.Sprint(name)}
		if err := in.Decode(&m.value); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (m member) cell() string {
	var text string
	switch {
	case string(m.value) == "null":
		return ""
	case json.Unmarshal(m.value, &text) != nil:
		// In JSON the character itself is escaped.
		return oneLine(formula.ReplaceAllStringFunc(string(m.value), func(found string) string {
			last := len(found) - 1
			return fmt.Sprintf(`%s\u%04x`, found[:last], found[last])
		}))
	}
	if strings.ContainsAny(text[:min(1, len(text))], "=+-@") {
		text = "'" + text
	}
	return oneLine(formula.ReplaceAllStringFunc(text, func(found string) string {
		last := len(found) - 1
		return found[:last] + "'" + found[last:]
	}))
}

// formula matches where a spreadsheet whose list separator is not the comma begins another cell with a formula. It
// splits the line there, whatever quotes are around it.
var formula = regexp.MustCompile(`[;\t|][ "']*[=+\-@]`)

// exportList prints the statuses that match.
func (a *app) exportList(ctx context.Context, o *ops.Ops, format string, filter ops.Filter, most int) error {
	return export(a, format, most, func(after ops.Cursor, limit int) (ops.Page[ops.Status], error) {
		return o.List(ctx, filter, after, limit)
	})
}
