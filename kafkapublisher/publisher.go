// Package kafkapublisher publishes outgoing messages to a Kafka topic. All replicas have acknowledged what it reports
// as published, and messages of one key arrive in order.
package kafkapublisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/outgoing"
)

// Publisher publishes to one topic. Its methods are safe for concurrent use.
type Publisher struct {
	cfg      Config
	client   *kafkaclient.Client
	clock    clock.Clock
	requests chan struct{} // one element for each request that is under way
	rotation atomic.Uint32 // where records without a key went last

	mu     sync.RWMutex // held for reading while a call of Publish runs
	closed bool
}

// maxRequests bounds the requests of a Publisher that are under way: each has a connection and its records in memory.
const maxRequests = 8

// New returns a Publisher that has made no connection. Fields of cfg that are zero get their defaults. An invalid field
// is an error that names the field, its value and what is allowed. A nil logger logs nothing, and a nil clock means the
// system's.
func New(cfg Config, log *zap.Logger, clk clock.Clock) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, problems.Prefix(fmt.Sprintf("kafka publisher of topic %q: ", cfg.Topic), err)
	}
	if log == nil {
		log = zap.NewNop()
	}
	if clk == nil {
		clk = clock.System{}
	}
	cfg, log = cfg.withDefaults(), log.With(zap.String(telemetry.FieldTopic, cfg.Topic))
	client, err := kafkaclient.New(cfg.client(), log, clk)
	if err != nil {
		return nil, fmt.Errorf("kafka publisher of topic %q: %w", cfg.Topic, err)
	}
	cfg.SASL = kafkaconsumer.SASL(kafkaclient.SASL(cfg.SASL).WithoutSecrets())
	cfg.client().Warn(log)
	return &Publisher{cfg: cfg, client: client, clock: clk, requests: make(chan struct{}, maxRequests)}, nil
}

// Publish is an outgoing.Publish. A key has the partition that Java's producer chooses, unless partitions are added;
// records without a key go to a partition that rotates. After a failed request, the rest of its partition is not tried
// in this call. A record that the topic refuses, such as one that is too large, is an *outgoing.RefusedError, and later
// messages of its key are not tried. A missing topic or right, an outage and a lost response are errors that pass.
//
// A record whose response was lost may be in the topic, so it can arrive again. If the broker writes it only after the
// timeout, it can even arrive again after later records of its key: receivers must deduplicate by ID.
func (p *Publisher) Publish(ctx context.Context, messages []outgoing.Message) []error {
	results := make([]error, len(messages))
	p.mu.RLock()
	defer p.mu.RUnlock()
	queues, err := p.queues(ctx, messages)
	if err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	c := call{now: p.clock.Now(), results: results}
	c.mayBegin, c.stop = context.WithCancelCause(ctx)
	defer c.stop(nil)
	var all sync.WaitGroup
	for partition, queue := range queues {
		all.Go(func() { p.drain(ctx, &c, partition, queue) })
	}
	all.Wait()
	return results
}

// call is one call of Publish.
type call struct {
	now     time.Time
	results []error
	// mayBegin ends with the call's context, and when a request of the call has timed out: behind a silent network each
	// further one would take as long.
	mayBegin context.Context
	stop     context.CancelCauseFunc
}

// leave notes that records are not tried.
func (c *call) leave(queue []record, err error) {
	for _, r := range queue {
		c.results[r.index] = fmt.Errorf("%w: %w", outgoing.ErrNotTried, err)
	}
}

// Close ends running calls of Publish, whose messages then fail, and closes all connections. Later calls fail. Closing
// twice does nothing.
func (p *Publisher) Close() {
	p.client.Cut() // running calls end
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.client.CloseIdle() // what running calls have begun since
}

// queues returns the records of each partition in their order.
func (p *Publisher) queues(ctx context.Context, messages []outgoing.Message) (map[int][]record, error) {
	if p.closed {
		return nil, fmt.Errorf("topic %q: the publisher is closed", p.cfg.Topic)
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.RequestTimeout)
	defer cancel()
	n, err := p.client.Partitions(ctx, p.cfg.Topic)
	if err != nil {
		return nil, p.explain(err)
	}
	partitions := make([]int, n)
	for i := range partitions {
		partitions[i] = i
	}
	queues, keyless, size := map[int][]record{}, 0, 0
	for i, m := range messages {
		r := p.cfg.encode(i, m)
		if m.Key != nil {
			partition := kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: m.Key}, partitions...)
			queues[partition] = append(queues[partition], r)
			continue
		}
		if size += r.size; size == r.size || batchBytes+size > p.cfg.MaxRequestBytes { // another request and partition
			keyless, size = int(p.rotation.Add(1)%uint32(n)), r.size
		}
		queues[keyless] = append(queues[keyless], r)
	}
	return queues, nil
}

// drain publishes the records of one partition in order, one request after the other.
func (p *Publisher) drain(ctx context.Context, c *call, partition int, queue []record) {
	alone := -1 // the records of a refused request, up to this index, go alone to find the refused one
	for len(queue) > 0 {
		if err := p.begin(c); err != nil {
			c.leave(queue, err)
			return
		}
		n := p.fitting(queue)
		if queue[0].index <= alone {
			n = 1
		}
		next, rest := queue[:n], queue[n:]
		err := p.send(ctx, partition, next, c.now)
		p.end()
		switch {
		case err == nil:
			queue = rest
		case !refused(err):
			if kafkaclient.TimedOut(err) {
				c.stop(err)
			}
			for _, r := range next {
				c.results[r.index] = err
			}
			c.leave(rest, err)
			return
		case n > 1:
			alone = next[n-1].index
		default:
			c.results[next[0].index] = outgoing.Refused(err)
			queue = slices.DeleteFunc(rest, func(r record) bool {
				skipped := r.key != nil && bytes.Equal(r.key, next[0].key)
				if skipped {
					c.leave([]record{r}, err)
				}
				return skipped
			})
		}
	}
}

// begin waits until one more request may be under way. It fails if the call must not begin one.
func (p *Publisher) begin(c *call) error {
	select {
	case p.requests <- struct{}{}:
	case <-c.mayBegin.Done():
		return context.Cause(c.mayBegin)
	}
	err := context.Cause(c.mayBegin)
	if err != nil {
		p.end()
	}
	return err
}

func (p *Publisher) end() { <-p.requests }

// fitting returns how many of the records fit into one request, at least one.
func (p *Publisher) fitting(queue []record) int {
	size := batchBytes
	for i, r := range queue {
		if size += r.size; i > 0 && size > p.cfg.MaxRequestBytes {
			return i
		}
	}
	return len(queue)
}

// send sends one request. It returns when all replicas have acknowledged its records.
func (p *Publisher) send(ctx context.Context, partition int, queue []record, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.RequestTimeout)
	defer cancel()
	records := make([]kafka.Record, len(queue))
	for i, r := range queue {
		records[i] = kafka.Record{Time: now, Key: kafka.NewBytes(r.key), Value: kafka.NewBytes(r.value), Headers: r.headers}
	}
	err := p.client.Produce(ctx, p.cfg.Topic, partition, records...)
	if kafkaclient.Lost(err) {
		p.client.CloseIdle() // they may be as old as the lost one
	}
	return p.explain(err)
}

// refused reports whether the topic takes the records in no attempt. A refused timestamp passes: it is the time of
// publishing, so this machine's clock or the broker's is wrong.
func refused(err error) bool {
	return kafkaclient.Permanent(err) && !errors.Is(err, kafka.InvalidTimestamp)
}

// explain adds to an error what an operator can do.
func (p *Publisher) explain(err error) error {
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return fmt.Errorf("%w (%s needs the right WRITE on the topic)", err, p.cfg.client().Who())
	case kafkaclient.IsAny(err, kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend):
		return fmt.Errorf("%w (fewer replicas are in sync than its min.insync.replicas: start the missing brokers)", err)
	case kafkaclient.IsAny(err, kafka.MessageSizeTooLarge, kafka.RecordListTooLarge):
		return fmt.Errorf("%w (raise its max.message.bytes, or discard the message)", err)
	case errors.Is(err, kafka.InvalidTimestamp):
		return fmt.Errorf("%w (the clock of this machine or of the broker is wrong)", err)
	default:
		return p.cfg.client().Explain(err)
	}
}
