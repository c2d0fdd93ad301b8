package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"

	"github.com/gorm-inbox/inbox/bench/groups"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// docsPath is relative to the directory of this module.
const docsPath = "../docs/benchmarks.md"

//go:embed benchmarks.md.tmpl
var docsTemplate string

// page is the data of the template.
type page struct {
	About  about
	Groups []pageGroup
	Lines  string
	// Processing is the row of batches of 2,000 in the group "process".
	Processing row
}

// Bound returns the processing rate if both cores were busy all the time.
func (p page) Bound() float64 { return 2e6 / (p.Processing.ClientUs + p.Processing.ServerUs) }

// Row returns the medians of a variant.
func (p page) Row(group, variant string) (row, error) {
	for _, g := range p.Groups {
		for _, r := range g.rows {
			if g.Name == group && r.Variant == variant {
				return r, nil
			}
		}
	}
	return row{}, fmt.Errorf("the page asks for %s/%s, which was not measured", group, variant)
}

type pageGroup struct {
	trial.Group
	Table string
	rows  []row
}

func writeDocs(a about, results []*trial.Result) error {
	var text strings.Builder
	if err := renderDocs(&text, a, results); err != nil {
		return err
	}
	if err := os.WriteFile(docsPath, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("-docs is for a run in the directory of the bench module: %w", err)
	}
	return nil
}

func renderDocs(w io.Writer, a about, results []*trial.Result) error {
	var lines strings.Builder
	if err := printLines(&lines, results); err != nil {
		return err
	}
	p := page{About: a, Lines: strings.TrimSpace(lines.String())}
	for _, r := range results {
		rows := rowsOf(r)
		if r.Group.Name == "process" {
			for _, r := range rows {
				if r.Variant == groups.BatchesOf2000 {
					p.Processing = r
				}
			}
		}
		p.Groups = append(p.Groups, pageGroup{Group: r.Group, Table: tableOf(r.Group.Unit, rows), rows: rows})
	}
	t, err := template.New("benchmarks.md").Funcs(template.FuncMap{
		"rate": rate, "sum": func(r row) float64 { return r.ClientUs + r.ServerUs },
		"title": func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
	}).Parse(docsTemplate)
	if err != nil {
		return err
	}
	return t.Execute(w, p)
}

// rate formats a rate with separated thousands.
func rate(value float64) string {
	digits := fmt.Sprintf("%.0f", value)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
