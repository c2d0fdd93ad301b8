package inbox

import (
	"runtime"

	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// countersOf makes counters that tell the declared channels and handlers apart.
func countersOf(cfg *config, registry *registry.Registry) *telemetry.Counters {
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
		MeterProvider: ib.cfg.options.MeterProvider, TracerProvider: ib.cfg.options.TracerProvider,
		Propagator: ib.cfg.options.Propagator,
		Redactor:   ib.cfg.redactor})
	if err != nil {
		return err
	}
	runtime.AddCleanup(ib, func(i *telemetry.Instruments) {
		_ = i.Close() // nobody is left to tell
	}, ib.instruments)
	return nil
}
