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

// fleet keeps replicas and a cleaner running. It replaces a worker that has ended, like a cluster.
type fleet struct {
	world    *world
	slots    []*slot // the replicas, and last the cleaner
	replicas int
	cancel   context.CancelFunc
	ended    sync.WaitGroup
	joining  sync.RWMutex // locked while no replica may start

	generation atomic.Int64 // the version of the program that the next workers run
	turn       atomic.Int64 // the next worker to disturb
	failures   atomic.Int64 // workers that ended unasked, raced, panicked or did not stop gracefully
	rss        atomic.Int64 // the most memory that a worker used, in KiB
}

// slot holds one worker and later its replacements.
type slot struct {
	number  int
	cleaner bool
	pooled  bool // it connects through PgBouncer, if there is one

	mu      sync.Mutex
	worker  *workload.Worker // nil while there is none
	asked   bool             // it was asked to stop, or killed
	frozen  bool             // nothing else is to happen to it
	version int64            // of its program
}

// restartPause is the time between a worker's end and its replacement's start.
const restartPause = 500 * time.Millisecond

// stopPatience is how long a worker may take to stop. It is longer than the worker's stop budget.
const stopPatience = 40 * time.Second

func newFleet(w *world, workers int) *fleet {
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{world: w, replicas: workers, cancel: cancel}
	f.generation.Store(int64(workload.Original))
	for i := range workers + 1 {
		s := &slot{number: i + 1, cleaner: i == workers, pooled: i == workers-1}
		f.slots = append(f.slots, s)
		f.ended.Go(func() { f.keep(ctx, s) })
	}
	return f
}

// keep starts one worker after the other. If one cannot start because the database is down, keep
// tries again.
func (f *fleet) keep(ctx context.Context, s *slot) {
	for ctx.Err() == nil {
		worker, err := f.start(s)
		if err != nil {
			pause(ctx, restartPause)
			continue
		}
		for worker.Running() && pause(ctx, 50*time.Millisecond) {
			f.peak(worker)
		}
		if ctx.Err() != nil {
			return // stop or kill handles its end
		}
		f.examine(s)
		pause(ctx, restartPause)
	}
}

// start starts a worker in a slot. A replica waits while all are to be down.
func (f *fleet) start(s *slot) (*workload.Worker, error) {
	settings := f.world.settings
	if settings.CleansOnly = s.cleaner; s.cleaner {
		settings.Brokers = nil
	} else {
		f.joining.RLock()
		defer f.joining.RUnlock()
		if s.number == 1 && f.world.hosts != "" {
			settings.DSN = f.world.hosts
		}
		if s.pooled && f.world.pooler != nil {
			settings.DSN = f.world.pooler.DSN() + "&default_query_exec_mode=exec"
		}
	}
	settings.Generation = workload.Generation(f.generation.Load())
	worker, err := workload.StartWorker(settings, f.world.dir)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker, s.asked, s.version = worker, false, int64(settings.Generation)
	return worker, nil
}

// examine checks how a worker ended and takes it out of its slot.
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
		f.world.logf("worker %d: %s", s.number, complaints)
	}
	s.worker = nil
}

// reap waits for a worker outside of all slots that was asked to stop, and checks how it ended. Its
// exit error does not matter, because the database may have been down when it stopped.
func (f *fleet) reap(worker *workload.Worker) {
	s := &slot{worker: worker, asked: true}
	if err := worker.Wait(stopPatience); worker.Running() {
		f.failures.Add(1)
		f.world.logf("a worker did not stop: %v", err)
		_ = worker.Kill() // fails only if it has ended
	}
	f.examine(s)
}

// peak records how much memory a worker has used.
func (f *fleet) peak(worker *workload.Worker) {
	kib := worker.PeakMemory()
	for {
		most := f.rss.Load()
		if kib <= most || f.rss.CompareAndSwap(most, kib) {
			return
		}
	}
}

// with calls f with the slot's worker, if there is one that was not asked to end and is not kept frozen, and returns
// it. ends says whether f ends the worker.
func (s *slot) with(ends bool, f func(*workload.Worker) error) (*workload.Worker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == nil || s.asked || s.frozen {
		return nil, nil
	}
	s.asked = ends
	return s.worker, f(s.worker)
}

// runs reports whether the slot has a worker of this version of the program, or a later one.
func (s *slot) runs(version int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worker != nil && !s.asked && s.version >= version
}

// current returns the slot's worker, or nil while there is none that may stay.
func (s *slot) current() *workload.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked {
		return nil
	}
	return s.worker
}

// stop stops all workers gracefully. It returns their errors.
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

// kill kills all workers that still run.
func (f *fleet) kill() {
	f.cancel()
	f.ended.Wait()
	for _, s := range f.slots {
		if s.worker != nil {
			_ = s.worker.Kill() // fails only if it has ended
		}
	}
}
