package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// load produces messages. Nine in ten go to Kafka, some of them twice and a few of them bad. The
// others are accepted directly.
type load struct {
	world  *world
	rate   int
	random *rand.Rand
	feed   *workload.Feed
	inbox  *inbox.Inbox
	done   func() error
	number int
	direct chan []handler.RawMessage
}

// loadInterval is the time between two bursts.
const loadInterval = 100 * time.Millisecond

// directBacklog is how many direct bursts may wait for the database. While it is full, nothing more
// is accepted directly, like a caller that waits.
const directBacklog = 100

func newLoad(w *world, rate int) (*load, error) {
	feed, err := workload.NewFeed(w.cluster.Brokers(), topic, w.ledger)
	if err != nil {
		return nil, err
	}
	ib, done, err := w.inbox()
	if err != nil {
		feed.Close()
		return nil, err
	}
	return &load{world: w, rate: rate, random: rand.New(rand.NewPCG(w.seed, 1)), feed: feed, inbox: ib, done: done,
		direct: make(chan []handler.RawMessage, directBacklog)}, nil
}

func (l *load) close() {
	l.feed.Close()
	if err := l.done(); err != nil {
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
	for pause(ctx, loadInterval) {
		burst := max(l.rate*int(loadInterval/time.Millisecond)/1000, 1)
		var direct []handler.RawMessage
		for range burst {
			id, job := l.next()
			if l.random.IntN(10) == 0 && len(l.direct) < directBacklog {
				direct = append(direct, job.Message(id))
				continue
			}
			copies := 1
			if l.random.IntN(50) == 0 {
				copies = 2
			}
			l.feed.Produce(ctx, id, job, copies)
		}
		if l.random.IntN(20) == 0 {
			l.feed.ProduceBad(ctx)
		}
		if len(direct) > 0 {
			l.direct <- direct
		}
	}
	close(l.direct)
	<-accepted
}

func (l *load) next() (string, workload.Job) {
	l.number++
	var job workload.Job
	switch n := l.random.IntN(1000); {
	case n < 5:
		job.Poison = true
	case n < 40:
		job.Fails = 1 + l.random.IntN(2)
	case n < 50:
		job.DelayMS = 500 + l.random.IntN(2500)
		job.Stubborn = n%2 == 0
	case n < 500:
		job.DelayMS = l.random.IntN(30)
	}
	return fmt.Sprintf("m-%08d", l.number), job
}

// accept retries until the database has accepted the messages.
func (l *load) accept(messages []handler.RawMessage) {
	for _, m := range messages {
		l.world.ledger.Produced(m.ID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	for {
		_, err := l.inbox.Accept(ctx, messages...)
		if err == nil {
			return
		}
		if !pause(ctx, loadInterval) {
			l.world.logf("direct accept given up: %v", err) // the ledger will show it
			return
		}
	}
}
