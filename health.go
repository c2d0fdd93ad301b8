package inbox

import (
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

// The states of an inbox (contract 11.5).
const (
	// HealthHealthy means that the inbox knows of nothing wrong.
	HealthHealthy ops.HealthState = "healthy"
	// HealthDegraded means that something is wrong, and that work continues or will continue by itself.
	HealthDegraded ops.HealthState = "degraded"
	// HealthUnhealthy means that work has stopped and that an operator should act.
	HealthUnhealthy ops.HealthState = "unhealthy"
)

// Health is the state of an inbox at one moment.
type Health struct {
	// State is that of the worst reason, which is the first. A healthy inbox has no Reasons.
	State   ops.HealthState
	Reasons []ops.HealthReason
	// Running is true between Start and Stop.
	Running bool

	Processor processor.Health
	Consumers []kafkaconsumer.Health
	Cleanup   cleanup.Health
	// Backlog is each handler's work at SampledAt, and Workers the number of live workers then. They are nil and zero
	// until the first sample, which is taken right after Start. SampleErr is why later samples failed.
	Backlog   []processor.Backlog
	Workers   int
	SampledAt time.Time
	SampleErr error
	// InPlaceStuck counts, by handler key, calls for Inline and Direct channels that ignore their cancelled context.
	// They outlast a rebalance and Stop, until the handler returns.
	InPlaceStuck map[string]int
	// InPlaceOutages has, by Inline or Direct channel, why attempts cannot be made or finished: an error of the
	// database or of the store of markers.
	InPlaceOutages map[string]error

	// failing are the handlers that fail and are retried, by Inline or Direct channel, the longest failing first.
	failing map[string][]health.FailingHandler
	dead    bool // the opposite of Live
}

// Ready reports whether the process can do its work: it runs, it is not unhealthy, and none of its partitions is
// halted.
func (h Health) Ready() bool { return h.Running && h.State != HealthUnhealthy }

// Live reports false only where a restart of the process helps. That is so if work is due, no attempt has ended for
// HealthUnhealthyAfter, nothing runs and no known error explains it, and also if the database's pool is closed. The
// process is live while the database or a broker is away, while handlers hang, and while a partition is halted.
func (h Health) Live() bool { return !h.dead }

// Degraded joins the Reasons to one error. It returns nil if there are none.
func (h Health) Degraded() error {
	problems := make([]error, len(h.Reasons))
	for i, r := range h.Reasons {
		problems[i] = errors.New(r.String())
	}
	return errors.Join(problems...)
}

// Health returns the inbox's health from what the process knows already. It asks neither the database nor a broker
// (contract 11.5).
func (ib *Inbox) Health() Health {
	h := Health{Processor: ib.processor.Health(), Cleanup: ib.cleaner.Health(), InPlaceStuck: map[string]int{},
		InPlaceOutages: map[string]error{}, failing: map[string][]health.FailingHandler{}}
	ib.mu.Lock()
	h.Running = ib.started
	for _, c := range ib.consumers {
		h.Consumers = append(h.Consumers, c.Health())
	}
	ib.mu.Unlock()
	verdict := health.Judge(ib.facts(&h))
	h.State, h.dead = ops.HealthState(verdict.State.String()), !verdict.Live
	h.Reasons = make([]ops.HealthReason, len(verdict.Reasons))
	for i, r := range verdict.Reasons { // errors may quote data and connection strings
		of := redact.Value{Channel: r.Channel, HandlerKey: r.HandlerKey}
		h.Reasons[i] = ops.HealthReason{Code: r.Code, State: ops.HealthState(r.State.String()), Channel: r.Channel,
			HandlerKey: r.HandlerKey, MessageIDs: r.MessageIDs, Detail: shortened(ib.cfg.redactor.Error(of, r.Detail))}
	}
	return h
}

// facts returns what the parts of the process report, and stores in h what it shows of it.
func (ib *Inbox) facts(h *Health) *health.Facts {
	p, o, c := h.Processor, ib.cfg.options, h.Cleanup
	f := &health.Facts{Now: ib.cfg.clock.Now(), Limits: health.Limits{DegradedAfter: o.HealthDegradedAfter,
		UnhealthyAfter: o.HealthUnhealthyAfter, MaxDueAge: o.HealthMaxDueAge, MaxPoisonRate: o.HealthMaxPoisonRate,
		PoisonWindow: poisonWindow(o), LongRunning: o.LongRunning},
		Running: p.Running, Standby: standsBy(p), WorkerID: p.WorkerID, Busy: p.Busy, ProgressAt: p.ProgressAt,
		Errors: p.Conditions, Stuck: maps.Clone(p.Stuck), OpenCircuits: p.OpenCircuits, UnknownKeys: p.UnknownKeys,
		ClockAhead: p.ClockSkew, BarredRoles: p.BarredRoles, Role: p.DatabaseRole,
		Synchronous: map[string]health.Synchronous{}, CleanupErr: c.Err}
	if c.Overdue {
		f.CleanupHeld, f.CleanupHeldSince = c.Held, c.HeldSince
	}
	for channel, r := range ib.runners {
		reported := health.Synchronous{Outage: r.Outage(), ExcusedUntil: r.ExcusedUntil(), Failing: r.Failing(),
			Paused: ib.pausedSynchronous(channel)}
		f.Synchronous[channel] = reported
		if reported.Outage != nil {
			h.InPlaceOutages[channel] = reported.Outage
		}
		h.failing[channel] = reported.Failing
		maps.Copy(h.InPlaceStuck, r.Stuck()) // handler keys are unique over all channels
	}
	maps.Copy(f.Stuck, h.InPlaceStuck)
	for _, c := range ib.running.Calls() {
		f.Calls = append(f.Calls, health.Call{HandlerKey: c.Handler.Key(), MessageIDs: c.MessageIDs(), Since: c.Since,
			Timeout: ib.timeoutOf(c.Handler)})
	}
	for _, c := range h.Consumers {
		f.Consumers = append(f.Consumers, channelFacts(c))
	}
	ib.sampler.report(h, f)
	return f
}

// standsBy reports whether another worker holds the lock of Exclusive mode.
func standsBy(p processor.Health) bool { return p.Mode == processor.ModeExclusive && !p.HoldsLock }

func channelFacts(c kafkaconsumer.Health) health.Channel {
	facts := health.Channel{Name: c.Channel}
	var others []kafkaconsumer.PartitionHealth
	for _, p := range c.Partitions {
		switch {
		case p.Halted == nil:
			others = append(others, p)
			if !p.StalledSince.IsZero() {
				facts.Stalled = append(facts.Stalled, p.StalledSince)
			}
			continue
		case facts.Halts < health.MaxHalts:
			facts.Halted = append(facts.Halted, p.Problem())
		}
		facts.Halts++
	}
	c.Partitions = others
	facts.Err = c.Err()
	return facts
}

// These bound health as it is shown, and what a heartbeat stores of it: the row is written every few seconds, and an
// error's text may be long.
const (
	maxStoredReasons    = 50
	maxStoredDetail     = 500 // characters
	maxStoredPartitions = 100
)

// report returns what workers store for operators: the reasons, the worst first, and the state of the consumers.
func (ib *Inbox) report() (reasons, consumers string) {
	h := ib.Health()
	return jsonOf(h.Reasons[:min(len(h.Reasons), maxStoredReasons)]), jsonOf(ib.storedConsumers(h.Consumers, h.failing))
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
