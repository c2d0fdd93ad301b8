package inbox

import (
	"runtime"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// MeterProvider is where the inbox's metrics go. Do not set it where the
// application sets OpenTelemetry's global one (otel.SetMeterProvider): that is
// the default, and does nothing until it is set, before or after the inbox is
// made (contract 12).
//
// Counters are exported from New on, gauges between Start and Stop. Gauges of
// the database are sampled every SampleInterval by each process, and show the
// same in all: take their maximum, not their sum.
func MeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meterProvider = p } }

// TracerProvider is where the inbox's spans go: one of each accept, of one
// message or of a batch, and one of each attempt, linked to it. Do not set it where
// the application sets OpenTelemetry's global one (otel.SetTracerProvider), which
// is the default. What is sampled is the provider's to say: with all of it, a span
// per attempt is made, and a hundred bytes are stored with each message
// (contract 12).
func TracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.tracerProvider = p }
}

// Propagator reads the producer's context from a message's headers, so that
// attempts go on in its trace; what it cannot read begins a new one. Default
// propagation.TraceContext{} (traceparent and tracestate), whatever
// OpenTelemetry's global one is. Set it for producers that send their context in
// another format. Do not let it read baggage (propagation.Baggage{}, which the global
// one of most applications has) unless you trust every producer: whoever may write
// to the topic then decides what handlers, and the services they call, find in
// their context, such as a role or a tenant. It gets no value of more than 8 KiB
// (contract 12).
func Propagator(p propagation.TextMapPropagator) Option {
	return func(c *config) { c.propagator = p }
}

// countersOf makes counters that tell the declared channels and handlers apart.
func countersOf(cfg *config, registry *handler.Registry) *telemetry.Counters {
	var keys [][]string
	for _, h := range registry.Handlers() {
		keys = append(keys, h.Keys())
	}
	return telemetry.NewCounters(channelNames(cfg.channels), keys)
}

// instrument makes the instruments. The counters are observed until the inbox is
// forgotten: what is collected after its stop, when the application ends its
// provider, has the last counts. So nothing that is observed may refer to ib.
func (ib *Inbox) instrument() error {
	var err error
	ib.instruments, err = telemetry.New(telemetry.Config{Inbox: ib.cfg.name, Counters: ib.counters,
		MeterProvider: ib.cfg.meterProvider, TracerProvider: ib.cfg.tracerProvider, Propagator: ib.cfg.propagator,
		Redactor: ib.cfg.redactor})
	if err != nil {
		return err
	}
	runtime.AddCleanup(ib, func(i *telemetry.Instruments) {
		_ = i.Close() // nobody is left to tell
	}, ib.instruments)
	return nil
}
