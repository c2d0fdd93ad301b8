package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/groups"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// measured returns invented results in which every variant has the same figures.
func measured(all []trial.Group) []*trial.Result {
	var results []*trial.Result
	for _, g := range all {
		r := &trial.Result{Group: g, Measures: map[string][]trial.Measure{}}
		for _, v := range g.Variants {
			r.Measures[v.Name] = []trial.Measure{{Rate: 12_345, ClientUs: 1, ServerUs: 2, WAL: 3,
				Values: map[string]float64{"p99_ms": 4}}}
			if g.Name == "recovery" {
				r.Measures[v.Name][0].Values = map[string]float64{"released_s": 4}
			}
		}
		results = append(results, r)
	}
	return results
}

func TestPageListsEveryGroupVariantAndLine(t *testing.T) {
	var text strings.Builder
	results := measured(groups.All())
	for _, r := range results {
		if r.Group.Name == "process" {
			r.Measures[groups.BatchesOf2000] = []trial.Measure{{Rate: 20_000, ClientUs: 2, ServerUs: 2}}
		}
	}
	require.NoError(t, renderDocs(&text, about{Date: "2026-01-02", Rounds: 3, Redis: "7.0.15"}, results))
	requireEverything(t, text.String())
	require.Contains(t, text.String(), "; Redis 7.0.15 |")
	require.Contains(t, text.String(), "\naccept_vs_copy: 1.00  # at least 0.75\n")
	require.Contains(t, text.String(), "\nprocess_vs_textbook: 1.62  # MISSED: at least 30.00\n")
	require.Contains(t, text.String(), "\npickup_p99_ms: 4.00  # at most 10.00\n")
	require.Contains(t, text.String(), "takes 4.0, which allows 500,000/s; batches of 2,000 reached 20,000/s.")
	require.Contains(t, text.String(), "  12,345     12,345..12,345  1.0        2.0        3      4\n")
}

// TestPageInDocsIsNotStale checks that the page shows what is measured. A run that writes the
// page takes half an hour, so the page is not rewritten with each change.
func TestPageInDocsIsNotStale(t *testing.T) {
	content, err := os.ReadFile(docsPath)
	require.NoError(t, err, "make bench writes it")
	requireEverything(t, string(content))
}

// TestMeasuredGroupsReplaceTheirPartOfThePage merges groups into a page that lacks one of them.
func TestMeasuredGroupsReplaceTheirPartOfThePage(t *testing.T) {
	var text strings.Builder
	results := measured(groups.All())
	added := slices.IndexFunc(results, func(r *trial.Result) bool { return r.Group.Name == "ordered" })
	require.NoError(t, renderDocs(&text, about{Date: "2026-01-02", Rounds: 3}, slices.Delete(slices.Clone(results), added, added+1)))
	page := text.String()
	for range 2 {
		for _, i := range []int{added, 0, len(results) - 1} {
			var err error
			page, err = mergeGroup(page, about{Date: "2026-02-03", Rounds: 1, CPU: "a CPU", Cores: 2}, results[i])
			require.NoError(t, err)
		}
		requireEverything(t, page)
		require.Equal(t, 3, strings.Count(page, "A run of 2026-02-03 measured this group alone: rounds 1, a CPU, 2 cores."))
	}
	var whole strings.Builder
	require.NoError(t, renderDocs(&whole, about{Date: "2026-01-02", Rounds: 3}, results))
	bare := strings.ReplaceAll(page, "A run of 2026-02-03 measured this group alone: rounds 1, a CPU, 2 cores.\n\n", "")
	require.Equal(t, whole.String(), bare)
}

func requireEverything(t *testing.T, text string) {
	t.Helper()
	for _, g := range groups.All() {
		require.Contains(t, text, "## Group `"+g.Name+"`\n")
		for _, v := range g.Variants {
			require.Contains(t, text, "\n"+v.Name+"  ", "of group %s", g.Name)
		}
		for _, line := range g.Lines {
			require.Contains(t, text, "\n"+line.Name+": ")
		}
	}
}

func TestTableOmitsUninformativeColumns(t *testing.T) {
	require.Equal(t, `variant  p50_ms  p99_ms
a        1.23    1234
`, tableOf("message", []row{{Variant: "a", Rate: 200, ClientUs: 1, WAL: 9,
		Values: map[string]float64{"p50_ms": 1.234, "p99_ms": 1234.5}}}))
	require.Equal(t, `variant  look/s  min..max  p50_ms
a        200     200..200
b                          1.5
`, tableOf("look", []row{{Variant: "a", Rate: 200, Least: 200, Most: 200, ClientUs: 1, WAL: 9},
		{Variant: "b", Rate: 9, Least: 9, Most: 9, Values: map[string]float64{"p50_ms": 1.5}}}))
	require.Equal(t, `variant  message/s  min..max      client µs  broker_us
a        2,000      1,000..3,000  1.3
b        1          1..1          0.0        5
`, tableOf("message", []row{
		{Variant: "a", Rate: 2000, Least: 1000, Most: 3000, ClientUs: 1.26, ServerUs: 3},
		{Variant: "b", Rate: 1, Least: 1, Most: 1, Values: map[string]float64{"broker_us": 5, "doubled": 0}}}))
}
