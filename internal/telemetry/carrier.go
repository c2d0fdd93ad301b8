package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/handler"
)

// carrier reads a producer's trace context from a message: from its headers, or else from its attributes (CloudEvents'
// extension for distributed tracing). Header names are compared without case, because producers spell them differently.
type carrier handler.Properties

// maxContextBytes limits a value that a propagator gets, because the value is read at the accept and again at each
// attempt. W3C's limits are not higher: 8,192 bytes for baggage, 512 for a tracestate that every participant must pass
// on.
const maxContextBytes = 8 << 10

// Get returns the first value of that name. A value that is too long counts as missing.
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

// Set does nothing: a message is not changed.
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

// traceContext is the propagator of an inbox that sets none. We do not use the global propagator: applications that
// serve HTTP usually make it read baggage, and then handlers would take a producer's baggage for the application's.
var traceContext = propagation.TraceContext{}

// produced returns ctx with the producer's context from a message: its span, if readable, and all values that the
// application's propagator reads. Malformed context counts as missing, and so does context on which that propagator
// panics.
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
	// Remove the caller's span, so that it is not taken for the producer's.
	with = propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier(p))
	return with, trace.SpanContextFromContext(with)
}

var _ propagation.TextMapCarrier = carrier{}

// traceparent returns a span's context in the form stored with a message (W3C Trace Context). It is empty if the span
// is not sampled, because such a span is never shown.
func traceparent(of trace.SpanContext) string {
	if !of.IsValid() || !of.IsSampled() {
		return ""
	}
	written := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), of), written)
	return written["traceparent"]
}

// parsed is the inverse of traceparent. It returns an invalid context for anything else.
func parsed(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	read := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(read)
}
