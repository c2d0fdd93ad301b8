package processor

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// interruptions counts how many attempts of a status in a row the database interrupted. No row
// counts them, because nothing is charged for them. Each repeat waits twice as long as the one
// before, up to MaxRetryDelay. While any status is affected, the condition is logged and part of
// the health.
//
// The counts are of this process only. If another worker takes over a status, it is forgotten here
// some time after its repeat was due.
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

// forgetAfter is how long a status is remembered after its repeat was due. If another worker has
// claimed it, this process never learns the result.
const forgetAfter = time.Minute

// again counts one more interruption of a status and returns how long its repeat must wait.
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

// forget forgets a status, because an attempt of it has ended.
func (i *interruptions) forget(statusID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, met := i.statuses[statusID]; met {
		delete(i.statuses, statusID)
		i.prune()
	}
}

// check ends the condition if the last affected status has expired.
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
