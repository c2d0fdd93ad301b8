package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// fleet keeps a number of workers running: one that ended is replaced, as a
// cluster does.
type fleet struct {
	world  *world
	slots  []*slot
	cancel context.CancelFunc
	ended  sync.WaitGroup

	turn     int          // whom to disturb next; of the workers' track
	failures atomic.Int64 // workers that ended unasked, raced, panicked or did not stop in order
	rss      atomic.Int64 // the most memory that a worker had, in KiB
}

// slot is the place of one worker and of those that replace it.
type slot struct {
	number int

	mu     sync.Mutex
	worker *workload.Worker // nil while there is none
	asked  bool             // it was told to end, or killed
}

// restartPause lies between a worker's end and its successor's start.
const restartPause = 500 * time.Millisecond

// stopPatience is how long a worker may take to stop; longer than its budget.
const stopPatience = 40 * time.Second

func newFleet(w *world, workers int) *fleet {
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{world: w, cancel: cancel}
	for i := range workers {
		s := &slot{number: i + 1}
		f.slots = append(f.slots, s)
		f.ended.Go(func() { f.keep(ctx, s) })
	}
	return f
}

// keep starts one worker after the other. One that cannot start, because the
// database is away, is tried again.
func (f *fleet) keep(ctx context.Context, s *slot) {
	for ctx.Err() == nil {
		worker, err := workload.StartWorker(f.world.settings, f.world.dir)
		if err != nil {
			pause(ctx, restartPause)
			continue
		}
		s.mu.Lock()
		s.worker, s.asked = worker, false
		s.mu.Unlock()
		for worker.Running() && pause(ctx, 50*time.Millisecond) {
			f.peak(worker)
		}
		if ctx.Err() != nil {
			return // the end is for stop or kill
		}
		f.examine(s)
		pause(ctx, restartPause)
	}
}

// examine looks at how a worker ended and takes it out of its slot.
func (f *fleet) examine(s *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	complaints, err := s.worker.Complaints()
	if err != nil {
		complaints = err.Error()
	}
	if !s.asked {
		complaints = fmt.Sprintf("it ended unasked: %v %s", s.worker.Wait(0), complaints)
	}
	if complaints != "" {
		f.failures.Add(1)
		f.world.say("worker %d: %s", s.number, complaints)
	}
	s.worker = nil
}

// bury waits for the end of a worker of no slot that was told to stop, and
// looks at how it ended. What it says at the end does not matter: it may have
// stopped while the database was away.
func (f *fleet) bury(worker *workload.Worker) {
	s := &slot{worker: worker, asked: true}
	if err := worker.Wait(stopPatience); worker.Running() {
		f.failures.Add(1)
		f.world.say("a worker did not stop: %v", err)
		_ = worker.Kill() // fails only for one that has ended
	}
	f.examine(s)
}

// await waits for a condition; that it does not come about is no failure.
func (f *fleet) await(what string, limit time.Duration, condition func() bool) {
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			f.world.say("%s: not within %s", what, limit)
			return
		}
		pause(context.Background(), 20*time.Millisecond)
	}
}

// peak notes how much memory a worker has had.
func (f *fleet) peak(worker *workload.Worker) {
	kib := worker.PeakMemory()
	for {
		most := f.rss.Load()
		if kib <= most || f.rss.CompareAndSwap(most, kib) {
			return
		}
	}
}

// with gives a slot's worker to f, if there is one that was not asked to end.
func (s *slot) with(ends bool, f func(*workload.Worker) error) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == nil || s.asked {
		return false, nil
	}
	s.asked = ends
	return true, f(s.worker)
}

// stop ends all workers in order. What keeps one from it is returned.
func (f *fleet) stop() error {
	f.cancel()
	f.ended.Wait()
	var problems []error
	for _, s := range f.slots {
		if s.worker != nil {
			problems = append(problems, s.worker.Terminate())
		}
	}
	for _, s := range f.slots {
		if s.worker != nil {
			problems = append(problems, s.worker.Wait(stopPatience))
			s.asked = true
			f.examine(s)
		}
	}
	return errors.Join(problems...)
}

// kill ends what still runs.
func (f *fleet) kill() {
	f.cancel()
	f.ended.Wait()
	for _, s := range f.slots {
		if s.worker != nil {
			_ = s.worker.Kill() // fails only for one that has ended
		}
	}
}
