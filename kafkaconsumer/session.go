package kafkaconsumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// session is the work of a consumer in one generation: fetchers feed workers, workers accept, and one committer
// commits. It ends in that order, so that accepted records are committed while the generation still allows it.
type session struct {
	consumer   *Consumer
	gen        *kafka.Generation
	partitions []*partition
	buffer     *kafkawire.Budget
	// assigned is how many partitions of each topic this member assigned as the group's leader, nil
	// if another member leads.
	assigned map[string]int
	refused  refusal // assigned partitions that do not exist
	foreign  refusal // assigned partitions that Config.Partitions does not name
	resumed  bool    // whether one of its partitions had a committed offset

	// ctx ends when the partitions are to be given up, acceptCtx when there is no time left to finish running accepts.
	ctx          context.Context
	end          context.CancelFunc
	acceptCtx    context.Context
	cancelAccept context.CancelFunc
}

func newSession(
	c *Consumer, gen *kafka.Generation, genCtx context.Context, assigned, existing map[string]int,
	committed map[string]map[int]position,
) *session {
	s := &session{consumer: c, gen: gen, assigned: assigned, refused: refuse(gen.Assignments, existing),
		buffer: kafkawire.NewBudget(c.cfg.BufferBytes)}
	s.ctx, s.end = context.WithCancel(genCtx)
	s.acceptCtx, s.cancelAccept = context.WithCancel(c.hardCtx)
	for topic, assigned := range gen.Assignments {
		unknown := map[int]bool{}
		for _, id := range s.refused[topic] {
			unknown[id] = true
		}
		for _, a := range assigned {
			if unknown[a.ID] {
				continue
			}
			found, known := committed[topic][a.ID]
			if !known {
				found.offset = -1 // the fetcher asks for it
			}
			p := newPartition(s.ctx, topic, a.ID, found.offset)
			p.found = found.log
			p.clock, p.readCommitted, p.assignedAt = c.clock, c.cfg.Isolation == ReadCommitted, c.clock.Now()
			s.partitions = append(s.partitions, p)
			s.resumed = s.resumed || found.offset >= 0
		}
	}
	if s.resumed {
		c.groupStart.begun.Store(true)
	}
	slices.SortFunc(s.partitions, func(a, b *partition) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
	})
	return s
}

// run works until the generation or the consumer ends, or until a commit is refused, which is its error. The member
// does not rejoin before it has returned.
func (s *session) run(watch func(ctx context.Context, end func())) (refused error) {
	c := s.consumer
	defer s.end()
	defer s.cancelAccept()
	defer context.AfterFunc(c.ctx, s.end)() // a stop ends the session too

	var fetchers, workers, helpers sync.WaitGroup
	consuming := s.makeWorkers()
	for i, w := range consuming {
		workers.Go(func() { w.run(s.ctx, s.acceptCtx) })
		for j := i; j < len(s.partitions); j += len(consuming) {
			f := &fetcher{shared: c.shared, partition: s.partitions[j], buffer: s.buffer, decode: c.decode,
				sizeBound: c.decoder.SizeBound, groupOffsets: c.groupOffsets, out: w.queue()}
			fetchers.Go(func() { f.run(s.ctx, f.partition.committed) })
		}
	}
	committer := &committer{session: s}
	defer committer.hangUp()
	stopCommitting, cancel := context.WithCancel(context.Background())
	defer cancel()
	helpers.Go(func() {
		if refused = committer.run(stopCommitting); refused != nil {
			s.end()
		}
	})
	helpers.Go(func() { watch(s.ctx, s.end) })
	helpers.Go(func() { s.observe(s.ctx) })
	helpers.Go(func() { s.pollRequests(s.ctx) })
	helpers.Go(func() { s.beginGroup(s.ctx) })

	<-s.ctx.Done()
	rejoin := time.Now().Add(c.cfg.RebalanceTimeout)
	abandon := time.AfterFunc(c.cfg.DrainTimeout, s.cancelAccept)
	defer abandon.Stop()
	drained, drainedNow := context.WithCancel(context.Background())
	helpers.Go(func() { s.keepMembership(drained) })
	fetchers.Wait()
	workers.Wait()
	drainedNow()
	// The last commit has one deadline for everything. Later the group would go on without this member.
	last, cancelLast := context.WithTimeout(c.hardCtx, min(c.cfg.DialTimeout+c.cfg.RequestTimeout, time.Until(rejoin)))
	defer cancelLast()
	cancel()
	helpers.Wait()
	if refused != nil {
		return refused
	}
	if err := committer.flush(last, last); err != nil {
		committer.report(err)
	}
	return nil
}

// consumingWorker is a worker that accepts chunks, or a directWorker that delivers the chunks of one partition.
type consumingWorker interface {
	run(ctx, acceptCtx context.Context)
	queue() chan *chunk
}

// makeWorkers returns one worker per partition for Inline and Direct channels. Otherwise it returns
// AcceptConcurrency of them, or one per partition if there are fewer.
func (s *session) makeWorkers() []consumingWorker {
	c := s.consumer
	if c.deliverer != nil {
		workers := make([]consumingWorker, len(s.partitions))
		for i, p := range s.partitions {
			// One chunk in work and one that the fetcher is waiting to send are enough.
			workers[i] = &directWorker{worker: s.makeWorker(make(chan *chunk)), partition: p, deliverer: c.deliverer,
				unroutedIsBad: c.unroutedIsBad}
		}
		return workers
	}
	workers := make([]consumingWorker, min(c.cfg.AcceptConcurrency, len(s.partitions)))
	for i := range workers {
		workers[i] = s.makeWorker(make(chan *chunk, 1))
	}
	return workers
}

func (s *session) makeWorker(in chan *chunk) *worker {
	return &worker{shared: s.consumer.shared, in: in, buffer: s.buffer, session: s.ctx}
}

// keepMembership sends heartbeats while running accepts are finished. The generation has ended its own
// heartbeats, and without any the broker would remove the member after SessionTimeout and refuse
// its last commit. The responses do not matter: a rebalance is already known.
func (s *session) keepMembership(ctx context.Context) {
	c := s.consumer
	for routine.Sleep(ctx, c.cfg.HeartbeatInterval) {
		beat, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
		_, err := c.network.Kafka.Heartbeat(beat, &kafka.HeartbeatRequest{GroupID: c.cfg.GroupID, GenerationID: s.gen.ID,
			MemberID: s.gen.MemberID})
		cancel()
		if err != nil && ctx.Err() == nil {
			c.log.Debug("inbox: heartbeat while draining failed", zap.Error(err))
		}
	}
}
