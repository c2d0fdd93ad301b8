package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// server has the operations that a database and a broker share.
type server interface {
	Start() error
	Stop() error
	Kill() error
	Freeze() error
	Thaw() error
}

// tracks returns all disturbances. Workers, database and brokers are disturbed concurrently. Only
// one broker is disturbed at a time, because the other has to take over.
func (w *world) tracks(f *fleet, l *load) []track {
	const down = 3 * time.Second
	frozen := w.settings.SessionTimeout + 2*time.Second // longer than the workers' session
	kafka := []cell{{"coordinator_moved", w.moveCoordinator, down}, {"kafka_answers_cut", w.cutKafka, 4 * time.Second},
		{"rebalance_storm", f.storm, 0}}
	for id := range 2 {
		broker, name := w.cluster.Broker(id+1), fmt.Sprintf("broker %d", id+1)
		prefix := fmt.Sprintf("broker_%d_", id+1)
		kafka = append(kafka,
			cell{prefix + "stopped", w.outage(name, "stopped", broker, broker.Stop, broker.Start, w.inSync), down},
			cell{prefix + "frozen", w.outage(name, "frozen", broker, broker.Freeze, broker.Thaw, w.inSync), frozen},
			cell{prefix + "killed", w.outage(name, "killed", broker, broker.Kill, broker.Start, w.inSync), down})
	}
	db, title, prefix := w.server, w.product.title, w.product.name+"_"
	return []track{
		{name: "workers", pause: 8 * time.Second, cells: []cell{
			{"worker_killed", f.killOne, 0}, {"worker_frozen", f.freezeOne, frozen}, {"worker_terminated", f.terminateOne, 0},
			{"replicas_down", func(lasts time.Duration) bool { return f.killAll(lasts, l) }, replicasDown},
		}},
		{name: title, pause: 6 * time.Second, cells: []cell{
			{prefix + "slow", w.slowDatabase, 8 * time.Second},
			{prefix + "stopped", w.outage(title, "stopped", db, db.Stop, db.Start, nil), down},
			{prefix + "frozen", w.outage(title, "frozen", db, db.Freeze, db.Thaw, nil), frozen},
			{prefix + "killed", w.outage(title, "killed", db, db.Kill, db.Start, nil), down},
			{prefix + "answers_lost", w.loseAnswers, 4 * time.Second},
		}},
		{name: "Kafka", pause: time.Second, cells: kafka},
	}
}

// outage takes a server down for a time. settled, if not nil, waits until the server has recovered
// completely.
func (w *world) outage(
	name, kind string, s server, begin, end func() error, settled func() bool,
) func(time.Duration) bool {
	return func(lasts time.Duration) bool {
		w.logf("%s %s for %.1fs", name, kind, lasts.Seconds())
		err := begin()
		if err != nil {
			w.logf("%s: %v", name, err)
		}
		pause(context.Background(), lasts)
		for range 3 { // without the server there is nothing to judge
			again := end()
			if again == nil {
				break
			}
			w.logf("%s: %v", name, again)
		}
		w.logf("%s is back", name)
		return (settled == nil || settled()) && err == nil
	}
}

// inSync waits until the next broker may be taken down.
func (w *world) inSync() bool {
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	if err := w.cluster.AwaitInSync(ctx); err != nil {
		w.logf("Kafka: %v", err)
		return false
	}
	return true
}

// moveCoordinator stops the broker that coordinates the workers' group.
func (w *world) moveCoordinator(lasts time.Duration) bool {
	before := w.coordinator()
	if before == 0 {
		return false
	}
	w.logf("the coordinator is broker %d", before)
	broker := w.cluster.Broker(before)
	moved := false
	look := func() error {
		for range 100 {
			if moved = w.coordinator() == w.cluster.Other(before); moved {
				w.logf("the coordinator is broker %d", w.cluster.Other(before))
				break
			}
			pause(context.Background(), 100*time.Millisecond)
		}
		return broker.Start()
	}
	done := w.outage(fmt.Sprintf("broker %d", before), "stopped", broker, broker.Stop, look, w.inSync)(lasts)
	return done && moved
}

// coordinator returns the ID of the broker that coordinates the workers' group, or 0 if there is
// none.
func (w *world) coordinator() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	id, err := w.cluster.Coordinator(ctx, group)
	if err != nil {
		return 0
	}
	return id
}

// slowness is the delay of each response from a slow database.
const slowness = 200 * time.Millisecond

func (w *world) slowDatabase(lasts time.Duration) bool {
	w.logf("%s answers %s late for %.1fs", w.product.title, slowness, lasts.Seconds())
	w.database.Delay(slowness)
	pause(context.Background(), lasts)
	w.database.Delay(0)
	w.logf("%s is as fast as before", w.product.title)
	return true
}

// loseAnswers cuts connections to the database instead of answering.
func (w *world) loseAnswers(lasts time.Duration) bool {
	w.logf("one in forty answers of %s is lost for %.1fs", w.product.title, lasts.Seconds())
	before := w.database.AnswersLost()
	w.database.LoseAnswers(w.seed + 1)
	pause(context.Background(), lasts)
	w.database.LoseAnswers(0)
	lost := w.database.AnswersLost() - before
	w.logf("%d answers of %s were lost", lost, w.product.title)
	return lost > 0
}

// cutKafka cuts connections to the brokers in the middle of responses that are large enough to
// contain records.
func (w *world) cutKafka(lasts time.Duration) bool {
	const carriesRecords = 1000
	w.logf("answers of Kafka are cut in their middle for %.1fs", lasts.Seconds())
	before := w.answersCut()
	const rounds = 4
	for range rounds {
		for _, proxy := range w.proxies {
			proxy.CutAnswers(5, carriesRecords)
		}
		pause(context.Background(), lasts/rounds)
	}
	for _, proxy := range w.proxies {
		proxy.CutAnswers(0, 0)
	}
	cut := w.answersCut() - before
	w.logf("%d answers of Kafka were cut", cut)
	return cut > 0
}

func (w *world) answersCut() (n int) {
	for _, proxy := range w.proxies {
		n += proxy.Cut()
	}
	return n
}

// killOne kills one worker. terminateOne asks one to stop.
func (f *fleet) killOne(time.Duration) bool {
	return f.disturb("killed", true, (*workload.Worker).Kill)
}
func (f *fleet) terminateOne(time.Duration) bool {
	return f.disturb("terminated", true, (*workload.Worker).Terminate)
}

// freezeOne freezes one worker for a time.
func (f *fleet) freezeOne(lasts time.Duration) bool {
	var frozen *workload.Worker
	if !f.disturb(fmt.Sprintf("frozen for %.1fs", lasts.Seconds()), false, func(worker *workload.Worker) error {
		frozen = worker
		return worker.Freeze()
	}) {
		return false
	}
	pause(context.Background(), lasts)
	if err := frozen.Thaw(); err != nil {
		f.failures.Add(1)
		f.world.logf("a worker could not be thawed: %v", err)
	}
	return true
}

// killAll kills all replicas and keeps them down for a time, in which records come again that the inbox has accepted
// (contract 6.5).
func (f *fleet) killAll(lasts time.Duration, l *load) bool {
	f.joining.Lock()
	defer f.joining.Unlock()
	killed := 0
	for range f.replicas {
		if f.killOne(0) {
			killed++
		}
	}
	f.world.logf("%d replicas stay down for %.1fs, %d records come again", killed, lasts.Seconds(), l.repeat())
	pause(context.Background(), lasts)
	f.world.logf("replicas may start again")
	return killed > 0
}

// disturb applies do to the next worker in turn.
func (f *fleet) disturb(what string, ends bool, do func(*workload.Worker) error) bool {
	f.turn++
	s := f.slots[f.turn%f.replicas]
	done, err := s.with(ends, do)
	if err != nil {
		f.failures.Add(1)
		f.world.logf("worker %d could not be %s: %v", s.number, what, err)
		return false
	}
	if done {
		f.world.logf("worker %d %s", s.number, what)
	}
	return done
}

// changes is how many members join or leave in a storm.
const changes = 10

// storm makes an additional worker join and leave repeatedly.
func (f *fleet) storm(time.Duration) bool {
	f.world.logf("a further worker joins and leaves, %d rebalances in a row", changes)
	made := 0
	for try := 0; made < changes && try < 2*changes; try++ {
		f.joining.RLock()
		worker, err := workload.StartWorker(f.world.settings, f.world.dir)
		f.joining.RUnlock()
		if err != nil { // the database is down
			pause(context.Background(), time.Second)
			continue
		}
		f.await("a storm's worker is a member", 3*time.Second, func() bool {
			n, err := worker.Logged("kafka consumer joined its group")
			return err == nil && n > 0
		})
		made += 2
		f.peak(worker)
		if err := worker.Terminate(); err != nil {
			f.failures.Add(1)
			f.world.logf("a storm's worker: %v", err)
		}
		f.reap(worker)
	}
	f.world.logf("the storm is over after %d joins and leaves", made)
	return made >= changes
}
