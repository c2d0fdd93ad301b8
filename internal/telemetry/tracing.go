package telemetry

import (
	"context"
	"reflect"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gorm-inbox/inbox/handler"
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
	// Traceparent is stored with the messages, so that their attempts can link to the accept; empty if the span is not
	// sampled.
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
