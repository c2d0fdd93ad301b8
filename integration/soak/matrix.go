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

// cell is one kind of harm: of the matrix of what can be disturbed and how.
// do returns when it is over and what it took away is back, and reports whether
// it came about.
type cell struct {
	name string
	do   func(lasts time.Duration) bool
	// lasts is how long it takes something away in the schedule.
	lasts time.Duration
}

// track is cells that happen one after the other; tracks overlap.
type track struct {
	name  string
	cells []cell
	// pause lies between two cells of the schedule; half to twice as much when
	// chance decides.
	pause time.Duration
}

// matrix counts what happened.
type matrix struct {
	mu   sync.Mutex
	hits map[string]int
}

// newMatrix knows every cell, so that one that never happened is told.
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

// missed names the cells that never happened.
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

// print prints a line per cell.
func (m *matrix) print() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.hits)) {
		fmt.Printf("%s: %d\n", name, m.hits[name])
	}
}

// disturb goes through every track at once: first through all of its cells in
// their order, again those that did not come about, until the schedule's
// context ends, then at random until ctx ends. It returns when everything is up
// again.
func (m *matrix) disturb(ctx, schedule context.Context, seed uint64, tracks []track) {
	var under sync.WaitGroup
	for i, t := range tracks {
		random := rand.New(rand.NewPCG(seed, uint64(i+2)))
		under.Go(func() { m.follow(ctx, schedule, t, random) })
	}
	under.Wait()
}

// attempts is how often a cell of the schedule is tried that does not come
// about, because what it would disturb is away at that moment.
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
