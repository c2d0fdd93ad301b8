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

func printTable(w io.Writer, r *trial.Result) {
	fmt.Fprintf(w, "\n%s: %s\n%s", r.Group.Name, r.Group.About, tableOf(r.Group.Unit, rowsOf(r)))
}

// tableOf returns a table for the terminal and the page. Latencies stand alone, or beside others' rates.
// Columns that are 0 everywhere are left out, the server's where nothing wrote WAL.
func tableOf(unit string, rows []row) string {
	var keys []string
	var wal float64
	for _, r := range rows {
		keys = slices.AppendSeq(keys, maps.Keys(r.Values))
		wal += r.WAL
	}
	slices.Sort(keys)
	keys = slices.DeleteFunc(slices.Compact(keys), func(key string) bool {
		return !slices.ContainsFunc(rows, func(r row) bool { return r.Values[key] != 0 })
	})
	timed := func(r row) bool { return r.Values["p50_ms"] != 0 }
	latencies := slices.ContainsFunc(rows, timed)
	// A look's rate says no more than its times.
	rated := func(r row, text string) string {
		if timed(r) {
			return ""
		}
		return text
	}

	lines := [][]string{{"variant"}}
	for _, r := range rows {
		lines = append(lines, []string{r.Variant})
	}
	column := func(title string, of func(row) string) {
		lines[0] = append(lines[0], title)
		for i, r := range rows {
			lines[i+1] = append(lines[i+1], of(r))
		}
	}
	if !latencies || slices.ContainsFunc(rows, func(r row) bool { return !timed(r) }) {
		column(unit+"/s", func(r row) string { return rated(r, rate(r.Rate)) })
		column("min..max", func(r row) string { return rated(r, rate(r.Least)+".."+rate(r.Most)) })
	}
	if !latencies {
		column("client µs", func(r row) string { return fmt.Sprintf("%.1f", r.ClientUs) })
	}
	if !latencies && wal > 0 {
		column("server µs", func(r row) string { return fmt.Sprintf("%.1f", r.ServerUs) })
		column("WAL B", func(r row) string { return fmt.Sprintf("%.0f", r.WAL) })
	}
	for _, key := range keys {
		column(key, func(r row) string {
			if value, measured := r.Values[key]; measured {
				return figure(value)
			}
			return ""
		})
	}

	var padded, text strings.Builder
	table := tabwriter.NewWriter(&padded, 0, 4, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	_ = table.Flush()
	for line := range strings.Lines(padded.String()) {
		text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return text.String()
}

// figure formats one of a trial's further values.
func figure(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
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
