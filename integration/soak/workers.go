package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/ops"
)

// killOne kills one worker. It is felt if the worker had claims, and others take them over.
func (f *fleet) killOne(time.Duration) outcome {
	worker, done := f.disturb("killed", true, (*workload.Worker).Kill)
	if !done {
		return outcome{}
	}
	return outcome{true, func() (bool, time.Duration) { return f.world.takenOver(worker.PID(), recoveryPatience) }}
}

// terminateOne asks one worker to stop. It is felt if the process ends, and has left no claim by then or soon after.
func (f *fleet) terminateOne(time.Duration) outcome {
	began := time.Now()
	worker, done := f.disturb("terminated", true, (*workload.Worker).Terminate)
	if !done {
		return outcome{}
	}
	return outcome{true, func() (bool, time.Duration) {
		took, ended := f.world.await("a worker has stopped", began, stopPatience, func() bool {
			n, ok := f.world.claims(worker.PID())
			return !worker.Running() && ok && n == 0
		})
		return ended, took
	}}
}

// freezeOne freezes one worker for a time. It is felt if others take over the claims that it had, before it goes on.
func (f *fleet) freezeOne(lasts time.Duration) outcome {
	began := time.Now()
	worker, done := f.disturb(fmt.Sprintf("frozen for %.1fs", lasts.Seconds()), false, (*workload.Worker).Freeze)
	if !done {
		return outcome{}
	}
	felt, took := f.world.takenOver(worker.PID(), lasts)
	pause(context.Background(), time.Until(began.Add(lasts)))
	felt = felt && worker.Running()
	if err := worker.Thaw(); err != nil {
		f.failures.Add(1)
		f.world.logf("a worker could not be thawed: %v", err)
	}
	return outcome{true, func() (bool, time.Duration) { return felt, took }}
}

// killAll kills all replicas and keeps them down for a time, in which records come again that the inbox has accepted
// (contract 6.5). It is felt if no message was processed meanwhile.
func (f *fleet) killAll(lasts time.Duration, l *load) outcome {
	f.joining.Lock()
	defer f.joining.Unlock()
	killed := 0
	for range f.replicas {
		if _, done := f.disturb("killed", true, (*workload.Worker).Kill); done {
			killed++
		}
	}
	const begins = time.Second // what the killed ones had sent may be committed
	last := time.Now()
	f.world.logf("%d replicas stay down for %.1fs, %d records come again", killed, lasts.Seconds(), l.repeat())
	pause(context.Background(), lasts)
	n, ok := f.world.number(`SELECT count(*) FROM effects WHERE at > $1`, last.Add(begins).UTC())
	f.world.logf("replicas may start again")
	return outcome{killed > 0, f.world.resumed(ok && n == 0 && lasts > 2*begins, effectAfter)}
}

// disturb applies do to the next worker in turn, and returns that worker.
func (f *fleet) disturb(what string, ends bool, do func(*workload.Worker) error) (*workload.Worker, bool) {
	s := f.slots[int(f.turn.Add(1))%f.replicas]
	worker, err := s.with(ends, do)
	if err != nil {
		f.failures.Add(1)
		f.world.logf("worker %d could not be %s: %v", s.number, what, err)
		return nil, false
	}
	if worker != nil {
		f.world.logf("worker %d %s", s.number, what)
	}
	return worker, worker != nil
}

// jump is how far a clock is set ahead and then behind.
const jump = time.Hour

// jumpPatience is how long a worker may take to log something after its clock was set. The cleaner shares its lease
// with the workers.
const jumpPatience = 30 * time.Second

// jumpOne sets the clock of one replica. It is felt if the worker reports, each time, that its clock is wrong.
func (f *fleet) jumpOne(time.Duration) outcome {
	worker, done := f.disturb("has a clock that jumps", false, func(*workload.Worker) error { return nil })
	if !done {
		return outcome{}
	}
	return f.jump(worker, "this machine's clock is not the database's", "this machine's clock agrees")
}

// jumpCleaner sets the cleaner's clock. It is felt if the cleaner has cleaned with each wrong time.
func (f *fleet) jumpCleaner(time.Duration) outcome {
	cleaner := f.slots[f.replicas].current()
	if cleaner == nil {
		return outcome{}
	}
	f.world.logf("the cleaner has a clock that jumps")
	return f.jump(cleaner, workload.CleanedLine, workload.CleanedLine)
}

// jump sets a clock an hour ahead, right, an hour behind and right again. Each time it waits for a log line, but not
// longer than the worker lives. If the lines do not say what the time is, the first may come from what began before.
func (f *fleet) jump(worker *workload.Worker, wrong, right string) outcome {
	felt := true
	for _, to := range []struct {
		ahead time.Duration
		line  string
	}{{jump, wrong}, {0, right}, {-jump, wrong}, {0, right}} {
		logged := func() int {
			n, err := worker.Logged(to.line)
			if err != nil {
				f.world.logf("%v", err)
			}
			return n
		}
		before := logged()
		if wrong == right {
			before++
		}
		if err := worker.SetClock(to.ahead); err != nil || !worker.Running() {
			return outcome{}
		}
		_, seen := f.world.await(fmt.Sprintf("%q with a clock %s ahead", to.line, to.ahead), time.Now(), jumpPatience,
			func() bool { return logged() > before || !worker.Running() })
		felt = felt && seen && worker.Running()
	}
	return outcome{worker.Running(), f.world.resumed(felt, effectAfter)}
}

// maxGeneration limits upgrades, because each version of the program knows the handlers' keys of all earlier ones.
const maxGeneration = 12

// upgrade replaces the replicas, one after the other, by those of the next version of the program, whose ordered
// handlers have other keys. What is accepted directly still comes from the first version. It is felt if new workers
// have handled steps that were accepted under the old keys.
func (f *fleet) upgrade(time.Duration) outcome {
	if f.generation.Load() == maxGeneration {
		return outcome{}
	}
	last, ok := f.world.number(`SELECT COALESCE(max(at), 0) FROM steps`)
	if !ok {
		return outcome{}
	}
	version := f.generation.Add(1)
	f.world.logf("upgrade to version %d of the program", version)
	for _, s := range f.slots[:f.replicas] {
		if _, replaced := f.world.await(fmt.Sprintf("worker %d is upgraded", s.number), time.Now(), 2*stopPatience, func() bool {
			if s.runs(version) {
				return true
			}
			if _, err := s.with(true, (*workload.Worker).Terminate); err != nil {
				f.failures.Add(1)
				f.world.logf("worker %d could not be terminated: %v", s.number, err)
			}
			return false
		}); !replaced {
			return outcome{}
		}
	}
	end := time.Now()
	return outcome{true, func() (bool, time.Duration) {
		took, handled := f.world.await("steps are handled by the new version", end, recoveryPatience, func() bool {
			for _, s := range f.slots[:f.replicas] {
				if worker := s.current(); worker != nil &&
					f.world.any(`SELECT 1 FROM steps WHERE at > $1 AND pid = $2 LIMIT 1`, last, worker.PID()) {
					return true
				}
			}
			return false
		})
		return handled, took
	}}
}

// repeatRenamed accepts steps again that were accepted under the first version's keys, by the latest version of the
// program. It is felt if some were known.
func (f *fleet) repeatRenamed(l *load) func(time.Duration) outcome {
	return func(time.Duration) outcome {
		version := workload.Generation(f.generation.Load())
		if version == workload.Original {
			return outcome{}
		}
		known, err := l.acceptAgain(version)
		if err != nil {
			f.world.logf("steps are accepted again: %v", err)
			return outcome{}
		}
		f.world.logf("%d steps were accepted again under new keys", known)
		return outcome{known > 0, f.world.resumed(true, effectAfter)}
	}
}

// changes is how many members join or leave in a storm.
const changes = 10

// storm makes an additional worker join and leave repeatedly. It is felt if most of them were members.
func (f *fleet) storm(time.Duration) outcome {
	f.world.logf("a further worker joins and leaves, %d rebalances in a row", changes)
	made, joined := 0, 0
	for try := 0; made < changes && try < 2*changes; try++ {
		f.joining.RLock()
		settings := f.world.settings
		settings.Generation = workload.Generation(f.generation.Load())
		worker, err := workload.StartWorker(settings, f.world.dir)
		f.joining.RUnlock()
		if err != nil { // the database is down
			pause(context.Background(), time.Second)
			continue
		}
		if _, member := f.world.await("a storm's worker is a member", time.Now(), 3*time.Second, func() bool {
			n, err := worker.Logged("kafka consumer joined its group")
			return err == nil && n > 0
		}); member {
			joined++
		}
		made += 2
		f.peak(worker)
		if err := worker.Terminate(); err != nil {
			f.failures.Add(1)
			f.world.logf("a storm's worker: %v", err)
		}
		f.reap(worker)
	}
	f.world.logf("the storm is over after %d joins and leaves", made)
	return outcome{made >= changes, f.world.resumed(2*joined > changes/2, recordAfter)}
}

// operator is who acts.
const operator ops.Actor = "soak"

// pauseHandler pauses the plain handler and resumes it. It is felt if no run began meanwhile, but for its beginning.
func (w *world) pauseHandler(l *load) func(time.Duration) outcome {
	const begins = 2 * time.Second // what was claimed may begin
	return func(lasts time.Duration) outcome {
		o, err := l.inbox.Ops()
		if err != nil {
			w.logf("operator: %v", err)
			return outcome{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
		defer cancel()
		began := time.Now()
		if err := o.Pause(ctx, operator, workload.RunKey); err != nil {
			w.logf("operator: pause: %v", err) // it may be paused
		} else {
			w.logf("the operator pauses %s for %.1fs", workload.RunKey, lasts.Seconds())
			pause(ctx, lasts)
		}
		n, ok := w.number(`SELECT count(*) FROM runs WHERE step = 'began' AND at > $1 AND at <= $2`,
			began.Add(begins).UTC(), time.Now().UTC())
		if _, resumed := w.await("the operator resumes", time.Now(), settlePatience, func() bool {
			err := o.Resume(ctx, operator, workload.RunKey)
			return err == nil || errors.Is(err, ops.ErrNotPaused)
		}); !resumed {
			return outcome{}
		}
		return outcome{true, w.resumed(ok && n == 0 && lasts > begins, runAfter)}
	}
}

// retryPoisoned retries what is poisoned, and will be again. It is felt if there was some.
func (w *world) retryPoisoned(l *load) func(time.Duration) outcome {
	return func(time.Duration) outcome {
		o, err := l.inbox.Ops()
		if err != nil {
			w.logf("operator: %v", err)
			return outcome{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		result, err := o.RetryMatching(ctx, operator, ops.Filter{States: []ops.State{ops.StatePoisoned},
			HandlerKeys: []string{workload.EffectKey, workload.RunKey}}, ops.Bulk{Max: 200})
		w.logf("the operator retries %d poisoned statuses", result.Done)
		if err != nil {
			w.logf("operator: retry: %v", err)
		}
		return outcome{result.Done > 0, w.resumed(true, effectAfter)}
	}
}
