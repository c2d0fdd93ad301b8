// Package workload is what the end-to-end tests and the soak run: a worker
// process with a real inbox whose handlers leave append-only rows behind, the
// processes to start, kill and freeze, and the ledger that compares what was
// produced with what the database holds. Nothing it says comes from counters.
package workload

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Names that worker, producers and ledger agree on.
const (
	InboxName = "endtoend"
	Channel   = "jobs"
	JobType   = "job.run"
	// EffectKey is the transactional handler, RunKey the plain one.
	EffectKey = "record-effect"
	RunKey    = "log-run"
	// handlers is the number of status rows each message has.
	handlers = 2
)

// Job is a message's payload: it says what its handlers are to do.
type Job struct {
	// DelayMS is how long each handler takes, in milliseconds.
	DelayMS int `json:"delay_ms,omitempty"`
	// Fails is how many of the first attempts fail.
	Fails int `json:"fails,omitempty"`
	// Poison makes the handlers give up at once.
	Poison bool `json:"poison,omitempty"`
	// Stubborn handlers go on in spite of a cancelled context.
	Stubborn bool `json:"stubborn,omitempty"`
}

// Content is the job as a message carries it.
func (j Job) Content() []byte {
	content, err := json.Marshal(j)
	if err != nil {
		panic(fmt.Sprintf("a struct of numbers and booleans always encodes: %v", err))
	}
	return content
}

// Message is the job as a message to accept directly.
func (j Job) Message(id string) handler.RawMessage {
	return handler.RawMessage{Channel: Channel, ID: id, Type: JobType, Source: "endtoend", ContentType: "application/json",
		Content: j.Content()}
}

func (j Job) delay() time.Duration { return time.Duration(j.DelayMS) * time.Millisecond }
