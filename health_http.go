package inbox

import (
	"encoding/json"
	"net/http"

	"github.com/gorm-inbox/inbox/ops"
)

// healthBody is what the handlers answer.
type healthBody struct {
	Inbox   string             `json:"inbox"`
	State   ops.HealthState    `json:"state"`
	Live    bool               `json:"live"`
	Ready   bool               `json:"ready"`
	Reasons []ops.HealthReason `json:"reasons"`
}

// LiveHandler answers 200 while Health().Live() and 503 else, with the state and
// its reasons as JSON. It is for what restarts the process, such as a liveness
// probe. Use ReadyHandler for everything that does not. It never waits for the database. Details may
// name hosts, topics and handler keys, so do not serve it to the public
// (contract 11.5).
func (ib *Inbox) LiveHandler() http.Handler { return ib.healthHandler(Health.Live) }

// ReadyHandler answers 200 while Health().Ready() and 503 else: before Start, from
// Stop on, while work stands still, and while a partition is halted. Do not have
// it restart the process: what makes it unready is mostly not mended by that. See
// LiveHandler (contract 11.5).
func (ib *Inbox) ReadyHandler() http.Handler { return ib.healthHandler(Health.Ready) }

func (ib *Inbox) healthHandler(good func(Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := ib.Health()
		body := healthBody{Inbox: ib.Name(), State: h.State, Live: h.Live(), Ready: h.Ready(),
			Reasons: append([]ops.HealthReason{}, h.Reasons...)}
		text, err := json.Marshal(body)
		if err != nil { // there is nothing in it that json cannot write
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !good(h) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(append(text, '\n')) // whoever asked may be gone
	})
}
