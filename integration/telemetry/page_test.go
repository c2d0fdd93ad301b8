package telemetry

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

var (
	metricKind = regexp.MustCompile(`(?i)^\*\*(?:other )?(counter|histogram|gauge)s`)
	quoted     = regexp.MustCompile("`((?:inbox|messaging|error)\\.[a-z._]+)`")
)

// TestMetricsPageHasTheKindsOfMetrics checks that the kinds and attributes of metrics on the page
// match what is exported.
func TestMetricsPageHasTheKindsOfMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	series := exported(t)
	_, rest, _ := strings.Cut(string(page), "\n## Metrics\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	listed := map[string]int{}
	for _, m := range telemetry.Metrics() {
		kind, shared := "", ""
		for _, part := range regexp.MustCompile(`\n\n|\n- `).Split(section, -1) {
			if found := metricKind.FindStringSubmatch(part); found != nil {
				kind, shared = strings.ToLower(found[1]), strings.Split(part, "**")[1]
			}
			if !strings.Contains(part, "`"+m.Name+"`") {
				continue
			}
			listed[m.Name]++
			require.Equal(t, m.Kind, kind, m.Name)
			require.Equal(t, m.Unit == "s", strings.Contains(part, "(s)"), "%s: its unit", m.Name)
			attributes := []string{"inbox_name"}
			_, own, _ := strings.Cut(part, "by `")
			for _, a := range quoted.FindAllStringSubmatch(shared+" `"+own, -1) {
				if a[1] != "error.type" { // no error has occurred here
					attributes = append(attributes, strings.ReplaceAll(a[1], ".", "_"))
				}
			}
			shown := slices.DeleteFunc(slices.Clone(series[seriesOf(m)]), func(label string) bool { return label == "le" })
			require.ElementsMatch(t, attributes, shown, m.Name)
		}
		require.Equal(t, 1, listed[m.Name], "places that describe %s", m.Name)
	}
}

// seriesOf returns a metric's name in Prometheus.
func seriesOf(m telemetry.Metric) string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch {
	case m.Kind == "counter":
		name += "_total"
	case m.Kind == "histogram":
		name += "_seconds_bucket"
	case m.Unit == "s":
		name += "_seconds"
	}
	return name
}
