package main

import (
	"os"
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
		}
		results = append(results, r)
	}
	return results
}

func TestThePageHasEveryGroupVariantAndLine(t *testing.T) {
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
	require.Contains(t, text.String(), "| `accept_vs_copy` | 1.00 | at least 0.75 | met |")
	require.Contains(t, text.String(), "| `process_vs_textbook` | 1.62 | at least 30.00 | **missed** |")
	require.Contains(t, text.String(), "| `pickup_p99_ms` | 4.00 | at most 10.00 | met |")
	require.Contains(t, text.String(), "4.0 µs allow 500,000/s, and 20,000/s were reached.")
	require.Contains(t, text.String(), "| inbox | 12,345 | 12,345..12,345 | 1.0 | 2.0 | 3 | p99_ms 4 |")
}

// TestThePageInDocsIsNotStale checks that the page shows what is measured. A run that writes the
// page takes half an hour, so the page is not rewritten with each change.
func TestThePageInDocsIsNotStale(t *testing.T) {
	content, err := os.ReadFile(docsPath)
	require.NoError(t, err, "make bench writes it")
	requireEverything(t, string(content))
}

func requireEverything(t *testing.T, text string) {
	t.Helper()
	for _, g := range groups.All() {
		require.Contains(t, text, "## Group `"+g.Name+"`\n")
		for _, v := range g.Variants {
			require.Contains(t, text, "\n| "+v.Name+" | ", "of group %s", g.Name)
		}
		for _, line := range g.Lines {
			require.Contains(t, text, "\n| `"+line.Name+"` | ")
		}
	}
}
