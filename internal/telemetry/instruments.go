package telemetry

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/redaction"
)

// Config configures Instruments. Each of the two providers may be nil: then OpenTelemetry's global one is used, which
// does nothing unless the application has set it. A nil Propagator reads trace context and nothing else.
type Config struct {
	Inbox          string
	Counters       *Counters
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
	// Redactor redacts errors before they become part of a span.
	Redactor redaction.Redactor
}

// Instruments measure and trace one inbox. They are safe for concurrent use. Nil Instruments do nothing. Without a
// provider each call only checks whether there is one, and allocates nothing.
type Instruments struct {
	cfg   Config
	meter metric.Meter

	accept, wait, run, completion, cleanup metric.Float64Histogram

	deleted metric.Int64Counter
	// Options of measurements, made once.
	ofChannel, ofHandler map[string][]metric.RecordOption // by channel, by handler key
	ran                  map[runLabels][]metric.RecordOption
	counts               metric.Registration
}

// runLabels are the labels by which completed attempts differ.
type runLabels struct{ handler, system string }

// New returns an inbox's Instruments. Its Counters are observed until Close.
func New(cfg Config) (*Instruments, error) {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	i := &Instruments{cfg: cfg, meter: provider.Meter(Scope, metric.WithInstrumentationVersion(Version())),
		ofChannel: map[string][]metric.RecordOption{}, ofHandler: map[string][]metric.RecordOption{},
		ran: map[runLabels][]metric.RecordOption{}}
	var problems [6]error
	i.accept, problems[0] = histogram(i.meter, acceptDuration)
	i.wait, problems[1] = histogram(i.meter, waitDuration)
	i.run, problems[2] = histogram(i.meter, runDuration)
	i.completion, problems[3] = histogram(i.meter, completionDuration)
	i.cleanup, problems[4] = histogram(i.meter, cleanupDuration)
	i.deleted, problems[5] = i.meter.Int64Counter(cleanupDeleted.name, metric.WithUnit(cleanupDeleted.unit),
		metric.WithDescription(cleanupDeleted.description))
	for channel := range cfg.Counters.channels {
		i.ofChannel[channel] = i.record(attrChannel.String(channel))
	}
	for key, its := range cfg.Counters.handlers {
		handler := attrHandler.String(its.label)
		i.ofHandler[key] = i.record(handler)
		for _, system := range []string{systemKafka, systemInbox} {
			i.ran[runLabels{key, system}] = i.record(handler, attrSystem.String(system), attrOperation.String(operationProcess),
				attrOutcome.String(outcomeCompleted))
		}
	}
	if err := errors.Join(problems[:]...); err != nil {
		return nil, err
	}
	// A counter has no series before it is added to, and the first deletions would not count as an increase.
	i.countDeleted(context.Background(), handler.Deleted{})
	return i, i.observeCounters()
}

// Close ends the observation of the counters.
func (i *Instruments) Close() error { return i.counts.Unregister() }

func histogram(meter metric.Meter, d instrument) (metric.Float64Histogram, error) {
	h, err := meter.Float64Histogram(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.description),
		metric.WithExplicitBucketBoundaries(d.buckets...))
	return h, named(d, err)
}

func named(d instrument, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("instrument %q: %w", d.name, err)
}

// attributes returns the given attributes together with the inbox's name.
func (i *Instruments) attributes(more ...attribute.KeyValue) attribute.Set {
	return attribute.NewSet(append(more, attrInbox.String(i.cfg.Inbox))...)
}

func (i *Instruments) record(more ...attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(i.attributes(more...))}
}

// observeCounters registers the counters to be read whenever metrics are collected.
func (i *Instruments) observeCounters() error {
	counters := make([]metric.Int64ObservableCounter, events)
	observed := make([]metric.Observable, events)
	var problems []error
	for e, d := range eventInstruments {
		var err error
		counters[e], err = i.meter.Int64ObservableCounter(d.name, metric.WithUnit(d.unit),
			metric.WithDescription(d.description))
		problems = append(problems, named(d.instrument, err))
		observed[e] = counters[e]
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	// The callback must not keep more of the inbox reachable than this. It stays registered until the inbox is garbage,
	// so that a collection after the inbox's stop shows its last counts.
	all, inbox := i.cfg.Counters, attrInbox.String(i.cfg.Inbox)
	var err error
	i.counts, err = i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for e, d := range eventInstruments {
			all.each(Event(e), func(label string, n int64) {
				switch d.by {
				case wholeInbox:
					o.ObserveInt64(counters[e], n, metric.WithAttributes(inbox))
				case perChannel:
					o.ObserveInt64(counters[e], n, metric.WithAttributes(inbox, attrChannel.String(label)))
				default:
					o.ObserveInt64(counters[e], n, metric.WithAttributes(inbox, attrHandler.String(label)))
				}
			})
		}
		return nil
	}, observed...)
	if err != nil {
		return fmt.Errorf("observe the counters: %w", err)
	}
	return nil
}

// TimesAccepts reports whether calling Accepted has any effect.
func (i *Instruments) TimesAccepts(ctx context.Context) bool {
	return i != nil && i.accept.Enabled(ctx)
}

// Accepted measures one accept: how long its transaction took, and whether it failed. Several channels count as Other.
func (i *Instruments) Accepted(ctx context.Context, channel string, took time.Duration, failed bool) {
	options, declared := i.ofChannel[channel]
	if failed || !declared {
		if !declared {
			channel = Other
		}
		of := []attribute.KeyValue{attrChannel.String(channel)}
		if failed {
			of = append(of, attrErrorType.String(Other))
		}
		options = i.record(of...)
	}
	i.accept.Record(ctx, took.Seconds(), options...)
}

// TimesWaits reports whether calling Waited has any effect.
func (i *Instruments) TimesWaits(ctx context.Context) bool { return i != nil && i.wait.Enabled(ctx) }

// Waited measures how long a status was due before its attempt began.
func (i *Instruments) Waited(ctx context.Context, handlerKey string, d time.Duration) {
	i.wait.Record(ctx, max(d, 0).Seconds(), i.handlerOptions(handlerKey)...)
}

// Completed measures how long after its creation a status was completed.
func (i *Instruments) Completed(ctx context.Context, handlerKey string, d time.Duration) {
	if i == nil || !i.completion.Enabled(ctx) {
		return
	}
	i.completion.Record(ctx, max(d, 0).Seconds(), i.handlerOptions(handlerKey)...)
}

func (i *Instruments) handlerOptions(handlerKey string) []metric.RecordOption {
	if options, declared := i.ofHandler[handlerKey]; declared {
		return options
	}
	return i.record(attrHandler.String(Other))
}

// Ran measures one attempt by its outcome and, unless it has completed, by the class of its error.
func (i *Instruments) Ran(ctx context.Context, handlerKey, transport, outcome, errorType string, took time.Duration) {
	if i == nil || !i.run.Enabled(ctx) {
		return
	}
	options, declared := i.ran[runLabels{handlerKey, system(transport)}]
	if !declared || outcome != outcomeCompleted {
		label := Other
		if its := i.cfg.Counters.handlers[handlerKey]; its != nil {
			label = its.label
		}
		of := []attribute.KeyValue{attrHandler.String(label), attrSystem.String(system(transport)),
			attrOperation.String(operationProcess), attrOutcome.String(outcome)}
		if errorType != "" {
			of = append(of, attrErrorType.String(errorType))
		}
		options = i.record(of...)
	}
	i.run.Record(ctx, took.Seconds(), options...)
}

// deletions are the rows that a run of cleanup deleted, by table.
func deletions(d handler.Deleted) map[string]int64 {
	return map[string]int64{"messages": d.Messages, "statuses": d.Statuses, "markers": d.Markers, "audit": d.Audit,
		"rejected": d.Rejected, "workers": d.Workers, "leases": d.Leases}
}

// Cleaned measures one run of cleanup that had the lease.
func (i *Instruments) Cleaned(ctx context.Context, took time.Duration, failed bool, deleted handler.Deleted) {
	if i == nil {
		return
	}
	var of []attribute.KeyValue
	if failed {
		of = append(of, attrErrorType.String(Other))
	}
	i.cleanup.Record(ctx, took.Seconds(), i.record(of...)...)
	i.countDeleted(ctx, deleted)
}

func (i *Instruments) countDeleted(ctx context.Context, deleted handler.Deleted) {
	for table, rows := range deletions(deleted) {
		i.deleted.Add(ctx, rows, metric.WithAttributeSet(i.attributes(attrTable.String(table))))
	}
}

// system returns the messaging system that a message came by.
func system(transport string) string {
	if transport == systemKafka {
		return systemKafka
	}
	return systemInbox
}

// ReceiverScope is the instrumentation scope of Receivers. It differs from an inbox's scope because these counters are
// counted as they happen, while an inbox's are observed: one scope may not have both under one name.
const ReceiverScope = Scope + "/idempotent"

// Receiver counts and measures one handler of an idempotent receiver that is used without an inbox, with an Inline
// channel's instruments (contract 8.6). It is safe for concurrent use, starts no goroutine, and needs no end.
type Receiver struct {
	counters [events]metric.Int64Counter
	run      metric.Float64Histogram

	counted   []metric.AddOption
	completed []metric.RecordOption // of a call that completed
	labels    []attribute.KeyValue  // of all calls
}

// receiverEvents are the events that a Receiver counts.
var receiverEvents = []Event{Processed, Failed, DuplicateSkipped, MissingKey}

// NewReceiver returns the Receiver of a handler. A nil provider is OpenTelemetry's global one. channel may be empty.
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

// Version returns the version of this module in the running program, as its go.mod requires it. It is "(devel)" if a
// directory replaces the module, and empty if the program was built without module information.
var Version = sync.OnceValue(func() string {
	build, known := debug.ReadBuildInfo()
	if !known {
		return ""
	}
	return versionIn(build)
})

func versionIn(build *debug.BuildInfo) string {
	for _, m := range append(build.Deps, &build.Main) {
		if m.Path != Scope {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}

// Sample is the state of an inbox at one moment, which the gauges show.
type Sample struct {
	// Fresh says that the database answered when it was last asked. If not, the values read from it are not shown. At
	// is when it last answered, by the inbox's clock; zero if it has not yet.
	Fresh bool
	At    time.Time
	// Began is when the inbox began to ask the database.
	Began      time.Time
	Handlers   []HandlerSample
	Workers    int
	Partitions []PartitionSample
	// OldestRunning is when each handler's oldest running call began, by key; zero if none runs. It needs no database.
	OldestRunning map[string]time.Time
	// Health is the process's state for each reason alone, by its code: 0 healthy, 1 degraded, 2 unhealthy.
	Health map[string]int
}

// HandlerSample is one handler's backlog, legacy keys included.
type HandlerSample struct {
	HandlerKey string
	// Due, Waiting, Processing and Poisoned count its statuses up to a bound, see store.Backlog. Capped says that there
	// are more.
	Due, Waiting, Processing, Poisoned int
	Capped                             bool
	// OldestDue is when the oldest of the due statuses became due, by this process's clock; zero if none is.
	OldestDue time.Time
	// Paused and Broken (its circuit breaker is open) mean that nothing is claimed for it.
	Paused, Broken bool
}

// PartitionSample is one assigned partition of a consumer.
type PartitionSample struct {
	Channel, GroupID, Topic string
	Partition               int
	// Lag is -1 while it is not known.
	Lag    int64
	Halted bool
}

// ObserveSamples shows the latest sample whenever metrics are collected, until stop is called. latest must be quick,
// and so must now, which is the inbox's clock.
func (i *Instruments) ObserveSamples(latest func() Sample, now func() time.Time) (stop func() error, err error) {
	g := gauges{Instruments: i}
	due, waiting := g.count(backlogDue), g.count(backlogWaiting)
	processing, poisoned := g.count(backlogProcessing), g.count(backlogPoisoned)
	paused, workers, health := g.count(handlerPaused), g.count(liveWorkers), g.count(healthState)
	lag, halted := g.count(consumerLag), g.count(consumerHalted)
	age, sampled, running := g.seconds(oldestDueAge), g.seconds(sampleAge), g.seconds(oldestRunningAge)
	if err := errors.Join(g.problems...); err != nil {
		return nil, err
	}
	of := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(i.attributes(more...))
	}
	registration, err := i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s, at := latest(), now()
		for code, state := range s.Health {
			o.ObserveInt64(health, int64(state), of(attrReason.String(code)))
		}
		for _, p := range s.Partitions {
			its := of(attrChannel.String(p.Channel), attrGroup.String(p.GroupID), attrSystem.String(systemKafka),
				attrDestination.String(p.Topic), attrPartition.String(strconv.Itoa(p.Partition)))
			if p.Lag >= 0 {
				o.ObserveInt64(lag, p.Lag, its)
			}
			o.ObserveInt64(halted, flag(p.Halted), its)
		}
		for key, since := range s.OldestRunning {
			o.ObserveFloat64(running, ageOf(since, at), of(attrHandler.String(key)))
		}
		answered := s.At
		if answered.IsZero() { // a database that has never answered must be visible, too
			answered = s.Began
		}
		if !answered.IsZero() {
			o.ObserveFloat64(sampled, max(at.Sub(answered), 0).Seconds(), of())
		}
		if !s.Fresh {
			return nil
		}
		o.ObserveInt64(workers, int64(s.Workers), of())
		for _, h := range s.Handlers {
			its := of(attrHandler.String(h.HandlerKey))
			o.ObserveInt64(due, int64(h.Due), its)
			o.ObserveInt64(waiting, int64(h.Waiting), its)
			o.ObserveInt64(processing, int64(h.Processing), its)
			o.ObserveInt64(poisoned, int64(h.Poisoned), its)
			o.ObserveInt64(paused, flag(h.Paused), its)
			o.ObserveFloat64(age, ageOf(h.OldestDue, at), its)
		}
		return nil
	}, g.all...)
	if err != nil {
		return nil, fmt.Errorf("observe samples: %w", err)
	}
	return registration.Unregister, nil
}

// gauges creates gauges and collects the errors of doing so.
type gauges struct {
	*Instruments
	all      []metric.Observable
	problems []error
}

func (g *gauges) count(d instrument) metric.Int64ObservableGauge {
	made, err := g.meter.Int64ObservableGauge(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.description))
	g.all, g.problems = append(g.all, made), append(g.problems, named(d, err))
	return made
}

func (g *gauges) seconds(d instrument) metric.Float64ObservableGauge {
	made, err := g.meter.Float64ObservableGauge(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.description))
	g.all, g.problems = append(g.all, made), append(g.problems, named(d, err))
	return made
}

// ageOf returns how long something has lasted, in seconds; 0 if since is zero.
func ageOf(since, now time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return max(now.Sub(since), 0).Seconds()
}

func flag(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
