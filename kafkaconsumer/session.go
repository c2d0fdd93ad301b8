package kafkaconsumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
)

// session is what a consumer does with one generation: fetchers feed workers,
// workers accept, one committer commits. It ends in that order, so that what
// is accepted is committed while the generation still lets it.
type session struct {
	consumer   *Consumer
	gen        *kafka.Generation
	partitions []*partition
	buffer     *budget

	// ctx ends when the partitions are to be given up, acceptCtx when there
	// is no more time to finish what is being accepted.
	ctx          context.Context
	end          context.CancelFunc
	acceptCtx    context.Context
	cancelAccept context.CancelFunc
}

func newSession(c *Consumer, gen *kafka.Generation, genCtx context.Context) *session {
	s := &session{consumer: c, gen: gen, buffer: newBudget(c.cfg.BufferBytes)}
	s.ctx, s.end = context.WithCancel(genCtx)
	s.acceptCtx, s.cancelAccept = context.WithCancel(c.hardCtx)
	for topic, assigned := range gen.Assignments {
		for _, a := range assigned {
			s.partitions = append(s.partitions, newPartition(s.ctx, topic, a.ID, a.Offset))
		}
	}
	slices.SortFunc(s.partitions, func(a, b *partition) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
	})
	return s
}

// run works until the generation or the consumer ends, or until a commit
// fails. While it has not returned the member does not rejoin.
func (s *session) run(watch func(ctx context.Context, end func())) {
	c := s.consumer
	defer s.end()
	defer s.cancelAccept()
	defer context.AfterFunc(c.ctx, s.end)() // a stop ends the session too

	var fetchers, workers, helpers sync.WaitGroup
	for i, w := range s.makeWorkers() {
		workers.Add(1)
		go func() { defer workers.Done(); w.run(s.ctx, s.acceptCtx) }()
		for j := i; j < len(s.partitions); j += c.cfg.AcceptConcurrency {
			f := s.makeFetcher(s.partitions[j], w)
			fetchers.Add(1)
			go func() { defer fetchers.Done(); f.run(f.partition.committed) }()
		}
	}
	committer := &committer{gen: s.gen, partitions: s.partitions, interval: c.cfg.CommitInterval, done: c.committed}
	stopCommitting, cancel := context.WithCancel(context.Background())
	defer cancel()
	helpers.Add(2)
	go func() {
		defer helpers.Done()
		if !committer.run(stopCommitting) {
			s.end()
		}
	}()
	go func() { defer helpers.Done(); watch(s.ctx, s.end) }()

	<-s.ctx.Done()
	abandon := time.AfterFunc(c.cfg.DrainTimeout, s.cancelAccept)
	defer abandon.Stop()
	drained, drainedNow := context.WithCancel(context.Background())
	helpers.Add(1)
	go func() { defer helpers.Done(); s.stayMember(drained) }()
	fetchers.Wait()
	workers.Wait()
	drainedNow()
	cancel()
	helpers.Wait()
	committer.flush()
}

// makeWorkers makes as many workers as there are partitions for.
func (s *session) makeWorkers() []*worker {
	c := s.consumer
	workers := make([]*worker, min(c.cfg.AcceptConcurrency, len(s.partitions)))
	for i := range workers {
		workers[i] = &worker{
			channel: c.channel, cfg: c.cfg, acceptor: c.acceptor, buffer: s.buffer, halt: c.halt, trouble: c.accepting, clock: c.clock,
			in: make(chan *chunk, 1), stopped: map[*partition]bool{},
		}
	}
	return workers
}

func (s *session) makeFetcher(p *partition, w *worker) *fetcher {
	c := s.consumer
	return &fetcher{
		network: c.network, cfg: c.cfg, partition: p, buffer: s.buffer, decode: c.decode, out: w.in, halt: c.halt, trouble: c.fetching,
		gaps: gapKeeper{channel: c.channel, acceptor: c.acceptor, timeout: c.cfg.AcceptTimeout, trouble: c.accepting},
	}
}

// stayMember sends heartbeats while what is being accepted is finished: the
// generation has ended its own, and without any the broker would take the
// member for dead after SessionTimeout and refuse its last commit. Answers do
// not matter, a rebalance is known to be on.
func (s *session) stayMember(ctx context.Context) {
	c := s.consumer
	for pause(ctx, c.cfg.HeartbeatInterval) {
		beat, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
		_, err := c.network.client.Heartbeat(beat, &kafka.HeartbeatRequest{GroupID: c.cfg.GroupID, GenerationID: s.gen.ID, MemberID: s.gen.MemberID})
		cancel()
		if err != nil {
			c.log.Debug("inbox: heartbeat while draining failed", zap.Error(err))
		}
	}
}
