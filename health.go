package inbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
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

// rank orders the states as the gauge inbox.health does.
func rank(s ops.HealthState) int {
	return slices.Index([]ops.HealthState{HealthHealthy, HealthDegraded, HealthUnhealthy}, s)
}

// Health is the state of an inbox at one moment.
type Health struct {
	// State is that of the worst reason. A healthy inbox has no Reasons.
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

	longRunning []longRunning // calls that have not returned for LongRunning
	// failing are the handlers that fail and are retried, by Inline or Direct channel, the longest failing first.
	failing map[string][]synchronous.Failing
}

// Ready reports whether the process can do its work: it runs, it is not unhealthy, and none of its partitions is
// halted.
func (h Health) Ready() bool { return h.Running && h.State != HealthUnhealthy }

// Live reports false only where a restart of the process helps. That is so if work is due, no attempt has ended for
// HealthUnhealthyAfter, nothing runs and no known error explains it, and also if the database's pool is closed. The
// process is live while the database or a broker is away, while handlers hang, and while a partition is halted.
func (h Health) Live() bool {
	if slices.ContainsFunc(h.Reasons, func(r ops.HealthReason) bool { return r.Code == health.ClosedPool }) {
		return false
	}
	if h.Processor.Busy > 0 || len(h.Processor.Conditions) > 0 || len(h.Processor.Stuck) > 0 {
		return true
	}
	return !slices.ContainsFunc(h.Reasons, func(r ops.HealthReason) bool {
		return r.Code == health.NoProgress && r.State == HealthUnhealthy
	})
}

// Degraded joins what the processor, the consumers and cleanup report as wrong. It returns nil if nothing is.
func (h Health) Degraded() error {
	var problems []error
	for what, err := range h.Processor.Conditions {
		problems = append(problems, fmt.Errorf("%s: %w", what, err))
	}
	for key, n := range h.Processor.Stuck {
		problems = append(problems, fmt.Errorf("handler %q: %d calls ignore their cancelled context", key, n))
	}
	for key, n := range h.InPlaceStuck {
		problems = append(problems, fmt.Errorf("handler %q: %d calls in place ignore their cancelled context", key, n))
	}
	for _, o := range h.longRunning {
		problems = append(problems, fmt.Errorf("handler %q: %s", o.handlerKey, o.detail))
	}
	for channel, err := range h.InPlaceOutages {
		problems = append(problems, fmt.Errorf("channel %q: attempts cannot be made or finished: %w", channel, err))
	}
	for channel, failing := range h.failing {
		problems = append(problems, fmt.Errorf("channel %q: handlers fail with %d messages, for longest %q: %w", channel,
			len(failing), failing[0].HandlerKey, failing[0].Err))
	}
	for _, key := range h.Processor.OpenCircuits {
		problems = append(problems, fmt.Errorf("handler %q: its circuit breaker is open", key))
	}
	if skew := h.Processor.ClockSkew; skew != 0 {
		problems = append(problems, errors.New(skewed(skew)))
	}
	if len(h.Processor.BarredRoles) > 0 {
		problems = append(problems, errors.New(barred(h.Processor)))
	}
	for _, c := range h.Consumers {
		if err := c.Err(); err != nil {
			problems = append(problems, fmt.Errorf("channel %q: %w", c.Channel, err))
		}
	}
	if c := h.Cleanup; c.Overdue {
		problems = append(problems, fmt.Errorf("cleanup is held since %s: %w", c.HeldSince.Format(time.RFC3339), c.Held))
	}
	if err := h.Cleanup.Err; err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// Health returns the inbox's health from what the process knows already. It asks neither the database nor a broker
// (contract 11.5).
func (ib *Inbox) Health() Health {
	h := Health{Processor: ib.processor.Health(), Cleanup: ib.cleaner.Health(), InPlaceStuck: map[string]int{},
		InPlaceOutages: map[string]error{}, failing: map[string][]synchronous.Failing{}}
	for channel, r := range ib.runners {
		if failing := r.Failing(); len(failing) > 0 {
			h.failing[channel] = failing
		}
		maps.Copy(h.InPlaceStuck, r.Stuck()) // handler keys are unique over all channels
		if err := r.Outage(); err != nil {
			h.InPlaceOutages[channel] = err
		}
	}
	h.longRunning = ib.longRunning(h.Processor.WorkerID)
	ib.mu.Lock()
	h.Running = ib.started
	for _, c := range ib.consumers {
		h.Consumers = append(h.Consumers, c.Health())
	}
	ib.mu.Unlock()
	h.judge(ib.sampler, ib.cfg.options)
	return h
}

// These bound health as it is shown, and what a heartbeat stores of it: the row is written every few seconds, and an
// error's text may be long.
const (
	maxStoredReasons    = 50
	maxStoredDetail     = 500 // characters
	maxStoredPartitions = 100
)

// report returns what workers store for operators: the reasons, the worst first, and the state of the consumers.
func (ib *Inbox) report() (health, consumers string) {
	h := ib.Health()
	reasons := append([]ops.HealthReason{}, h.Reasons...)
	slices.SortStableFunc(reasons, func(a, b ops.HealthReason) int { return rank(b.State) - rank(a.State) })
	reasons = reasons[:min(len(reasons), maxStoredReasons)]
	return jsonOf(reasons), jsonOf(ib.storedConsumers(h.Consumers, h.failing))
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
