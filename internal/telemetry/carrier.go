package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/handler"
)

// carrier is where a producer's context is read from: a message's headers, else
// its attributes (CloudEvents' extension for distributed tracing). Producers
// spell headers as they like, so their case is not looked at.
type carrier handler.Properties

// maxContextBytes bounds a value that a propagator gets: it reads the value at the
// accept and again at each attempt. W3C's limits are lower: 8,192 bytes for
// baggage, 512 for a tracestate that everybody must pass on.
const maxContextBytes = 8 << 10

// Get returns the first value of that name; one that is too long is as good as
// missing.
func (c carrier) Get(name string) string {
	for _, h := range c.Headers {
		if !strings.EqualFold(h.Key, name) {
			continue
		}
		if len(h.Value) > maxContextBytes {
			return ""
		}
		return string(h.Value)
	}
	if value := c.Attributes[strings.ToLower(name)]; len(value) <= maxContextBytes {
		return value
	}
	return ""
}

// Set does nothing: a message stays as it came.
func (c carrier) Set(string, string) {}

// Keys lists the names that Get finds.
func (c carrier) Keys() []string {
	var names []string
	for _, h := range c.Headers {
		names = append(names, h.Key)
	}
	for name := range c.Attributes {
		names = append(names, name)
	}
	return names
}

// traceContext is the propagator of an inbox that was given none. The global one
// is not asked: applications that serve HTTP mostly have it read baggage, and what
// a producer writes into that would reach handlers as if the application had said
// it.
var traceContext = propagation.TraceContext{}

// produced returns ctx with what a message's producer has sent along: its span,
// if its context can be read, and what else the application's own propagator
// reads. What is malformed is as good as missing, and so is what that propagator
// panics at.
func (i *Instruments) produced(
	ctx context.Context, p handler.Properties,
) (with context.Context, producer trace.SpanContext) {
	defer func() {
		if recover() != nil {
			with, producer = ctx, trace.SpanContext{}
		}
	}()
	propagator := i.cfg.Propagator
	if propagator == nil {
		propagator = traceContext
	}
	// Not to be mixed up with a span of the caller's.
	with = propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier(p))
	return with, trace.SpanContextFromContext(with)
}

var _ propagation.TextMapCarrier = carrier{}

// traceparent is a span's context as it is stored with a message (W3C Trace
// Context); empty unless it is sampled: nobody will look for it.
func traceparent(of trace.SpanContext) string {
	if !of.IsValid() || !of.IsSampled() {
		return ""
	}
	written := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), of), written)
	return written["traceparent"]
}

// parsed is the inverse of traceparent; invalid for anything else.
func parsed(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	read := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(read)
}
