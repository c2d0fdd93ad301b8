package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

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
	// OldestRunning is when the oldest running call of each handler began, by handler key; zero if none runs. It does
	// not need the database.
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
	// OldestDue is when the oldest of the due statuses became due; zero if none is.
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
