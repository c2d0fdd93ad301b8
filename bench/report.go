package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gorm-inbox/inbox/bench/trial"
)

// row has the medians of one variant.
type row struct {
	Variant                 string
	Rate, Least, Most       float64
	ClientUs, ServerUs, WAL float64
	Values                  map[string]float64 `json:",omitempty"`
}

func rowsOf(r *trial.Result) []row {
	var rows []row
	for _, v := range r.Group.Variants {
		measures := r.Measures[v.Name]
		column := func(of func(trial.Measure) float64) []float64 {
			var values []float64
			for _, m := range measures {
				values = append(values, of(m))
			}
			return values
		}
		rates := column(func(m trial.Measure) float64 { return m.Rate })
		one := row{Variant: v.Name, Rate: trial.Median(rates), Least: slices.Min(rates), Most: slices.Max(rates),
			ClientUs: trial.Median(column(func(m trial.Measure) float64 { return m.ClientUs })),
			ServerUs: trial.Median(column(func(m trial.Measure) float64 { return m.ServerUs })),
			WAL:      trial.Median(column(func(m trial.Measure) float64 { return m.WAL }))}
		for _, key := range slices.Sorted(maps.Keys(measures[0].Values)) {
			if one.Values == nil {
				one.Values = map[string]float64{}
			}
			one.Values[key] = trial.Median(column(func(m trial.Measure) float64 { return m.Values[key] }))
		}
		rows = append(rows, one)
	}
	return rows
}

func (r row) more() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(r.Values)) {
		parts = append(parts, key+" "+figure(r.Values[key]))
	}
	return strings.Join(parts, ", ")
}

// figure formats one of a trial's further values.
func figure(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

func printTable(w io.Writer, r *trial.Result) {
	fmt.Fprintf(w, "\n%s: %s\n", r.Group.Name, r.Group.About)
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(table, "variant\t%s/s\tmin..max\tclient µs\tserver µs\tWAL B\t\n", r.Group.Unit)
	for _, row := range rowsOf(r) {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f..%.0f\t%.1f\t%.1f\t%.0f\t%s\n", row.Variant, row.Rate, row.Least, row.Most,
			row.ClientUs, row.ServerUs, row.WAL, row.more())
	}
	_ = table.Flush()
}

// printLines prints the lines for scripts. The target follows the value.
func printLines(w io.Writer, results []*trial.Result) error {
	fmt.Fprintln(w)
	for _, r := range results {
		for _, line := range r.Group.Lines {
			value, err := line.Of(r)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s: %.2f%s\n", line.Name, value, verdict(line, value))
		}
	}
	return nil
}

func verdict(line trial.Line, value float64) string {
	var target string
	switch {
	case line.AtLeast > 0:
		target = fmt.Sprintf("at least %.2f", line.AtLeast)
	case line.AtMost > 0:
		target = fmt.Sprintf("at most %.2f", line.AtMost)
	default:
		return ""
	}
	if !line.Met(value) {
		return "  # MISSED: " + target
	}
	return "  # " + target
}
