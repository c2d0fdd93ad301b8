package telemetry

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"gopkg.in/yaml.v3"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// exported returns what Prometheus scrapes from an inbox that has done everything: the names of its
// series with their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo())
	require.NoError(t, err)
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	kafka := kafkatest.Start(t, kafkatest.Topic("orders", 1))
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.MeterProvider = provider
		o.SampleInterval = 5 * time.Millisecond
	}),
		inbox.Channel("c", inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(), Topics: []string{"orders"},
			GroupID: "g", Decoder: decoder}),
			inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
	inboxtest.Start(t, ib)
	require.NoError(t, kafka.Produce("orders", kafkatest.Record{Value: []byte("1")}))
	require.Eventually(t, func() bool {
		_, err := ib.Cleanup(t.Context())
		return err == nil // the consumer has caught up
	}, inboxtest.Patience, 10*time.Millisecond)
	series := map[string][]string{}
	require.Eventually(t, func() bool {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName())
				}
				names := []string{family.GetName()}
				if m.GetHistogram() != nil {
					names, labels = []string{family.GetName() + "_bucket", family.GetName() + "_sum", family.GetName() + "_count"},
						append(labels, "le")
				}
				for _, name := range names {
					series[name] = labels
				}
			}
		}
		return series["inbox_consumer_lag"] != nil && series["inbox_backlog_due"] != nil &&
			series["messaging_process_duration_seconds_bucket"] != nil &&
			series["inbox_completion_duration_seconds_bucket"] != nil
	}, inboxtest.Patience, 10*time.Millisecond)
	return series
}

var (
	seriesName  = regexp.MustCompile(`\b(?:inbox|messaging)_[a-z0-9_]+`)
	labelsOf    = regexp.MustCompile(`by \(([^)]*)\)`)
	reasonLabel = regexp.MustCompile(`inbox_health_reason="([^"]*)"`)
	legendLabel = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}`)

	inboxctlCommand = regexp.MustCompile(`inboxctl [a-z]+(-[a-z]+)*`)
)

// labels returns the names of all labels, sorted. They are needed because some match seriesName, too.
func labels(series map[string][]string) []string {
	var all []string
	for _, its := range series {
		all = append(all, its...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func checkExpression(t *testing.T, series map[string][]string, where, expression string) {
	t.Helper()
	known := labels(series)
	named := 0
	for _, name := range seriesName.FindAllString(expression, -1) {
		if slices.Contains(known, name) {
			continue
		}
		named++
		require.Contains(t, series, name, "%s: %s", where, expression)
	}
	require.NotZero(t, named, "%s: %s", where, expression)
	for _, list := range labelsOf.FindAllStringSubmatch(expression, -1) {
		for _, label := range strings.Split(list[1], ",") {
			require.Contains(t, known, strings.TrimSpace(label), "%s: %s", where, expression)
		}
	}
}

func checkLegend(t *testing.T, series map[string][]string, where, legend string) {
	t.Helper()
	for _, label := range legendLabel.FindAllStringSubmatch(legend, -1) {
		require.Contains(t, labels(series), label[1], where)
	}
}

func TestDashboardAndAlertsUseExistingMetrics(t *testing.T) {
	series := exported(t)
	for _, m := range telemetry.Metrics() {
		require.Contains(t, series, seriesOf(m), "every instrument has a series from the start")
	}

	text, err := os.ReadFile("../../docs/grafana/inbox.json")
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	shown := map[string]bool{}
	for _, panel := range dashboard.Panels {
		require.Equal(t, panel.Type == "row", len(panel.Targets) == 0, panel.Title)
		for _, target := range panel.Targets {
			checkExpression(t, series, panel.Title, target.Expr)
			checkLegend(t, series, panel.Title, target.LegendFormat)
			for _, name := range seriesName.FindAllString(target.Expr, -1) {
				shown[name] = true
			}
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Definition != "" {
			checkExpression(t, series, variable.Name, variable.Definition)
		}
	}
	for name := range series {
		if !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			require.True(t, shown[name], "the dashboard shows %s", name)
		}
	}

	reference, err := os.ReadFile("../../docs/inboxctl.md")
	require.NoError(t, err)
	text, err = os.ReadFile("../../docs/prometheus/alerts.yaml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &rules))
	require.Len(t, rules.Groups, 1)
	for _, rule := range rules.Groups[0].Rules {
		require.Regexp(t, `^Inbox[A-Z][A-Za-z]+$`, rule.Alert)
		require.Contains(t, []string{"info", "warning", "critical"}, rule.Labels["severity"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
		if rule.For != "" {
			_, err := time.ParseDuration(rule.For)
			require.NoError(t, err, rule.Alert)
		}
		checkExpression(t, series, rule.Alert, rule.Expr)
		checkLegend(t, series, rule.Alert, rule.Annotations["summary"])
		for _, of := range reasonLabel.FindAllStringSubmatch(rule.Expr, -1) {
			require.Contains(t, health.Codes(), of[1], rule.Alert)
		}
		for _, command := range inboxctlCommand.FindAllString(rule.Annotations["description"], -1) {
			require.Contains(t, string(reference), "\n## "+command+"\n", rule.Alert)
		}
	}
	require.GreaterOrEqual(t, len(rules.Groups[0].Rules), 6)
}

func TestMetricsPageListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	var names []string
	for _, m := range telemetry.Metrics() {
		names = append(names, m.Name)
		require.Contains(t, string(page), "`"+m.Name+"`")
	}
	for _, found := range regexp.MustCompile("`((?:inbox|messaging)\\.[a-z_.]+)`").FindAllStringSubmatch(string(page),
		-1) {
		known := slices.Contains(names, found[1]) || slices.Contains([]string{"inbox.name", "inbox.channel",
			"inbox.handler.key", "inbox.outcome", "inbox.cleanup.table", "inbox.health.reason", "messaging.system",
			"messaging.operation.name", "messaging.consumer.group.name", "messaging.destination.name",
			"messaging.destination.partition.id"}, found[1])
		require.True(t, known, found[1])
	}
}
