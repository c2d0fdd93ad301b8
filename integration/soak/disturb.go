package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
)

// down is how long a server is away in the schedule.
const down = 3 * time.Second

// tracks returns the disturbances whose names match. Workers, database and brokers are disturbed concurrently. Only one
// broker is disturbed at a time, because the other has to take over. What the machine lacks is left out.
func (w *world) tracks(f *fleet, l *load, only *regexp.Regexp) []track {
	frozen := w.frozen()
	kafka := []cell{{"coordinator_moved", w.moveCoordinator, down}, {"broker_answers_cut", w.cutKafka, 4 * time.Second},
		{"rebalance_storm", f.storm, 0}, {"topic_recreated", w.recreateTopic, 0},
		{"commit_late", w.delayCommits(f), 0}}
	for id := 1; id <= 2; id++ {
		b := w.cluster.Broker(id)
		kafka = append(kafka,
			cell{"broker_stopped", w.brokerOutage(id, "stopped", b.Stop, b.Start), down},
			cell{"broker_frozen", w.brokerOutage(id, "frozen", b.Freeze, b.Thaw), frozen},
			cell{"broker_killed", w.brokerOutage(id, "killed", b.Kill, b.Start), down})
	}
	tracks := []track{
		{name: "kills", pause: 10 * time.Second / time.Duration(f.replicas), cells: []cell{{"worker_killed", f.killOne, 0}}},
		{name: "workers", pause: 6 * time.Second, cells: []cell{
			{"worker_frozen", f.freezeOne, frozen + 3*time.Second}, {"worker_terminated", f.terminateOne, 0},
			{"rolling_upgrade", f.upgrade, 0}, {"renamed_again", f.repeatRenamed(l), 0}, {"clock_jumped", f.jumpOne, 0},
			{"cleaner_clock_jumped", f.jumpCleaner, 0},
			{"handler_paused", w.pauseHandler(l), 4 * time.Second}, {"poisoned_retried", w.retryPoisoned(l), 0},
			{"replicas_down", func(lasts time.Duration) outcome { return f.killAll(lasts, l) },
				w.settings.Retention + 5*time.Second}, // what the replicas have not read is older than Retention
		}},
		{name: w.product.title, pause: 5 * time.Second, cells: append([]cell{
			{"database_slow", w.slowDatabase, 8 * time.Second},
			{"database_answers_lost", w.loseAnswers, 4 * time.Second},
		}, w.product.cells(w)...)},
		{name: "Kafka", pause: time.Second, cells: kafka},
	}
	if w.product.name == sqlite {
		tracks = slices.Replace(tracks, 1, 3, w.fileTracks(f, l, frozen)...) // those of workers and of the server
	}
	for i := range tracks {
		tracks[i].cells = slices.DeleteFunc(tracks[i].cells, func(c cell) bool { return !only.MatchString(c.name) })
	}
	return tracks
}

// frozen is how long a server is frozen in the schedule, longer than the workers' session.
func (w *world) frozen() time.Duration { return w.settings.SessionTimeout + 2*time.Second }

// serverCells returns the disturbances of a database that is one server.
func (w *world) serverCells() []cell {
	return []cell{
		{"database_stopped", w.databaseOutage("stopped", server.Stop, server.Start), down},
		{"database_frozen", w.databaseOutage("frozen", server.Freeze, server.Thaw), w.frozen()},
		{"database_killed", w.databaseOutage("killed", server.Kill, server.Start), down},
	}
}

// outage takes a server down for a time, and reports whether it did.
func (w *world) outage(name, kind string, lasts time.Duration, begin, end func() error) bool {
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
	return err == nil
}

// databaseOutage is felt if a message could not be accepted.
func (w *world) databaseOutage(kind string, begin, end func(server) error) func(time.Duration) outcome {
	return func(lasts time.Duration) outcome {
		began := time.Now()
		done := w.outage(w.product.title, kind, lasts, func() error { return begin(w.server.(server)) },
			func() error { return end(w.server.(server)) })
		return outcome{done, w.recovered(began, failed)}
	}
}

// brokerOutage is felt if the broker has lost all of its partitions to the other one. It ends when the next broker may
// be taken down.
func (w *world) brokerOutage(id int, kind string, begin, end func() error) func(time.Duration) outcome {
	return func(lasts time.Duration) outcome {
		lost := false
		done := w.outage(fmt.Sprintf("broker %d", id), kind, lasts, begin, func() error {
			lost = lost || w.leadsNothing(id)
			return end()
		})
		felt := w.resumed(lost, recordAfter)
		return outcome{w.inSync() && done, felt}
	}
}

// leadsNothing reports whether a broker leads no partition of the topic.
func (w *world) leadsNothing(id int) bool {
	for range 3 { // the first request may go to a frozen broker
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		leaders, err := w.cluster.Leaders(ctx, topic)
		cancel()
		if err != nil {
			continue
		}
		for _, leader := range leaders {
			if leader == id {
				return false
			}
		}
		return true
	}
	return false
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

// moveCoordinator stops the broker that coordinates the workers' group. It is felt if the other one takes over.
func (w *world) moveCoordinator(lasts time.Duration) outcome {
	before := w.coordinator()
	if before == 0 {
		return outcome{}
	}
	broker, moved := w.cluster.Broker(before), false
	done := w.outage(fmt.Sprintf("broker %d, the coordinator,", before), "stopped", lasts, broker.Stop, func() error {
		_, moved = w.await("the other broker coordinates", time.Now(), 10*time.Second, func() bool {
			return w.coordinator() == w.cluster.Other(before)
		})
		return broker.Start()
	})
	felt := w.resumed(moved, recordAfter)
	return outcome{w.inSync() && done, felt}
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

func (w *world) slowDatabase(lasts time.Duration) outcome {
	w.logf("%s answers %s late for %.1fs", w.product.title, slowness, lasts.Seconds())
	began := time.Now()
	w.database.Delay(slowness)
	pause(context.Background(), lasts)
	w.database.Delay(0)
	w.logf("%s is as fast as before", w.product.title)
	return outcome{true, w.recovered(began, slowed)}
}

// loseAnswers cuts connections to the database instead of answering.
func (w *world) loseAnswers(lasts time.Duration) outcome {
	w.logf("one in forty answers of %s is lost for %.1fs", w.product.title, lasts.Seconds())
	before := w.database.AnswersLost()
	w.database.LoseAnswers(w.seed + 1)
	pause(context.Background(), lasts)
	w.database.LoseAnswers(0)
	lost := w.database.AnswersLost() - before
	w.logf("%d answers of %s were lost", lost, w.product.title)
	return outcome{true, w.resumed(lost > 0, effectAfter)}
}

// cutKafka cuts connections to the brokers in the middle of responses that are large enough to
// contain records.
func (w *world) cutKafka(lasts time.Duration) outcome {
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
	return outcome{true, w.resumed(cut > 0, recordAfter)}
}

func (w *world) answersCut() (n int) {
	for _, proxy := range w.proxies {
		n += proxy.Cut()
	}
	return n
}

// recreateTopic deletes a topic whose records are stored, creates it again and produces others. It is felt if these are
// stored, from a log that begins at offset 0 again.
func (w *world) recreateTopic(time.Duration) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	before, after := w.nextLogs()
	if !w.produceAgain(ctx, before) {
		return outcome{}
	}
	if _, all := w.await("records are stored before their topic is deleted", time.Now(), recoveryPatience,
		w.stored(before)); !all {
		return outcome{}
	}
	if !w.replaceTopic(ctx) || !w.produceAgain(ctx, after) {
		return outcome{}
	}
	end := time.Now()
	return outcome{true, func() (bool, time.Duration) {
		took, all := w.await("records of the new log are stored", end, recoveryPatience, w.stored(after))
		return all, took
	}}
}

// nextLogs returns prefixes of the IDs of records in the log that is deleted next, and in the one after it.
func (w *world) nextLogs() (before, after string) {
	w.recreated++
	return fmt.Sprintf("before-%d", w.recreated), fmt.Sprintf("after-%d", w.recreated)
}

// stored returns a function that reports whether all records of a log are stored.
func (w *world) stored(prefix string) func() bool {
	return func() bool {
		// Jobs alone: what their handlers publish is a message with the same ID.
		n, ok := w.number(`SELECT count(DISTINCT id) FROM job_messages WHERE id LIKE $1`, prefix+"-%")
		return ok && n == againRecords
	}
}

// replaceTopic deletes the topic and creates it again, and reports whether it did.
func (w *world) replaceTopic(ctx context.Context) bool {
	failed := w.cluster.DeleteTopic(ctx, againTopic)
	if failed != nil { // it may be deleted all the same, and cleanup would wait for it
		w.logf("%v", failed)
	}
	_, created := w.await("the topic is created again", time.Now(), recoveryPatience, func() bool {
		err := w.cluster.CreateTopic(ctx, againTopic, partitions, nil)
		return err == nil || failed != nil && errors.Is(err, kafka.TopicAlreadyExists)
	})
	if failed != nil || !created {
		return false
	}
	w.logf("topic %s was created again", againTopic)
	return true
}

// delayCommits holds the offsets that the workers commit of a topic, kills the workers, and lets Kafka have the offsets
// after the topic was created again. It is felt if Kafka has taken them, and all records of the new log are stored. All
// of it has to happen before the killed workers' session is over.
func (w *world) delayCommits(f *fleet) func(time.Duration) outcome {
	return func(time.Duration) outcome {
		ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
		defer cancel()
		if w.recreated > 0 { // workers that read a new log commit its beginning first
			last := fmt.Sprintf("after-%d", w.recreated)
			if _, all := w.await("all records of the topic are stored", time.Now(), recoveryPatience, w.stored(last)); !all {
				return outcome{}
			}
		}
		before, after := w.nextLogs()
		for _, proxy := range w.proxies {
			proxy.Hold(func(key int16, request []byte) bool {
				return protocol.ApiKey(key) == protocol.OffsetCommit && bytes.Contains(request, []byte(againTopic))
			})
		}
		release := func() {
			for _, proxy := range w.proxies {
				proxy.Release()
			}
		}
		defer release()
		if !w.produceAgain(ctx, before) {
			return outcome{}
		}
		if _, all := w.await("records are stored and their offsets are held", time.Now(), w.settings.SessionTimeout, func() bool {
			return w.holdsCommits() && w.stored(before)()
		}); !all {
			return outcome{}
		}
		f.joining.Lock()
		defer f.joining.Unlock()
		for range f.replicas {
			f.disturb("killed", true, (*workload.Worker).Kill)
		}
		if !w.replaceTopic(ctx) {
			return outcome{}
		}
		release()
		// A broker refuses them once the killed workers' session is over.
		_, late := w.await("offsets of the deleted log are committed", time.Now(), time.Second, func() bool {
			offsets, err := w.cluster.Admin.Committed(ctx, group, againTopic)
			for _, offset := range offsets {
				if err == nil && offset > 0 {
					return true
				}
			}
			return false
		})
		if !w.produceAgain(ctx, after) || !late {
			return outcome{}
		}
		w.logf("offsets of a deleted log of topic %s were committed for the new one", againTopic)
		end := time.Now()
		return outcome{true, func() (bool, time.Duration) {
			took, all := w.await("records of the new log are stored", end, recoveryPatience, w.stored(after))
			return all, took
		}}
	}
}

// holdsCommits reports whether a route to a broker holds a request.
func (w *world) holdsCommits() bool {
	return slices.ContainsFunc(w.proxies, func(proxy *kafkaproxy.Proxy) bool { return proxy.Held() > 0 })
}

// againRecords is how many records a topic has before it is deleted, and after it was created again.
const againRecords = 20

// produceAgain produces jobs to the topic that is created again. Another client would send to the deleted one.
func (w *world) produceAgain(ctx context.Context, prefix string) bool {
	feed, err := workload.NewFeed(w.cluster.Brokers(), againTopic, w.ledger)
	if err != nil {
		w.logf("%v", err)
		return false
	}
	defer feed.Close()
	for i := range againRecords {
		feed.Produce(ctx, fmt.Sprintf("%s-%d", prefix, i), workload.Job{}, 1)
	}
	if err := feed.Flush(ctx); err != nil { // the ledger does not have what was not acknowledged, and may find it unknown
		w.logf("produce to %s: %v", againTopic, err)
		return false
	}
	return true
}
