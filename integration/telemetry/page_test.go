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
	metricRow = regexp.MustCompile("(?m)^\\| (`(?:inbox|messaging)\\.[^|]*) \\| (counter|histogram|gauge)s? \\| ([^|]*) ?\\|$")
	quoted    = regexp.MustCompile("`([^`]+)`")
)

// TestMetricsPageHasTheKindsOfMetrics checks that the kinds and attributes of metrics on the page
// match what is exported.
func TestMetricsPageHasTheKindsOfMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	series := exported(t)
	rows := metricRow.FindAllStringSubmatch(string(page), -1)
	listed := map[string]int{}
	for _, m := range telemetry.Metrics() {
		for _, row := range rows {
			if !strings.Contains(row[1], "`"+m.Name+"`") {
				continue
			}
			listed[m.Name]++
			require.Equal(t, m.Kind, row[2], m.Name)
			require.Equal(t, m.Unit == "s", strings.Contains(row[1], "(s)"), "%s: its unit", m.Name)
			attributes := []string{"inbox_name"}
			for _, a := range quoted.FindAllStringSubmatch(row[3], -1) {
				if a[1] != "error.type" { // no error has occurred here
					attributes = append(attributes, strings.ReplaceAll(a[1], ".", "_"))
				}
			}
			shown := slices.DeleteFunc(slices.Clone(series[seriesOf(m)]), func(label string) bool { return label == "le" })
			require.ElementsMatch(t, attributes, shown, m.Name)
		}
		require.Equal(t, 1, listed[m.Name], "rows that describe %s", m.Name)
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
