// Package workload is shared by the end-to-end tests and the soak test. It has a worker process
// with a real inbox whose handlers write append-only rows, functions to start, kill and freeze such
// processes, and a ledger that compares what was produced with the database. Its results do not
// depend on the inbox's counters.
package workload

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Names that worker, producers and ledger share.
const (
	InboxName = "endtoend"
	Channel   = "jobs"
	JobType   = "job.run"
	// EffectKey is the key of the transactional handler, RunKey that of the plain one.
	EffectKey = "record-effect"
	RunKey    = "log-run"
	// handlers is the number of status rows each message has.
	handlers = 2
)

// Job is a message's payload. It tells the handlers what to do.
type Job struct {
	// DelayMS is how long each handler takes, in milliseconds.
	DelayMS int `json:"delay_ms,omitempty"`
	// Fails is how many of the first attempts fail.
	Fails int `json:"fails,omitempty"`
	// Poison makes the handlers poison the message at once.
	Poison bool `json:"poison,omitempty"`
	// PoisonRun makes only the plain handler poison the message.
	PoisonRun bool `json:"poison_run,omitempty"`
	// Stubborn makes the handlers continue after their context was cancelled.
	Stubborn bool `json:"stubborn,omitempty"`
}

// Content returns the job as a message's content.
func (j Job) Content() []byte {
	content, err := json.Marshal(j)
	if err != nil {
		panic(fmt.Sprintf("a struct of numbers and booleans always encodes: %v", err))
	}
	return content
}

// Message returns the job as a message that is accepted directly.
func (j Job) Message(id string) handler.RawMessage {
	return handler.RawMessage{Channel: Channel, ID: id, Type: JobType, Source: "endtoend", ContentType: "application/json",
		Content: j.Content()}
}

func (j Job) delay() time.Duration { return time.Duration(j.DelayMS) * time.Millisecond }
