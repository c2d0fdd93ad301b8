package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// server is what can be done to PostgreSQL and to Kafka alike.
type server interface {
	Start() error
	Stop() error
	Kill() error
	Freeze() error
	Thaw() error
}

// disturb does harm at random until ctx ends, and then waits until both
// servers are up and no worker is frozen. Troubles of workers, database and
// broker overlap; each server has one at a time.
func (w *world) disturb(ctx context.Context, f *fleet) {
	random := rand.New(rand.NewPCG(w.seed, 2))
	var (
		under                   sync.WaitGroup
		postgresDown, kafkaDown atomic.Bool
	)
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	for pause(ctx, between(500*time.Millisecond, 3500*time.Millisecond)) {
		// All decisions are made here, so that the seed decides.
		what, how, which := random.IntN(10), random.IntN(3), random.IntN(len(f.slots))
		lasts := between(300*time.Millisecond, 8*time.Second)
		switch {
		case what < 5:
			under.Go(func() { f.disturb(f.slots[which], how, lasts) })
		case what < 8:
			w.outage(&under, "PostgreSQL", w.postgres, &postgresDown, &w.outagesPostgres, how, lasts)
		default:
			w.outage(&under, "Kafka", w.kafka, &kafkaDown, &w.outagesKafka, how, lasts)
		}
	}
	under.Wait()
}

// disturb kills, terminates or freezes the worker of a slot.
func (f *fleet) disturb(s *slot, how int, lasts time.Duration) {
	act := func(ends bool, what string, do func(*workload.Worker) error) bool {
		done, err := s.with(ends, do)
		if err != nil {
			f.crashes.Add(1)
			f.world.say("worker %d could not be %s: %v", s.number, what, err)
		} else if done {
			f.world.say("worker %d %s", s.number, what)
		}
		return done
	}
	switch how {
	case 0:
		if act(true, "killed", (*workload.Worker).Kill) {
			f.kills.Add(1)
		}
	case 1:
		act(true, "terminated", (*workload.Worker).Terminate)
	default:
		var frozen *workload.Worker
		freeze := func(worker *workload.Worker) error {
			frozen = worker
			return worker.Freeze()
		}
		if act(false, fmt.Sprintf("frozen for %.1fs", lasts.Seconds()), freeze) {
			pause(context.Background(), lasts)
			// Whatever was done to it meanwhile: one that is to terminate
			// must wake for it.
			if err := frozen.Thaw(); err != nil {
				f.crashes.Add(1)
				f.world.say("worker %d: %v", s.number, err)
			}
		}
	}
}

// outage takes a server away for a time, unless it is away.
func (w *world) outage(under *sync.WaitGroup, name string, s server, down *atomic.Bool, count *atomic.Int64, how int, lasts time.Duration) {
	kind := []struct {
		name       string
		begin, end func() error
	}{{"stopped", s.Stop, s.Start}, {"killed", s.Kill, s.Start}, {"frozen", s.Freeze, s.Thaw}}[how]
	if !down.CompareAndSwap(false, true) {
		return
	}
	count.Add(1)
	under.Go(func() {
		defer down.Store(false)
		w.say("%s %s for %.1fs", name, kind.name, lasts.Seconds())
		err := kind.begin()
		pause(context.Background(), lasts)
		for try := 0; ; try++ { // without it there is nothing to judge
			if err != nil {
				w.say("%s: %v", name, err)
			}
			if err = kind.end(); err == nil || try == 3 {
				break
			}
		}
		w.say("%s is back", name)
	})
}
