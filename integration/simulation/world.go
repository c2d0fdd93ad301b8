// Package simulation runs processes of a real inbox in virtual time, on a database and a Kafka cluster in memory, and
// looks for broken promises. What happens follows from a seed: see Plan. What is inside and what is not is in
// docs/simulation.md.
package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/simulation/broker"
	"github.com/gorm-inbox/inbox/integration/simulation/database"
	simulated "github.com/gorm-inbox/inbox/integration/simulation/store"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/ops"
)

// retention is the inboxes'. A message that is completed for longer can be deleted.
const retention = 3 * time.Minute

// settling is how long after the last fault everything must have ended.
const settling = 45 * time.Minute

const (
	// recovery is how long after a death another worker has taken over: WorkerTimeout and two sweeps.
	recovery = 40 * time.Second
	// stuck is more than StuckMessageThreshold, the longest jump of the clock, and the minute between two looks.
	stuck = 9 * time.Minute
)

// world is a run.
type world struct {
	plan     Plan
	began    time.Time
	database *database.Database
	broker   *broker.Broker
	cache    cache
	db       *gorm.DB // the judge's and the operators', without faults
	ops      *ops.Ops
	cleaner  *inbox.Inbox
	places   []*place
	ledger   ledger
	calm     atomic.Bool    // handlers succeed
	renamed  atomic.Bool    // a process of the newer version has run
	deaths   atomic.Int32   // of processes
	actors   atomic.Int32   // operators that have acted
	working  sync.WaitGroup // all goroutines of the run

	mu       sync.Mutex
	restless time.Time // until when something may go wrong
	timeline []string
	broken   []string
	counts   map[string]int
}

// Report is what a run has found.
type Report struct {
	Broken   []string // promises
	Timeline []string
	Lasted   time.Duration // virtual
	Counts   map[string]int
}

// Run runs a plan. Call it in a bubble of testing/synctest.
func Run(plan Plan) Report {
	w := &world{plan: plan, began: time.Now(), counts: map[string]int{}}
	w.ledger = ledger{runs: map[[2]string][]*run{}, logs: map[broker.Partition][]Message{},
		durable: map[broker.Partition]int64{}, discarded: map[[2]string]bool{}, expired: map[broker.Partition]int64{},
		lost: map[string]bool{}, notBefore: map[string]time.Time{}}
	w.cache.values = map[string]cached{}
	if err := w.run(); err != nil {
		w.breaks("the run ends: %v", err)
	}
	return Report{w.broken, w.timeline, time.Since(w.began), w.counts}
}

func (w *world) run() (err error) {
	if w.database, err = simulated.NewDatabase(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.database.Close()) }()
	if w.broker, err = broker.New(2); err != nil {
		return err
	}
	defer w.broker.Close()
	if w.db, err = gorm.Open(simulated.Open(w.database, "judge", nil), &gorm.Config{Logger: logger.Discard}); err != nil {
		return err
	}
	pool, err := w.db.DB()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	err = w.db.Exec(`CREATE TABLE effects (run int NOT NULL PRIMARY KEY, handler text NOT NULL, message text NOT NULL)`).Error
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if err := w.broker.CreateTopic(topic, partitions); err != nil {
			return err
		}
	}
	w.broker.OnCommit = w.judgeCommit
	if w.ops, err = ops.New(w.db); err != nil {
		return err
	}
	// Another program cleans, on a machine whose clock is weeks ahead. It has the handlers, whose retention it must know,
	// and consumes nothing.
	var specs []*inbox.HandlerSpec
	for _, key := range handlers[orders] {
		options := []handler.Option{handler.LegacyKeys(key)}
		if key == added {
			options = append(options, w.plan.kept()...)
		}
		none := func(context.Context, handler.Message[[]byte]) error { return nil }
		specs = append(specs, inbox.Func(key+"-2", none, options...))
	}
	w.cleaner, err = inbox.New("simulated", w.db, inbox.Configure(func(o *inbox.Options) {
		o.Logger, o.Migrate, o.Clock = zap.NewNop(), true, clock.Offset(31*24*time.Hour)
		o.Cleanup.Retention = retention
	}), inbox.Channel(orders, inbox.On("t", specs...)))
	if err == nil {
		err = w.cleaner.Migrate(context.Background()) // it is not started
	}
	if err == nil {
		err = w.watchClaims()
	}
	if err != nil {
		return err
	}
	for i := range w.plan.Processes + 1 {
		w.places = append(w.places, w.newPlace(string(rune('a'+i)), i == w.plan.Processes))
	}
	for _, p := range w.places {
		p.commands <- p.start
	}
	ended := make(chan struct{})
	w.working.Go(func() { w.watch(ended) })
	w.happen()
	w.repair()
	w.repeat()
	close(ended)
	w.judge()
	for _, p := range w.places {
		p.commands <- p.stop
		close(p.commands)
	}
	w.working.Wait()
	return nil
}

// happen carries out the plan.
func (w *world) happen() {
	messages, events := w.plan.Messages, w.plan.Events
	for len(messages) > 0 || len(events) > 0 {
		if len(events) == 0 || len(messages) > 0 && messages[0].At <= events[0].At {
			w.await(messages[0].At)
			w.produce(messages[0])
			messages = messages[1:]
			continue
		}
		w.await(events[0].At)
		w.event(events[0])
		events = events[1:]
	}
	w.await(span)
}

func (w *world) await(at time.Duration) { <-time.After(at - time.Since(w.began)) }

func (w *world) produce(m Message) {
	record := broker.Record{Value: []byte(m.ID), Headers: []kafka.Header{{Key: "MessageId", Value: []byte(m.ID)}}}
	if m.Lane != "" {
		record.Key = []byte(m.Lane)
	}
	offset, err := w.broker.Produce(context.Background(), broker.Partition{Topic: m.Topic, ID: m.Partition}, record)
	w.note("%s is produced to %s/%d at %d: %v", m.ID, m.Topic, m.Partition, offset, err)
	if err == nil {
		w.ledger.produced(m, offset)
	}
}

func (w *world) event(e Event) {
	p := w.places[e.Process%len(w.places)]
	w.note("event: %s, process %s, for %s, rate %d", e.Kind, p.name, e.For, e.Rate)
	w.count("events", string(e.Kind))
	within := p.now.Load() // an operator's action is in this process, or in a program that has only the tables
	if e.Rate%2 == 0 {
		within = nil
	}
	switch e.Kind {
	case Stop:
		p.commands <- p.stop
		p.commands <- p.start
	case Kill:
		p.kill()
		p.commands <- p.start
	case Down:
		w.down(p, retention+e.For)
	case Deploy:
		w.working.Go(func() { w.deploy(e) })
	case Stall:
		w.disturb(e.For)
		p.databaseFaults.stall(e.For)
		p.cacheFaults.stall(e.For)
		p.brokerFaults.stall(e.For)
	case Failures:
		w.disturb(e.For)
		p.databaseFaults.begin(e.Rate, false, e.For)
	case Mute:
		p.databaseFaults.mute(func() {
			w.disturb(0)
			p.commands <- p.stop
			p.commands <- p.start
		})
	case Fade:
		w.disturb(e.For)
		calls := []string{"heartbeat_at = "}
		if e.Rate%4 > 0 { // then results come when others have taken over
			calls = append(calls, storing...)
		}
		p.databaseFaults.refuse(e.For, calls...)
	case Withhold:
		w.disturb(e.For)
		p.databaseFaults.refuse(e.For, storing...)
	case Silence:
		w.disturb(e.For)
		p.databaseFaults.begin(e.Rate, true, e.For)
	case Amnesia:
		for _, p := range w.places {
			p.cacheFaults.begin(e.Rate, e.Rate%4 == 0, e.For)
		}
	case Refuse:
		p.brokerFaults.refuse(e.For, "OffsetCommit")
	case Unrest:
		p.brokerFaults.begin(e.Rate, e.Rate%4 == 0, e.For)
	case Evict:
		for _, topic := range topics {
			if members := w.broker.Members(groupOf(topic)); len(members) > 0 {
				_ = w.broker.Evict(context.Background(), groupOf(topic), members[e.Rate%len(members)])
			}
		}
	case Lead:
		for id := range partitions {
			_ = w.broker.MoveLeader(broker.Partition{Topic: orders, ID: id})
		}
		w.broker.MoveCoordinators()
	case Expire:
		w.working.Go(func() { w.expire(topics[e.Rate%len(topics)], int64(e.Rate%3), 4*e.For) })
	case Recreate:
		if topic := topics[e.Rate%len(topics)]; len(w.unread(topic)) == 0 {
			w.ledger.recreate(topic)
			w.note("%s is created again: %v", topic, w.broker.RecreateTopic(topic))
		}
	case Jump:
		w.disturb(0)
		w.database.SetAhead(e.For)
	case Pause:
		w.operate("pause", nil, func(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error) {
			return single(o.Pause(ctx, actor, "book"))
		})
		w.working.Go(func() {
			<-time.After(e.For)
			w.act("resume", nil, func(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error) {
				return single(o.Resume(ctx, actor, "book"))
			})
		})
	case Retry:
		w.operate("retry", within, retry)
	case Reject:
		w.operate("accept again", within, acceptAgain(within == nil))
	case Discard:
		w.operate("discard", within, discard(e.Rate))
	case Release:
		w.operate("release", within, release(e.Rate%4 < 2))
	case Backfill:
		if s := p.now.Load(); s != nil && s.version%2 == 1 {
			w.operate("backfill", s, w.backfill)
		}
	case Clean:
		w.working.Go(w.clean)
	case Accept:
		if s := p.now.Load(); s != nil {
			later := time.Duration(e.Rate%3) * time.Minute
			w.working.Go(func() { s.accept(fmt.Sprintf("own%d", e.At/time.Millisecond), later) })
		}
	case Drain:
		p.commands <- func() { p.drain(fmt.Sprintf("own%d", e.At/time.Millisecond), e.For) }
		if e.Rate%2 == 0 && w.plan.has(abrupt...) { // it dies meanwhile
			w.working.Go(func() {
				<-time.After(5 * time.Second)
				p.kill()
				p.commands <- p.start
			})
		}
	}
}

// storing are in the statements that store results.
var storing = []string{"SET completed_at = ", "SET error_count = c."}

// deploy starts the other version of the event's process and mostly, one after the other, of the processes that follow.
func (w *world) deploy(e Event) {
	first := w.places[e.Process%len(w.places)]
	to := first.version.Load() + 1
	for i := range w.places {
		p := w.places[(e.Process+i)%len(w.places)]
		if i > 0 && (e.Rate%3 == 0 || w.calm.Load()) {
			return
		}
		p.commands <- p.stop
		p.commands <- func() { p.version.Store(to) }
		p.commands <- p.start
		<-time.After(time.Duration(w.plan.chance(20, "deploy", e.At, p.name)) * time.Second)
	}
}

// down kills a process, stops the others some seconds later, before its partitions are theirs, and has another program
// clean before they start again.
func (w *world) down(killed *place, lasts time.Duration) {
	w.disturb(lasts + time.Minute)
	killed.kill()
	for _, p := range w.places {
		p.commands <- func() {
			<-time.After(time.Duration(1+w.plan.chance(20, "down", p.name)) * time.Second)
			p.stop()
			<-time.After(lasts)
		}
		p.commands <- p.start
	}
	w.working.Go(func() {
		<-time.After(lasts)
		w.clean()
	})
}

// clean has another program clean.
func (w *world) clean() {
	deleted, err := w.cleaner.Cleanup(context.Background())
	w.note("another program cleans: %+v: %v", deleted, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["rows: messages cleaned by another program"] += int(deleted.Messages)
}

// expire waits for a partition that has not been read for some seconds, and deletes its records but the last ones.
func (w *world) expire(topic string, but int64, within time.Duration) {
	for until := time.Now().Add(within); time.Now().Before(until) && !w.calm.Load(); {
		before := w.broker.Committed(groupOf(topic))
		ends := [partitions]int64{}
		for id := range ends {
			ends[id] = w.broker.End(broker.Partition{Topic: topic, ID: id})
		}
		<-time.After(3 * time.Second)
		committed := w.broker.Committed(groupOf(topic))
		for id, end := range ends {
			// A group reads a partition without an offset from the log's beginning, wherever that is by then.
			at := broker.Partition{Topic: topic, ID: id}
			if its := committed[at]; its > 0 && its == before[at] && its < end-but {
				w.ledger.expire(at, end-but)
				w.note("%s/%d expires before %d: %v", topic, id, end-but, w.broker.DeleteRecords(at, end-but))
			}
		}
	}
}

// accept has the application of a process accept a message that does not run before so much later.
func (s *process) accept(id string, later time.Duration) {
	m := handler.RawMessage{Channel: orders, Type: "t", ID: id}
	if later > 0 {
		m.NotBefore = time.Now().Add(later).Truncate(time.Microsecond)
		s.w.ledger.waits(id, m.NotBefore)
	}
	ctx, cancel := context.WithTimeout(s.life, time.Minute)
	defer cancel()
	_, err := s.inbox.Accept(ctx, m)
	s.w.note("%s accepts %s: %v", s.name, id, err)
	if err == nil && !s.dead.Load() {
		s.w.ledger.acknowledged(id)
	}
}

// repair ends all faults, has operators repair what is left, and waits until everything has ended.
func (w *world) repair() {
	w.note("all faults end")
	w.judgeStates()
	w.calm.Store(true)
	for _, p := range w.places {
		p.databaseFaults.begin(0, false, 0)
		p.databaseFaults.mute(nil)
		p.cacheFaults.begin(0, false, 0)
		p.brokerFaults.begin(0, false, 0)
		p.commands <- p.start
	}
	for time.Since(w.began) < span+settling {
		for _, p := range w.places {
			p.commands <- func() { // a deploy ends with the newer version everywhere
				if p.version.Load()%2 == 0 && w.renamed.Load() {
					p.stop()
					p.version.Add(1)
					p.start()
				}
			}
		}
		<-time.After(time.Minute)
		w.act("retry", nil, retry)
		w.act("accept again", nil, acceptAgain(true))
		w.act("release", nil, release(false))
		if s := w.places[0].now.Load(); s != nil && s.version%2 == 1 {
			w.act("backfill", s, w.backfill)
		}
		if left := w.left(); len(left) == 0 && time.Since(w.began) > span+3*time.Minute {
			return
		}
	}
	for _, left := range w.left() {
		w.breaks("%s after %s without faults", left, settling)
	}
}

// repeat produces records of stored messages again, after the rows of most handlers are cleaned. Only the added handler
// keeps messages, for longer.
func (w *world) repeat() {
	if !w.plan.keeps() || !w.renamed.Load() {
		return
	}
	<-time.After(retention + time.Minute)
	var ids []string
	w.query(&ids, `SELECT message_id FROM inbox_handler_statuses WHERE handler_key = ? AND message_id LIKE 'm%'
		ORDER BY message_id`, added+"-2") // others are the application's own, of another source
	inLanes := append(w.ledger.ids(orders, lanes[0]), w.ledger.ids(orders, lanes[1])...)
	ids = slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(inLanes, id) })
	for i, id := range ids[:min(len(ids), 5)] {
		w.count("records", "produced again")
		w.produce(Message{Topic: orders, Partition: i % partitions, ID: id})
	}
	<-time.After(time.Minute)
	for _, left := range w.left() {
		w.breaks("%s after messages came again", left)
	}
}

// disturb notes that calls of the database, or a process, fail for so long. The last calls may last a little longer.
func (w *world) disturb(lasts time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until := time.Now().Add(lasts + 20*time.Second); until.After(w.restless) {
		w.restless = until
	}
}

// watch judges what is claimed, whenever nothing has gone wrong for long enough.
func (w *world) watch(ended chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(5 * time.Second):
		}
		w.judgeRows()
		w.mu.Lock()
		quiet := time.Since(w.restless)
		w.mu.Unlock()
		if runs := func(p *place) bool { return !p.byHand && p.now.Load() != nil }; quiet > recovery &&
			slices.ContainsFunc(w.places, runs) {
			w.judgeClaims()
		}
	}
}

// note adds to the timeline.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, fmt.Sprintf("%10.3fs  ", time.Since(w.began).Seconds())+
		strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}

// breaks notes a broken promise.
func (w *world) breaks(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("BROKEN: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.broken, text) {
		w.broken = append(w.broken, text)
	}
}

func (w *world) count(what, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what+": "+kind]++
}

// skew is by how much the clock of a process is wrong.
func (w *world) skew(name string) time.Duration {
	if w.plan.chance(3, "skewed", name) > 0 {
		return 0
	}
	return time.Duration(w.plan.chance(int(2*time.Hour), "skew", name)) - time.Hour
}
