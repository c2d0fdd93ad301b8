package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
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

// mergeDocs replaces some groups in the page, or adds them. Each says which run measured it.
func mergeDocs(a about, results []*trial.Result) error {
	page, err := os.ReadFile(docsPath)
	if err != nil {
		return fmt.Errorf("-docs is for a run in the directory of the bench module: %w", err)
	}
	text := string(page)
	for _, r := range results {
		if text, err = mergeGroup(text, a, r); err != nil {
			return err
		}
	}
	return os.WriteFile(docsPath, []byte(text), 0o644)
}

// mergeGroup puts a group's section and lines into the page, before those of the groups after it.
func mergeGroup(page string, a about, r *trial.Result) (string, error) {
	var lines strings.Builder
	if err := printLines(&lines, []*trial.Result{r}); err != nil {
		return "", err
	}
	start, end := groupHeading(r.Group), len(page)
	section := fmt.Sprintf("%s\n%s.\n\nA run of %s measured this group alone: rounds %d, %s, %d cores.\n\n```text\n%s```\n",
		start, title(r.Group.About), a.Date, a.Rounds, a.CPU, a.Cores, tableOf(r.Group.Unit, rowsOf(r)))
	from := strings.Index(page, start)
	if from >= 0 {
		if next := strings.Index(page[from+1:], "\n## "); next >= 0 {
			end = from + 1 + next
		}
		page = page[:from] + page[end:]
	}
	for _, line := range r.Group.Lines {
		if at := strings.Index(page, "\n"+line.Name+": "); at >= 0 {
			page = page[:at] + page[at+1+strings.Index(page[at+1:], "\n"):]
		}
	}
	atLine, atGroup := strings.Index(page, "\n```\n\n## What limits them"), len(page)
	all := groups.All()
	after := slices.IndexFunc(all, func(g trial.Group) bool { return g.Name == r.Group.Name })
	if after < 0 { // it is the last one
		after = len(all) - 1
	}
	for _, g := range slices.Backward(all[after+1:]) {
		if at := strings.Index(page, groupHeading(g)); at >= 0 {
			atGroup = at
		}
		for _, line := range slices.Backward(g.Lines) {
			if at := strings.Index(page, "\n"+line.Name+": "); at >= 0 {
				atLine = at
			}
		}
	}
	if atLine < 0 || atLine > atGroup {
		return "", fmt.Errorf("-docs: %s has no lines before its groups", docsPath)
	}
	return page[:atLine] + strings.TrimRight(lines.String(), "\n") + page[atLine:atGroup] + section + page[atGroup:], nil
}

func groupHeading(g trial.Group) string { return "\n## Group `" + g.Name + "`\n" }

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

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
		"title": title,
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
