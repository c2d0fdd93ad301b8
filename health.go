package inbox

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
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
	// State is the state of the worst reason, which is the first. A healthy inbox has no Reasons.
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
	reasons, live := health.Judge(ib.facts(&h))
	h.State, h.dead, h.Reasons = HealthHealthy, !live, make([]ops.HealthReason, len(reasons))
	for i, r := range slices.Backward(reasons) {
		h.State = HealthDegraded
		if r.Unhealthy {
			h.State = HealthUnhealthy
		}
		of := redact.Value{Channel: r.Channel, HandlerKey: r.HandlerKey} // errors may quote data and connection strings
		h.Reasons[i] = ops.HealthReason{Code: r.Code, State: h.State, Channel: r.Channel, HandlerKey: r.HandlerKey,
			MessageIDs: r.MessageIDs, Detail: shortened(ib.cfg.redactor.Error(of, r.Detail))}
	}
	return h
}

// facts returns the reports of the process's parts, and stores in h the ones that Health shows.
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

// healthBody is the response of the handlers.
type healthBody struct {
	Inbox   string             `json:"inbox"`
	State   ops.HealthState    `json:"state"`
	Live    bool               `json:"live"`
	Ready   bool               `json:"ready"`
	Reasons []ops.HealthReason `json:"reasons"`
}

// LiveHandler responds with 200 while Health().Live() and with 503 otherwise, with the state and its reasons as JSON.
// Use it for probes that restart the process, and ReadyHandler for all others. It never waits for the database. Do not
// serve it to the public: details may name hosts, topics and handler keys (contract 11.5).
func (ib *Inbox) LiveHandler() http.Handler { return ib.healthHandler(Health.Live) }

// ReadyHandler responds with 200 while Health().Ready() and with 503 otherwise: before Start, from Stop on, while work
// has stopped, and while a partition is halted. Do not use it for probes that restart the process, which rarely helps.
// See LiveHandler (contract 11.5).
func (ib *Inbox) ReadyHandler() http.Handler { return ib.healthHandler(Health.Ready) }

func (ib *Inbox) healthHandler(good func(Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := ib.Health()
		body := healthBody{Inbox: ib.Name(), State: h.State, Live: h.Live(), Ready: h.Ready(), Reasons: h.Reasons}
		text, err := json.Marshal(body)
		if err != nil { // json can encode all of it
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !good(h) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(append(text, '\n')) // the client may be gone
	})
}
