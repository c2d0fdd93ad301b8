package telemetry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/redact"
)

// maxLinks bounds the links of one span, as OpenTelemetry's SDK does by default.
const maxLinks = 128

// provider returns the tracer provider; nil if no spans would be made.
func (i *Instruments) provider() trace.TracerProvider {
	if i == nil {
		return nil
	}
	provider := i.cfg.TracerProvider
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	if idle(provider) {
		return nil
	}
	return provider
}

func tracerOf(provider trace.TracerProvider) trace.Tracer {
	return provider.Tracer(Scope, trace.WithInstrumentationVersion(Version()))
}

// Traces reports whether calling StartAttempt has any effect.
func (i *Instruments) Traces() bool { return i.provider() != nil }

// idle reports whether a provider makes no spans. The provider that is global until the application sets its own has no
// exported type; it is recognized by its package.
func idle(provider trace.TracerProvider) bool {
	switch provider.(type) {
	case noop.TracerProvider, *noop.TracerProvider:
		return true
	}
	kind := reflect.TypeOf(provider)
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	return kind.PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

// Accepting is the span of one accept. A nil Accepting is no span.
type Accepting struct {
	span        trace.Span
	instruments *Instruments
	channel     string
	// Traceparent is stored with the messages, so that attempts can link to the accept; empty if it is not sampled.
	Traceparent string
}

// StartAccept starts the span of an accept of messages that came together on a channel. The span is a child of the
// caller's span, if there is one. Otherwise, if there is a single message, it is a child of the producer's span. It
// links to the producers of all messages.
func (i *Instruments) StartAccept(
	ctx context.Context, channel string, messages func(yield func(*handler.RawMessage) bool),
) (context.Context, *Accepting) {
	provider := i.provider()
	if provider == nil {
		return ctx, nil
	}
	var producers []trace.Link
	var first *handler.RawMessage
	var from origin
	seen := map[trace.SpanID]bool{}
	for m := range messages {
		if from.add(m.Transport, m.Channel, m.Properties); from.n == 1 {
			first = m
		}
		if len(producers) == maxLinks {
			continue
		}
		if _, producer := i.produced(ctx, m.Properties); producer.IsValid() && !seen[producer.SpanID()] {
			seen[producer.SpanID()] = true
			producers = append(producers, trace.Link{SpanContext: producer})
		}
	}
	channel = text(channel) // the channel may be undeclared
	attributes := append(from.attributes(), attrInbox.String(i.cfg.Inbox), attrChannel.String(channel),
		attrOperation.String(operationAccept), attrOperationType.String(typeReceive))
	if from.n == 1 {
		attributes = append(attributes, about(first.ID, first.Type, first.Properties)...)
		if len(producers) > 0 && !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, producers[0].SpanContext)
		}
	}
	ctx, span := tracerOf(provider).Start(ctx, operationAccept+" "+channel, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attributes...), trace.WithLinks(producers...))
	return ctx, &Accepting{span, i, channel, traceparent(span.SpanContext())}
}

// Stored returns the traceparent to store; empty if a is nil.
func (a *Accepting) Stored() string {
	if a == nil {
		return ""
	}
	return a.Traceparent
}

// End ends the span. err is the accept's error, if nothing was stored.
func (a *Accepting) End(err error) {
	if a == nil {
		return
	}
	a.instruments.fail(a.span, redact.Value{Channel: a.channel}, err, Other)
	a.span.End()
}

// Attempt is the span of one call of a handler. A nil Attempt is no span.
type Attempt struct {
	span        trace.Span
	instruments *Instruments
	handlerKey  string
}

// StartAttempt starts the span of a call of a handler with these messages. A call with one message continues the
// producer's trace, or the accept's if the producer sent none. A call with several messages begins a new trace. The
// span links to the accepts of all messages, or to the producer of a message whose accept was not traced. Use the
// returned context for the handler, so that its spans are children.
func (i *Instruments) StartAttempt(
	ctx context.Context, handlerKey string, messages ...handler.Metadata,
) (context.Context, *Attempt) {
	provider := i.provider()
	if provider == nil || len(messages) == 0 {
		return ctx, nil
	}
	first := messages[0]
	var from origin
	for _, m := range messages {
		from.add(m.Transport, m.Properties.Channel, m.Properties)
	}
	handlerKey = text(handlerKey)
	attributes := append(from.attributes(), attrInbox.String(i.cfg.Inbox), attrHandler.String(handlerKey),
		attrOperation.String(operationProcess), attrOperationType.String(typeProcess))
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if len(messages) == 1 {
		with, producer := i.produced(ctx, first.Properties)
		accept := parsed(first.Properties.Traceparent)
		switch {
		case producer.IsValid():
			ctx = with
		case accept.IsValid():
			ctx = trace.ContextWithRemoteSpanContext(with, accept)
		default:
			ctx = with
			options = append(options, trace.WithNewRoot())
		}
		attributes = append(attributes, attrAttempt.Int(first.Attempt))
		attributes = append(attributes, about(first.ID, first.Type, first.Properties)...)
	} else {
		options = append(options, trace.WithNewRoot())
	}
	options = append(options, trace.WithAttributes(attributes...), trace.WithLinks(i.links(ctx, messages)...))
	ctx, span := tracerOf(provider).Start(ctx, operationProcess+" "+handlerKey, options...)
	return ctx, &Attempt{span, i, handlerKey}
}

func (i *Instruments) links(ctx context.Context, messages []handler.Metadata) []trace.Link {
	var links []trace.Link
	seen := map[trace.SpanID]bool{} // messages accepted together share one span
	for _, m := range messages {
		if len(links) == maxLinks {
			break
		}
		from := parsed(m.Properties.Traceparent)
		if !from.IsValid() {
			_, from = i.produced(ctx, m.Properties)
		}
		if from.IsValid() && !seen[from.SpanID()] {
			seen[from.SpanID()] = true
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	return links
}

// NoteOutcome records the outcome of one of the call's messages. errorType is the class of a failure, err the failure.
func (a *Attempt) NoteOutcome(outcome, errorType string, err error) {
	if a == nil {
		return
	}
	a.span.SetAttributes(attrOutcome.String(outcome))
	if outcome == outcomeFailed || outcome == outcomePoisoned {
		a.instruments.fail(a.span, redact.Value{HandlerKey: a.handlerKey}, err, errorType)
	}
}

// End ends the span. Calling it again does nothing.
func (a *Attempt) End() {
	if a != nil {
		a.span.End()
	}
}

// about returns the attributes of one message, except where it came from.
func about(id, messageType string, p handler.Properties) []attribute.KeyValue {
	attributes := []attribute.KeyValue{attrMessageID.String(text(id)), attrType.String(text(messageType))}
	if k := p.Kafka; k != nil {
		attributes = append(attributes, attrPartition.String(strconv.Itoa(k.Partition)), attrKafkaOffset.Int64(k.Offset))
	}
	return attributes
}

// origin is where messages came from. Their system is the inbox if they are of several systems. Their destination is
// set only if they share it.
type origin struct {
	n                   int
	system, destination string
	several             bool // there are several destinations
}

func (o *origin) add(transport, channel string, p handler.Properties) {
	its, destination := system(transport), channel
	if p.Kafka != nil {
		destination = p.Kafka.Topic
	}
	if o.n++; o.n == 1 {
		o.system, o.destination = its, destination
		return
	}
	if o.system != its {
		o.system = systemInbox
	}
	o.several = o.several || o.destination != destination
}

func (o *origin) attributes() []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if o.n > 0 {
		attributes = append(attributes, attrSystem.String(o.system))
	}
	if o.n > 0 && !o.several {
		attributes = append(attributes, attrDestination.String(text(o.destination)))
	}
	if o.n > 1 {
		attributes = append(attributes, attrBatch.Int(o.n))
	}
	return attributes
}

// carrier reads a producer's trace context from a message: from its headers, or else from its attributes (CloudEvents'
// extension for distributed tracing). Header names are compared without case, because producers spell them differently.
type carrier handler.Properties

// maxContextBytes limits a value that a propagator gets, because the value is read at the accept and again at each
// attempt. W3C's limits are not higher: 8,192 bytes for baggage, 512 for a tracestate that must be passed on.
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
// application's propagator reads. Malformed context counts as missing, as does one on which that propagator panics.
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

// maxText is how many characters of a text that came from outside a span gets.
const maxText = 2000

// text makes a text that came with a message, or from a handler, valid for a span. Exporters refuse a whole batch of
// spans because of one string that is not UTF-8.
func text(s string) string {
	if len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(brief.Characters(s, maxText), "\uFFFD")
	return brief.Characters(s, maxText)
}

// stacked is an error whose text ends with a stack after an empty line, such as the error of a handler's panic.
type stacked interface{ Trace() []byte }

// explain returns an error's text and, separately, the stack it carries. Both are redacted before they are cut. The
// error is application code, so its methods may panic.
func (i *Instruments) explain(of redact.Value, err error) (message, stack string) {
	defer func() {
		if v := recover(); v != nil {
			message, stack = text(fmt.Sprintf("%T, which panics when it is asked for its text", err)), ""
		}
	}()
	message = err.Error()
	var panicked stacked
	if errors.As(err, &panicked) && len(panicked.Trace()) > 0 {
		stack = string(panicked.Trace())
		message = strings.Replace(message, "\n\n"+stack, "", 1)
	}
	return text(i.cfg.Redactor.Error(of, message)), text(i.cfg.Redactor.Error(of, stack))
}

// fail sets a span's status to error and adds the error as an event, as trace.Span.RecordError would.
func (i *Instruments) fail(span trace.Span, of redact.Value, err error, errorType string) {
	if err == nil || !span.IsRecording() {
		return
	}
	message, stack := i.explain(of, err)
	event := []attribute.KeyValue{attrExceptionType.String(fmt.Sprintf("%T", err)), attrExceptionMessage.String(message)}
	if stack != "" {
		event = append(event, attrExceptionStack.String(stack))
	}
	span.SetAttributes(attrErrorType.String(errorType))
	span.AddEvent(eventException, trace.WithAttributes(event...))
	span.SetStatus(codes.Error, message)
}
