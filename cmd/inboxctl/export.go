package main

import (
	"encoding/csv"
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

// exportPage is how many rows are in memory at once. It is small: a bulk action's audit row names up to 1,000 statuses.
const exportPage = 100

// export prints the pages of a list one after the other, up to maxRows rows. A maxRows of 0 prints all.
func export[T any](
	a *app, format string, maxRows int, page func(after ops.Cursor, limit int) (ops.Page[T], error),
) error {
	write := func(item any) error {
		line, err := asJSON(item, "")
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		_, err = a.out.Write(line)
		return err
	}
	if format == "csv" {
		lines := csv.NewWriter(a.out)
		writeCells := func(cells []string) error {
			_ = lines.Write(cells) // Error returns its error after Flush
			lines.Flush()
			return lines.Error()
		}
		write = func(item any) error {
			_, cells, err := cellsOf(item)
			if err != nil {
				return fmt.Errorf("print as CSV: %w", err)
			}
			return writeCells(cells)
		}
		names, _, err := cellsOf(plain(reflect.ValueOf(*new(T))))
		if err != nil {
			return err
		}
		if err := writeCells(names); err != nil {
			return err
		}
	}
	after := ops.Cursor("")
	for written := 0; ; {
		limit := exportPage
		if maxRows > 0 {
			limit = min(limit, maxRows-written)
		}
		found, err := page(after, limit)
		if err != nil {
			return err
		}
		for _, item := range found.Items {
			if err := write(plain(reflect.ValueOf(item))); err != nil {
				return err
			}
		}
		written += len(found.Items)
		if after = found.Next; after == "" || maxRows > 0 && written >= maxRows {
			return nil
		}
	}
}

// cellsOf returns the names and texts of a struct's fields as CSV has them.
func cellsOf(row any) (names, cells []string, err error) {
	of := reflect.ValueOf(row)
	for i := range of.NumField() {
		c, err := cell(of.Field(i).Interface())
		if err != nil {
			return nil, nil, err
		}
		names, cells = append(names, of.Type().Field(i).Tag.Get("json")), append(cells, c)
	}
	return names, cells, nil
}

// cell returns a text as it is and any other value as JSON, safe for a terminal and without a formula.
func cell(value any) (string, error) {
	switch value := value.(type) {
	case nil:
		return "", nil
	case text:
		return oneLine(formula.ReplaceAllString(leadingFormula.ReplaceAllString(string(value), "'$0"), "$1'$2")), nil
	}
	compact, err := asJSON(value, "")
	// In JSON the character itself is escaped.
	return oneLine(formula.ReplaceAllStringFunc(strings.TrimSpace(string(compact)), func(found string) string {
		last := len(found) - 1
		return fmt.Sprintf(`%s\u%04x`, found[:last], found[last])
	})), err
}

// leadingFormula matches a cell that a spreadsheet takes for a formula. formula matches where a spreadsheet with
// another list separator than the comma begins a cell with a formula: it splits the line there, even within quotes.
var (
	leadingFormula = regexp.MustCompile(`^[=+\-@]`)
	formula        = regexp.MustCompile(`([;\t|][ "']*)([=+\-@])`)
)
