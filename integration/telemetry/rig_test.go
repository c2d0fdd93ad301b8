// Package telemetry tests the metrics and traces of an inbox with OpenTelemetry's SDK, and the
// dashboards and alerts that are shipped for them.
package telemetry

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// meter collects an inbox's metrics on demand.
type meter struct{ *metric.ManualReader }

func newMeter(t *testing.T) (meter, inbox.Option) {
	t.Helper()
	m := newManual(t)
	return m.meter, inbox.Configure(func(o *inbox.Options) { o.MeterProvider = m.provider })
}

// manual is a provider whose metrics a test collects.
type manual struct {
	meter
	provider *metric.MeterProvider
}

func newManual(t *testing.T) manual {
	t.Helper()
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return manual{meter{reader}, provider}
}

// point is one value of a metric, or a histogram's count and sum.
type point struct {
	attributes attribute.Set
	value      float64
	count      uint64
	bounds     []float64
}

func (p point) of(key string) string {
	v, found := p.attributes.Value(attribute.Key(key))
	if !found {
		return ""
	}
	return v.String()
}

// collect reads all metrics, by name.
func (m meter) collect(t *testing.T) map[string][]point {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, m.Collect(t.Context(), &collected))
	points := map[string][]point{}
	for _, scope := range collected.ScopeMetrics {
		require.Contains(t, []string{telemetry.Scope, telemetry.ReceiverScope}, scope.Scope.Name)
		require.Equal(t, telemetry.Version(), scope.Scope.Version)
		for _, its := range scope.Metrics {
			require.NotContains(t, points, its.Name)
			points[its.Name] = pointsOf(t, its.Data)
		}
	}
	return points
}

func pointsOf(t *testing.T, data metricdata.Aggregation) (points []point) {
	t.Helper()
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		require.True(t, data.IsMonotonic)
		for _, p := range data.DataPoints {
			points = append(points, point{attributes: p.Attributes, value: float64(p.Value)})
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			points = append(points, point{attributes: p.Attributes, value: float64(p.Value)})
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{attributes: p.Attributes, value: p.Value})
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{attributes: p.Attributes, value: p.Sum, count: p.Count, bounds: p.Bounds})
		}
	default:
		require.Fail(t, fmt.Sprintf("%T", data))
	}
	return points
}

// by returns a metric's values by one of their attributes.
func by(points []point, key string) map[string]float64 {
	values := map[string]float64{}
	for _, p := range points {
		values[p.of(key)] += p.value
	}
	return values
}

func sum(points []point) (total float64) {
	for _, p := range points {
		total += p.value
	}
	return total
}

// spans records an inbox's ended spans.
type spans struct{ *tracetest.SpanRecorder }

func newSpans(t *testing.T) (spans, *trace.TracerProvider, inbox.Option) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return spans{recorder}, provider, inbox.Configure(func(o *inbox.Options) { o.TracerProvider = provider })
}

var w3c = inbox.Configure(func(o *inbox.Options) {
	o.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
})

// named returns the ended spans of that name.
func (s spans) named(name string) (found []trace.ReadOnlySpan) {
	for _, span := range s.Ended() {
		if span.Name() == name {
			found = append(found, span)
		}
	}
	return found
}

func attributesOf(span trace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, a := range span.Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

func field(snapshot any, name string) int64 { return reflect.ValueOf(snapshot).FieldByName(name).Int() }

func reflectEqual(a, b any) bool { return reflect.DeepEqual(a, b) }
