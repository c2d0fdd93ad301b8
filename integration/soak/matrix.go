package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// cell is one kind of disturbance: a target and what happens to it. do returns when the target is
// restored, and reports whether the disturbance happened.
type cell struct {
	name string
	do   func(lasts time.Duration) bool
	// lasts is how long the disturbance takes in the schedule.
	lasts time.Duration
}

// track is a sequence of cells. Tracks run concurrently.
type track struct {
	name  string
	cells []cell
	// pause is the time between two cells of the schedule. In the random phase it is half to twice
	// as long.
	pause time.Duration
}

// matrix counts how often each cell happened.
type matrix struct {
	mu   sync.Mutex
	hits map[string]int
}

// newMatrix starts with a count of 0 for every cell, so that a cell that never happens is reported.
func newMatrix(tracks []track) *matrix {
	m := &matrix{hits: map[string]int{}}
	for _, t := range tracks {
		for _, c := range t.cells {
			m.hits[c.name] = 0
		}
	}
	return m
}

func (m *matrix) hit(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hits[name]++
}

// missed returns the names of cells that never happened.
func (m *matrix) missed() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.hits)) {
		if m.hits[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

// print prints one line for each cell.
func (m *matrix) print() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.hits)) {
		fmt.Printf("%s: %d\n", name, m.hits[name])
	}
}

// disturb runs all tracks concurrently. Each track first runs its cells in order, until the
// schedule's context ends, and repeats those that did not happen. After that it runs cells at
// random until ctx ends. disturb returns after everything is up again.
func (m *matrix) disturb(ctx, schedule context.Context, seed uint64, tracks []track) {
	var under sync.WaitGroup
	for i, t := range tracks {
		random := rand.New(rand.NewPCG(seed, uint64(i+2)))
		under.Go(func() { m.follow(ctx, schedule, t, random) })
	}
	under.Wait()
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
			if c.do(c.lasts) {
				m.hit(c.name)
				break
			}
		}
	}
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	for pause(ctx, between(t.pause/2, 2*t.pause)) {
		c := t.cells[random.IntN(len(t.cells))]
		if c.do(between(300*time.Millisecond, 8*time.Second)) {
			m.hit(c.name)
		}
	}
}
