package processor

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// interruptions counts how often in a row the database cut a status's attempts
// short. Nothing is charged for that, so no row counts it: each repeat waits twice
// as long as the one before, up to MaxRetryDelay, and it is logged and part of the
// health for as long as a status is affected (contract 5.7).
//
// The counts are of this process alone. A status that another worker goes on with
// is forgotten some time after its repeat was due.
type interruptions struct {
	condition *condition.Condition
	maxDelay  time.Duration

	mu       sync.Mutex
	statuses map[string]interruption
	pruneAt  time.Time
}

type interruption struct {
	times   int
	expires time.Time
}

// forgetAfter is how long after its repeat was due a status is remembered. Another
// worker may have claimed it, and then nobody says here what became of it.
const forgetAfter = time.Minute

// again notes one more interruption of a status and returns how long its repeat
// has to wait.
func (i *interruptions) again(t *task, reason error) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.prune()
	if i.statuses == nil {
		i.statuses = map[string]interruption{}
	}
	times := i.statuses[t.claim.StatusID].times + 1
	delay := attempt.Backoff(times, i.maxDelay)
	i.statuses[t.claim.StatusID] = interruption{times: times, expires: time.Now().Add(delay + forgetAfter)}
	i.condition.Begin(nil, reason,
		zap.String(telemetry.FieldHandlerKey, t.claim.HandlerKey), zap.String(telemetry.FieldMessageID, t.claim.MessageID))
	return delay
}

// over notes that an attempt of the status came to its end.
func (i *interruptions) over(statusID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, met := i.statuses[statusID]; met {
		delete(i.statuses, statusID)
		i.prune()
	}
}

// check ends the condition if the last status concerned was forgotten.
func (i *interruptions) check() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.prune()
}

func (i *interruptions) prune() {
	if now := time.Now(); !now.Before(i.pruneAt) {
		i.pruneAt = now.Add(time.Second)
		for id, s := range i.statuses {
			if now.After(s.expires) {
				delete(i.statuses, id)
			}
		}
	}
	if len(i.statuses) == 0 {
		i.condition.End(nil)
	}
}
