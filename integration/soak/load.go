package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// load produces messages. Nine in ten go to Kafka, some of them twice and a few of them bad. The
// others are accepted directly. Besides, it publishes streams.
type load struct {
	world  *world
	rate   int
	random *rand.Rand
	feed   *workload.Feed
	inbox  *inbox.Inbox
	done   func() error
	number int
	steps  [lanes]int // how many steps of each lane were produced
	nearby *gorm.DB   // the database, on a route that is not disturbed
	sent   []int      // how many messages each stream has published; read after run
	direct chan []handler.RawMessage

	mu     sync.Mutex
	recent []produced // the last that went to Kafka
	taken  []taken    // steps that were accepted lately
}

// produced is a job with its message ID.
type produced struct {
	id  string
	job workload.Job
}

// taken is a step that was accepted, and when that was first tried.
type taken struct {
	step handler.RawMessage
	at   time.Time
}

const (
	// lanes is the number of lanes of the ordered handlers, which get a step in every second burst.
	lanes = 5
	// repeated is how many of the last records come again while all replicas are down.
	repeated = 300
	// streams is the number of callers that publish to one lane at once, each in the order of its messages.
	streams = 5
	// lately is how old steps are at most that are accepted again, which againPatience limits. Both together are less
	// than Retention, because what has been deleted runs again.
	lately, againPatience = 10 * time.Second, 10 * time.Second
)

// loadInterval is the time between two bursts.
const loadInterval = 100 * time.Millisecond

// acceptPatience is longer than the database is away, also while a standby gets a copy of it.
const acceptPatience = 3 * time.Minute

// directBacklog is how many direct bursts may wait for the database. While it is full, nothing more
// is accepted directly, like a caller that waits.
const directBacklog = 100

func newLoad(w *world, rate int) (*load, error) {
	feed, err := workload.NewFeed(w.cluster.Brokers(), topic, w.ledger)
	if err != nil {
		return nil, err
	}
	ib, done, err := w.inbox(w.settings)
	if err != nil {
		feed.Close()
		return nil, err
	}
	nearby, err := workload.Open(w.judgesDSN)
	if err != nil {
		feed.Close()
		return nil, errors.Join(err, done())
	}
	return &load{nearby: nearby, sent: make([]int, streams),
		world: w, rate: rate, random: rand.New(rand.NewPCG(w.seed, 1)), feed: feed, inbox: ib, done: done,
		direct: make(chan []handler.RawMessage, directBacklog)}, nil
}

func (l *load) close() {
	l.feed.Close()
	pool, err := l.nearby.DB()
	if err == nil {
		err = pool.Close()
	}
	if err := errors.Join(err, l.done()); err != nil {
		l.world.logf("close the producer's database: %v", err)
	}
}

// run produces until ctx ends. It returns when everything started is accepted or handed to the
// Kafka client.
func (l *load) run(ctx context.Context) {
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for messages := range l.direct {
			l.accept(messages)
		}
	}()
	var publishing sync.WaitGroup
	for i := range streams {
		publishing.Go(func() { l.publish(ctx, i+1) })
	}
	for pause(ctx, loadInterval) {
		burst := max(l.rate*int(loadInterval/time.Millisecond)/1000, 1)
		var direct []handler.RawMessage
		for range burst {
			id, job := l.next()
			if l.random.IntN(10) == 0 && len(l.direct) < directBacklog {
				direct = append(direct, job.Message("direct-"+id))
				continue
			}
			copies := 1
			if l.random.IntN(50) == 0 {
				copies = 2
			}
			l.feed.Produce(ctx, id, job, copies)
			l.remember(id, job)
		}
		if l.random.IntN(20) == 0 {
			l.feed.ProduceBad(ctx)
		}
		if len(l.direct) < directBacklog && l.random.IntN(2) == 0 {
			direct = append(direct, l.step())
		}
		if len(direct) > 0 {
			l.direct <- direct
		}
	}
	close(l.direct)
	<-accepted
	publishing.Wait()
}

// step returns the next message of one of the lanes.
func (l *load) step() handler.RawMessage {
	lane := l.random.IntN(lanes)
	l.steps[lane]++
	step := workload.Step{Lane: fmt.Sprintf("lane-%d", lane), N: l.steps[lane]}
	if l.random.IntN(20) == 0 {
		step.Fails = 1
	}
	return step.Message()
}

// stepped returns how many steps were produced. Call it after run.
func (l *load) stepped() (n int) {
	for _, steps := range l.steps {
		n += steps
	}
	return n
}

func (l *load) remember(id string, job workload.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recent = append(l.recent, produced{id, job}); len(l.recent) > repeated {
		l.recent = l.recent[1:]
	}
}

// repeat produces the last records once more, and returns how many.
func (l *load) repeat() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.recent {
		l.feed.Repeat(context.Background(), p.id, p.job)
	}
	return len(l.recent)
}

func (l *load) next() (string, workload.Job) {
	l.number++
	var job workload.Job
	switch n := l.random.IntN(1000); {
	case n < 5:
		job.Poison = true
	case n < 40:
		job.Fails = 1 + l.random.IntN(2)
	case n < 45:
		job.PoisonRun = true
	case n < 50:
		job.DelayMS = 500 + l.random.IntN(2500)
		job.Stubborn = n%2 == 0
	case n < 500:
		job.DelayMS = l.random.IntN(30)
	}
	if l.world.product.name == sqlite { // no other process writes while a handler's transaction waits
		job.DelayMS /= 10
	}
	return fmt.Sprintf("m-%08d", l.number), job
}

// accept retries until the database has accepted the messages.
func (l *load) accept(messages []handler.RawMessage) {
	for _, m := range messages {
		if m.Type == workload.JobType { // steps have numbers
			l.world.ledger.Produced(m.ID)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), acceptPatience)
	defer cancel()
	for first := time.Now(); ; {
		began := time.Now()
		_, err := l.inbox.Accept(ctx, messages...)
		l.world.watch.note(attempt{began, time.Now(), err})
		if err == nil {
			l.take(messages, first)
			return
		}
		if !pause(ctx, loadInterval) {
			l.world.logf("direct accept given up: %v", err) // the ledger will show it
			return
		}
	}
}

// take remembers the steps among messages that were accepted.
func (l *load) take(messages []handler.RawMessage, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		if m.Type == workload.StepType {
			l.taken = append(l.taken, taken{m, at})
		}
	}
	l.taken = slices.DeleteFunc(l.taken, func(t taken) bool { return time.Since(t.at) > lately })
}

// acceptAgain accepts the last steps again, like a caller whose program was upgraded and that has got no response. It
// returns how many were known.
func (l *load) acceptAgain(version workload.Generation) (known int, err error) {
	l.take(nil, time.Time{}) // forgets the old ones
	l.mu.Lock()
	var messages []handler.RawMessage
	for _, t := range l.taken {
		messages = append(messages, t.step)
	}
	l.mu.Unlock()
	if len(messages) == 0 {
		return 0, nil
	}
	settings := l.world.settings
	settings.Generation = version
	ib, done, err := l.world.inbox(settings)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	ctx, cancel := context.WithTimeout(context.Background(), againPatience)
	defer cancel()
	results, err := ib.Accept(ctx, messages...)
	for _, result := range results {
		if result.Outcome == handler.OutcomeDuplicate {
			known++
		}
	}
	return known, err
}

// publish publishes the messages of a stream, one after the other, until ctx ends. Streams share a lane. Half of their
// transactions stay open for a while, in which other streams commit later messages. What follows comes often at once.
func (l *load) publish(ctx context.Context, stream int) {
	random := rand.New(rand.NewPCG(l.world.seed, uint64(1000+stream)))
	half := func(most time.Duration) time.Duration {
		return time.Duration(random.IntN(2)) * time.Duration(random.Int64N(int64(most)))
	}
	pauses, open := 200*time.Millisecond, time.Second
	if l.world.product.name == sqlite { // which writes for one process at a time
		pauses, open = 2*time.Second, 20*time.Millisecond
	}
	for n := 1; pause(ctx, half(pauses)); n++ {
		if err := l.publishOne(workload.StreamMessage(stream, n), half(open)); err != nil {
			l.world.logf("publishing given up: %v", err) // the ledger may find it unknown
			return
		}
		l.sent[stream-1] = n
	}
}

// publishOne publishes in a transaction that stays open for a time. It retries until that is committed, under the same
// ID.
func (l *load) publishOne(p workload.Published, open time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), acceptPatience)
	defer cancel()
	for {
		err := l.nearby.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			_, err := l.inbox.PublishTx(ctx, tx, inbox.Event{ID: p.ID, Payload: p})
			pause(ctx, open)
			return err
		})
		if err == nil || !pause(ctx, loadInterval) {
			return err
		}
	}
}
