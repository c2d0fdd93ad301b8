package telemetry

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gorm-inbox/inbox/handler"
)

const producerSpan = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestProducerContextIsFoundInItsUsualPlaces(t *testing.T) {
	i := &Instruments{cfg: Config{Propagator: propagation.TraceContext{}}}
	header := func(key, value string) handler.Properties {
		return handler.Properties{Headers: []handler.Header{{Key: "other", Value: []byte("x")},
			{Key: key, Value: []byte(value)}}}
	}
	for name, p := range map[string]handler.Properties{
		"header":                header("traceparent", producerSpan),
		"header in other case":  header("Traceparent", producerSpan),
		"CloudEvents extension": {Attributes: map[string]string{"traceparent": producerSpan}},
	} {
		_, producer := i.produced(t.Context(), p)
		require.Equal(t, producerSpan, traceparent(producer), name)
		require.True(t, producer.IsRemote(), name)
	}
	for name, p := range map[string]handler.Properties{
		"nothing":      {},
		"empty":        header("traceparent", ""),
		"words":        header("traceparent", "not a trace"),
		"zero":         header("traceparent", "00-00000000000000000000000000000000-0000000000000000-01"),
		"binary":       header("traceparent", "\x00\xff"),
		"too long":     header("traceparent", producerSpan+"-00"),
		"no such flag": header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz"),
	} {
		_, producer := i.produced(trace.ContextWithSpanContext(t.Context(), parsed(producerSpan)), p)
		require.False(t, producer.IsValid(), "%s: and the caller's span is not the producer's", name)
	}
}

// roles returns a producer's headers: its span, and baggage that claims a role.
func roles(baggage string) handler.Properties {
	return handler.Properties{Headers: []handler.Header{{Key: "traceparent", Value: []byte(producerSpan)},
		{Key: "baggage", Value: []byte(baggage)}}}
}

// withBaggage is the propagator of applications that use baggage.
var withBaggage = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// Contract 12: a producer's baggage would be taken for the application's own.
func TestOnlyTraceContextIsReadByDefault(t *testing.T) {
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(withBaggage)
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	ctx, producer := (&Instruments{}).produced(t.Context(), roles("role=admin"))
	require.Equal(t, producerSpan, traceparent(producer))
	require.Empty(t, baggage.FromContext(ctx).Members())

	ctx, producer = (&Instruments{cfg: Config{Propagator: withBaggage}}).produced(t.Context(), roles("role=admin"))
	require.Equal(t, producerSpan, traceparent(producer))
	require.Equal(t, "admin", baggage.FromContext(ctx).Member("role").Value(), "which the application has asked for")
}

// Contract 12: such a value would be read at the accept and at each attempt.
func TestOverlongContextIsNotRead(t *testing.T) {
	i := &Instruments{cfg: Config{Propagator: withBaggage}}
	long := roles(strings.Repeat("key=value,", 16<<20/10))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, producer := i.produced(t.Context(), long)
	runtime.ReadMemStats(&after)
	require.Empty(t, baggage.FromContext(ctx).Members())
	require.Equal(t, producerSpan, traceparent(producer), "each header counts by itself")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))

	long.Headers = append(long.Headers, handler.Header{Key: "tracestate",
		Value: bytes.Repeat([]byte("a"), maxContextBytes+1)})
	_, producer = (&Instruments{}).produced(t.Context(), long)
	require.Equal(t, producerSpan, traceparent(producer), "a tracestate that is too long is dropped alone")
}

type panicking struct{ propagation.TextMapPropagator }

func (panicking) Extract(context.Context, propagation.TextMapCarrier) context.Context {
	panic("strange")
}

func TestPanickingPropagatorIsIgnored(t *testing.T) {
	i := &Instruments{cfg: Config{Propagator: panicking{}}}
	ctx, producer := i.produced(t.Context(), handler.Properties{})
	require.Equal(t, t.Context(), ctx)
	require.False(t, producer.IsValid())
}

func TestStoredTraceparentBelongsToASampledSpan(t *testing.T) {
	require.Equal(t, producerSpan, traceparent(parsed(producerSpan)))
	require.Empty(t, traceparent(parsed("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")))
	require.Empty(t, traceparent(trace.SpanContext{}))
	require.False(t, parsed("").IsValid())
	require.False(t, parsed("x").IsValid())
}

func TestMissingProviderTracesAndAllocatesNothing(t *testing.T) {
	for name, i := range map[string]*Instruments{
		"nil":    nil,
		"global": {},
		"no-op":  {cfg: Config{TracerProvider: noop.NewTracerProvider()}},
	} {
		require.False(t, i.Traces(), name)
		ctx := t.Context()
		require.Zero(t, testing.AllocsPerRun(100, func() {
			with, span := i.StartAttempt(ctx, "h")
			if with != ctx || span != nil {
				panic("traced")
			}
			span.NoteOutcome("completed", "", nil)
			span.End()
		}), name)
	}
}

func FuzzProducersTraceContextNeverFailsAMessage(f *testing.F) {
	f.Add("traceparent", []byte(producerSpan), "tracestate", "a=b")
	f.Add("TraceParent", []byte("00-"), "baggage", "a=b;c")
	i := &Instruments{cfg: Config{Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
		propagation.Baggage{})}}
	f.Fuzz(func(t *testing.T, name string, value []byte, attribute, text string) {
		p := handler.Properties{Headers: []handler.Header{{Key: name, Value: value}},
			Attributes: map[string]string{attribute: text}}
		_, producer := i.produced(t.Context(), p)
		if producer.IsValid() && producer.IsSampled() {
			require.Equal(t, producer.SpanID(), parsed(traceparent(producer)).SpanID())
		}
	})
}
