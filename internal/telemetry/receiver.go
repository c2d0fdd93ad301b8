package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gorm-inbox/inbox/handler"
)

// ReceiverScope is the instrumentation scope of Receivers. It differs from an inbox's scope because these counters are
// counted as they happen, while an inbox's are observed: one scope may not have both under one name.
const ReceiverScope = Scope + "/idempotent"

// Receiver counts and measures one handler of an idempotent receiver that is used without an inbox. It has the
// instruments that an Inline channel has (contract 8.6). It is safe for concurrent use, starts no goroutine, and needs
// no end.
type Receiver struct {
	counters [events]metric.Int64Counter
	run      metric.Float64Histogram

	counted   []metric.AddOption
	completed []metric.RecordOption // of a call that completed
	labels    []attribute.KeyValue  // of all calls
}

// receiverEvents are the events that a Receiver counts.
var receiverEvents = []Event{Processed, Failed, DuplicateSkipped, MissingKey}

// NewReceiver returns the Receiver of a handler. provider may be nil: then OpenTelemetry's global one is used. channel
// may be empty.
func NewReceiver(provider metric.MeterProvider, handlerKey, channel string) (*Receiver, error) {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(ReceiverScope, metric.WithInstrumentationVersion(Version()))
	of := []attribute.KeyValue{attrHandler.String(handlerKey)}
	if channel != "" {
		of = append(of, attrChannel.String(channel))
	}
	r := &Receiver{counted: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(of...))},
		labels: append(of, attrSystem.String(systemInbox), attrOperation.String(operationProcess))}
	r.completed = r.options(attrOutcome.String(outcomeCompleted))
	var problems []error
	for _, e := range receiverEvents {
		d, err := eventInstruments[e], error(nil)
		r.counters[e], err = meter.Int64Counter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.description))
		problems = append(problems, named(d.instrument, err))
	}
	var err error
	r.run, err = histogram(meter, runDuration)
	return r, errors.Join(append(problems, err)...)
}

// Count counts one of the receiverEvents.
func (r *Receiver) Count(ctx context.Context, e Event) { r.counters[e].Add(ctx, 1, r.counted...) }

// Ran measures a call of the handler, the store's transaction included.
func (r *Receiver) Ran(ctx context.Context, outcome handler.AttemptOutcome, took time.Duration) {
	if !r.run.Enabled(ctx) {
		return
	}
	options := r.completed
	if outcome != handler.AttemptCompleted {
		options = r.options(attrOutcome.String(string(outcome)), attrErrorType.String(Other))
	}
	r.run.Record(ctx, took.Seconds(), options...)
}

func (r *Receiver) options(more ...attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(append(more, r.labels...)...))}
}
