package inbox

import (
	"encoding/json"
	"net/http"

	"github.com/gorm-inbox/inbox/ops"
)

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
