package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// cell is one kind of disturbance: a target and what happens to it. do returns when the target is restored. Cells of
// the same name are counted together.
type cell struct {
	name string
	do   func(lasts time.Duration) outcome
	// lasts is how long the disturbance takes in the schedule.
	lasts time.Duration
}

// outcome is what came of one disturbance.
type outcome struct {
	done bool // it happened
	// felt waits until what was disturbed works again. It reports whether the disturbance had its effect, and how long
	// the recovery took.
	felt func() (bool, time.Duration)
}

// track is a sequence of cells. Tracks run concurrently.
type track struct {
	name  string
	cells []cell
	// pause is the time between two cells of the schedule. In the random phase it is half to twice
	// as long.
	pause time.Duration
}

// tally counts how often a disturbance happened and how often it had its effect. It holds the recoveries from those
// that had, in milliseconds.
type tally struct {
	Done, Felt int
	Recoveries []int64 `json:",omitempty"`
}

// matrix counts what came of each cell.
type matrix struct {
	judging sync.WaitGroup // of what was felt

	mu   sync.Mutex
	hits map[string]*tally
}

// newMatrix starts with a count of 0 for every cell, so that a cell that never happens is reported.
func newMatrix(tracks []track) *matrix {
	m := &matrix{hits: map[string]*tally{}}
	for _, t := range tracks {
		for _, c := range t.cells {
			m.hits[c.name] = &tally{}
		}
	}
	return m
}

// inflict makes a cell happen and reports whether it did. What it was felt by is judged concurrently.
func (m *matrix) inflict(c cell, lasts time.Duration) bool {
	o := c.do(lasts)
	if !o.done {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hits[c.name].Done++
	m.judging.Go(func() {
		felt, took := o.felt()
		m.mu.Lock()
		defer m.mu.Unlock()
		if felt {
			m.hits[c.name].Felt++
			m.hits[c.name].Recoveries = append(m.hits[c.name].Recoveries, took.Milliseconds())
		}
	})
	return true
}

// tallies returns the counts. Call it after disturb.
func (m *matrix) tallies() map[string]tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]tally{}
	for name, t := range m.hits {
		slices.Sort(t.Recoveries)
		all[name] = *t
	}
	return all
}

// disturb runs all tracks concurrently. Each track first runs its cells in order, until the
// schedule's context ends, and repeats those that did not happen. After that it runs cells at
// random until ctx ends. disturb returns after everything is up again and works.
func (m *matrix) disturb(ctx, schedule context.Context, seed uint64, tracks []track) {
	var under sync.WaitGroup
	for i, t := range tracks {
		random := rand.New(rand.NewPCG(seed, uint64(i+2)))
		under.Go(func() { m.follow(ctx, schedule, t, random) })
	}
	under.Wait()
	m.judging.Wait()
}

// attempts is how often the schedule tries a cell that does not happen because its target is down
// at that moment.
const attempts = 10

func (m *matrix) follow(ctx, schedule context.Context, t track, random *rand.Rand) {
	for _, c := range t.cells {
		for range attempts {
			if !pause(schedule, t.pause) {
				return
			}
			if m.inflict(c, c.lasts) {
				break
			}
		}
	}
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	for len(t.cells) > 0 && pause(ctx, between(t.pause/2, 2*t.pause)) {
		m.inflict(t.cells[random.IntN(len(t.cells))], between(300*time.Millisecond, 8*time.Second))
	}
}
