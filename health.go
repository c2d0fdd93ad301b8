package inbox

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox/cleanup"
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

	dead bool // the opposite of Live
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
	h := ib.engine.Health()
	return Health{State: h.State, Reasons: h.Reasons, Running: h.Running, Processor: h.Processor, Consumers: h.Consumers,
		Cleanup: h.Cleanup, Backlog: h.Backlog, Workers: h.Workers, SampledAt: h.SampledAt, SampleErr: h.SampleErr,
		InPlaceStuck: h.InPlaceStuck, InPlaceOutages: h.InPlaceOutages, dead: !h.Live}
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
