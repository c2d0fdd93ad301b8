package engine

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

// Health is the root package's Health, which says what the fields mean.
type Health struct {
	State   ops.HealthState
	Reasons []ops.HealthReason
	Running bool
	Live    bool

	Processor      processor.Health
	Consumers      []kafkaconsumer.Health
	Cleanup        cleanup.Health
	Backlog        []processor.Backlog
	Workers        int
	SampledAt      time.Time
	SampleErr      error
	InPlaceStuck   map[string]int
	InPlaceOutages map[string]error

	// failing are the handlers that fail and are retried, by Inline or Direct channel, the longest failing first.
	failing map[string][]health.FailingHandler
}

// Health returns the inbox's health from what the process knows already. It asks neither the database nor a broker.
func (e *Engine) Health() Health {
	h := Health{Processor: e.processor.Health(), Cleanup: e.cleaner.Health(), InPlaceStuck: map[string]int{},
		InPlaceOutages: map[string]error{}, failing: map[string][]health.FailingHandler{}}
	e.mu.Lock()
	h.Running = e.started
	for _, c := range e.consumers {
		h.Consumers = append(h.Consumers, c.Health())
	}
	e.mu.Unlock()
	reasons, live := health.Judge(e.facts(&h))
	h.State, h.Live, h.Reasons = health.Healthy, live, make([]ops.HealthReason, len(reasons))
	for i, r := range slices.Backward(reasons) {
		h.State = health.Degraded
		if r.Unhealthy {
			h.State = health.Unhealthy
		}
		of := redact.Value{Channel: r.Channel, HandlerKey: r.HandlerKey} // errors may quote data and connection strings
		h.Reasons[i] = ops.HealthReason{Code: r.Code, State: h.State, Channel: r.Channel, HandlerKey: r.HandlerKey,
			MessageIDs: r.MessageIDs, Since: r.Since, ProbeAt: r.ProbeAt, Detail: shortened(e.cfg.Redactor.Error(of, r.Detail))}
	}
	return h
}

// facts returns the reports of the process's parts, and stores in h the ones that Health shows.
func (e *Engine) facts(h *Health) *health.Facts {
	p, c := h.Processor, h.Cleanup
	f := &health.Facts{Now: e.cfg.Clock.Now(), Limits: e.cfg.Limits, Running: p.Running, Standby: standsBy(p),
		WorkerID: p.WorkerID, Busy: p.Busy, ProgressAt: p.ProgressAt, Errors: p.Conditions, Stuck: maps.Clone(p.Stuck),
		UnknownKeys: p.UnknownKeys, ClockAhead: p.ClockSkew, BarredRoles: p.BarredRoles,
		Role: p.DatabaseRole, Synchronous: map[string]health.Synchronous{}, CleanupErr: c.Err}
	for _, open := range p.OpenCircuits {
		f.OpenCircuits = append(f.OpenCircuits, health.OpenCircuit(open))
	}
	if c.Overdue {
		f.CleanupHeld, f.CleanupHeldSince = c.Held, c.HeldSince
	}
	for _, c := range e.cfg.Channels {
		r := e.runners[c.Name]
		if r == nil {
			continue
		}
		reported := health.Synchronous{Outage: r.Outage(), ExcusedUntil: r.ExcusedUntil(), Failing: r.Failing(),
			Paused: e.pausedSynchronous(c)}
		f.Synchronous[c.Name] = reported
		if reported.Outage != nil {
			h.InPlaceOutages[c.Name] = reported.Outage
		}
		h.failing[c.Name] = reported.Failing
		maps.Copy(h.InPlaceStuck, r.Stuck()) // handler keys are unique over all channels
	}
	maps.Copy(f.Stuck, h.InPlaceStuck)
	for _, c := range e.running.Calls() {
		f.Calls = append(f.Calls, health.Call{HandlerKey: c.Handler.Key(), MessageIDs: c.MessageIDs(), Since: c.Since,
			Timeout: e.timeoutOf(c.Handler)})
	}
	for _, c := range h.Consumers {
		f.Consumers = append(f.Consumers, channelFacts(c))
	}
	e.sampler.report(h, f)
	return f
}

// standsBy reports whether another worker holds the lock of Exclusive mode.
func standsBy(p processor.Health) bool { return p.Mode == processor.ModeExclusive && !p.HoldsLock }

func channelFacts(c kafkaconsumer.Health) health.Channel {
	halted := c.Halted()
	c.Partitions = slices.DeleteFunc(slices.Clone(c.Partitions), func(p kafkaconsumer.PartitionHealth) bool {
		return p.Halted != nil
	})
	facts := health.Channel{Name: c.Channel, Halts: len(halted), Err: c.Err()}
	for _, p := range halted[:min(len(halted), health.MaxHalts)] {
		facts.Halted = append(facts.Halted, p.Problem())
	}
	for _, p := range c.Partitions {
		if !p.StalledSince.IsZero() {
			facts.Stalled = append(facts.Stalled, p.StalledSince)
		}
	}
	return facts
}

// These bound health as it is shown, and as a heartbeat stores it: the row is written every few seconds, and an error's
// text may be long.
const (
	maxStoredReasons    = 50
	maxStoredDetail     = 500 // characters
	maxStoredPartitions = 100
)

// report returns what workers store for operators: the reasons, the worst first, and the state of the consumers.
func (e *Engine) report() (reasons, consumers string) {
	h := e.Health()
	return jsonOf(h.Reasons[:min(len(h.Reasons), maxStoredReasons)]), jsonOf(e.storedConsumers(h.Consumers, h.failing))
}

// settings returns what the worker's row shows operators of this process's settings.
func (e *Engine) settings() string {
	p := e.cfg.Processor
	all := ops.WorkerSettings{WorkerTimeout: p.WorkerTimeout, SweepInterval: p.SweepInterval}
	for _, c := range e.cfg.Channels {
		for _, key := range c.HandlerKeys {
			s, known := e.cfg.Registry.Subscription(key)
			if !known {
				continue
			}
			h := s.Handler
			maxRetries, own := h.MaxRetries()
			if !own {
				maxRetries = c.MaxRetries
			}
			breaker, _ := h.CircuitBreaker()
			perSecond, burst := h.Rate()
			destination := ""
			if c.Sender != nil {
				destination = c.Sender.destination()
			}
			all.Handlers = append(all.Handlers, ops.HandlerSettings{Destination: destination, Keys: h.Keys(), Channel: c.Name,
				Mode: [...]string{Inbox: "Inbox", Inline: "Inline", Direct: "Direct"}[c.Mode], Type: s.Type,
				Kind: h.Kind().String(), Timeout: e.timeoutOf(h), MaxRetries: maxRetries,
				Concurrency: cmp.Or(h.Concurrency(), p.Concurrency), Retention: cmp.Or(h.Retention(), e.cfg.Cleanup.Retention),
				Ordered: h.Ordered(), SkipPoisoned: h.SkipsPoisoned(), BatchSize: h.BatchSize(), TxGroup: h.TxGroup(),
				FleetConcurrency: h.FleetConcurrency(), Rate: perSecond, Burst: burst, RateByKey: h.RateKey() != nil,
				BreakerFailures: breaker.Failures, BreakerOpenFor: breaker.OpenFor})
		}
	}
	return jsonOf(all)
}

func shortened(detail string) string {
	if cut := brief.Characters(detail, maxStoredDetail); len(cut) < len(detail) {
		return cut + "…"
	}
	return detail
}

func jsonOf(list any) string {
	encoded, err := json.Marshal(list)
	if err != nil { // strings, numbers and times cannot fail to encode
		return ""
	}
	return string(encoded)
}
