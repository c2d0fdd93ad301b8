package processor

import (
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// resumeFor is how long claims may resume before one begins at the status due longest (contract 5.2).
const resumeFor = time.Second

// cursors decides, by handler key, where claims begin. A claim that begins at the status due longest walks over
// everything that all workers have claimed and not completed. So in a backlog claims resume where the last one ended.
type cursors map[string]cursor

type cursor struct {
	// end is where the last claim ended. If it is nil, claims do not resume until resumeFor is over.
	end   *store.Place
	since time.Time // when a claim last began at the status due longest
}

func (c cursor) expired(at time.Time) bool {
	age := at.Sub(c.since)
	return age < 0 || age >= resumeFor
}

// after returns the place after which a claim begins, nil for the status due longest.
func (c cursors) after(key string, at time.Time) *store.Place {
	if c[key].expired(at) {
		return nil
	}
	return c[key].end
}

// note records a claim. A claim that resumed and got less than its limit may have walked over any
// number of rows that it must not take (see store.KeyLimit), so the next ones do not resume.
func (c cursors) note(limit store.KeyLimit, got int, end store.Place, at time.Time) {
	full, last := got == limit.Limit, c[limit.HandlerKey]
	switch {
	case limit.After != nil && full:
		c[limit.HandlerKey] = cursor{&end, last.since}
	case limit.After != nil:
		c[limit.HandlerKey] = cursor{nil, at}
	case last.end == nil && !last.expired(at):
	case full:
		c[limit.HandlerKey] = cursor{&end, at}
	default:
		delete(c, limit.HandlerKey)
	}
}
