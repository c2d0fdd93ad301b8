package ops

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// unknown is the actor in audit rows of requests without a signed-in user.
const unknown Actor = "(unknown)"

// Denied adds an audit row for a request that was refused because its actor may not make it (contract 11.3). Target is
// what the request was for, such as "POST delete": 1 to 500 characters, and never text that the request chose. An
// invalid actor is stored as "(unknown)". It is for code that authorizes requests, such as package dashboard.
//
// A flood of such requests writes few rows. For one actor and one target within 10 minutes it
// writes the first, the 10th, the 100th and so on, each with the number so far. Beyond 1,000 pairs
// of actor and target at once, all others count as one pair. The row is written even if ctx has
// ended.
func (o *Ops) Denied(ctx context.Context, actor Actor, target string) error {
	if actor.check() != nil {
		actor = unknown
	}
	if err := checkText("target", target, 1, maxTarget); err != nil {
		return fmt.Errorf("%s: %w", ActionDenied, err)
	}
	of, count := o.denials.count(denial{actor, target}, o.clock.Now())
	if !powerOfTen(count.Requests) {
		return nil
	}
	return o.noteAnyway(ctx, of.actor, ActionDenied, of.target, count)
}

// maxTarget is the length to which the audit shortens a target.
const maxTarget = 500

const (
	// denialsFor is how long denials of one actor and target are counted together.
	denialsFor = 10 * time.Minute
	// mostDenials is how many pairs are counted separately.
	mostDenials = 1000
)

// denials counts refused requests.
type denials struct {
	mu sync.Mutex
	of map[denial]denialCount
}

type denial struct {
	actor  Actor
	target string
}

// denialCount is the audit's detail of a denial.
type denialCount struct {
	Requests int64     `json:"requests"`
	Since    time.Time `json:"since"`
}

// count counts one more denial and returns the pair and the count that it belongs to.
func (d *denials) count(of denial, now time.Time) (denial, denialCount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[denial]denialCount{}
	}
	if _, known := d.of[of]; !known && len(d.of) >= mostDenials {
		for each, count := range d.of {
			if count.over(now) {
				delete(d.of, each)
			}
		}
		if len(d.of) >= mostDenials {
			of = denial{unknown, "more actors and targets than are told apart"}
		}
	}
	count := d.of[of]
	if count.over(now) {
		count = denialCount{Since: now}
	}
	count.Requests++
	d.of[of] = count
	return of, count
}

func (c denialCount) over(now time.Time) bool { return now.Sub(c.Since) >= denialsFor }

func powerOfTen(n int64) bool {
	for n > 1 && n%10 == 0 {
		n /= 10
	}
	return n == 1
}
