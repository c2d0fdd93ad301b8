package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// idHeader is the header with the message ID of plain records.
const idHeader = "MessageId"

// answerTimeout is after what time clients of this package consider a broker frozen and ask
// another. The default would be 10 s and more.
const answerTimeout = 2 * time.Second

// Feed produces jobs to a topic and records them in the ledger. The client retries while the broker
// is down, and neither loses nor repeats a record.
type Feed struct {
	client *kgo.Client
	topic  string
	ledger *Ledger

	mu     sync.Mutex
	failed error
}

// NewFeed returns a feed to a topic. Close it.
func NewFeed(brokers []string, topic string, ledger *Ledger) (*Feed, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(1_000_000), kgo.ProduceRequestTimeout(answerTimeout),
		kgo.RequestTimeoutOverhead(answerTimeout),
		// A broker that has just been restarted may close a connection before it answers. Without
		// this option the client takes that for missing TLS and gives up the records.
		kgo.AlwaysRetryEOF())
	if err != nil {
		return nil, fmt.Errorf("feed: %w", err)
	}
	return &Feed{client: client, topic: topic, ledger: ledger}, nil
}

// Produce hands copies of a job to the client, which sends them asynchronously. The ledger records
// the job once it is acknowledged, at the latest in Flush.
func (f *Feed) Produce(ctx context.Context, id string, job Job, copies int) {
	var once sync.Once
	for range copies {
		f.produce(ctx, id, job, func() { once.Do(func() { f.ledger.Produced(id) }) })
	}
}

// Repeat produces a job again, which its producer has got an acknowledgement for and the ledger knows.
func (f *Feed) Repeat(ctx context.Context, id string, job Job) { f.produce(ctx, id, job, func() {}) }

func (f *Feed) produce(ctx context.Context, id string, job Job, acknowledged func()) {
	record := &kgo.Record{Key: []byte(id), Value: job.Content(),
		Headers: []kgo.RecordHeader{{Key: idHeader, Value: []byte(id)}}}
	f.client.Produce(context.WithoutCancel(ctx), record, f.note(acknowledged))
}

// ProduceBad sends a record without a message ID.
func (f *Feed) ProduceBad(ctx context.Context) {
	record := &kgo.Record{Value: fmt.Appendf(nil, "bad %d", rand.Uint64())}
	f.client.Produce(context.WithoutCancel(ctx), record, f.note(func() { f.ledger.ProducedBad(1) }))
}

func (f *Feed) note(acknowledged func()) func(*kgo.Record, error) {
	return func(_ *kgo.Record, err error) {
		if err == nil {
			acknowledged()
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failed = errors.Join(f.failed, err)
	}
}

// Flush waits until everything is acknowledged. After an error it is unknown what was produced, and
// the ledger is void.
func (f *Feed) Flush(ctx context.Context) error {
	err := f.client.Flush(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(err, f.failed); err != nil {
		return fmt.Errorf("feed: %w", err)
	}
	return nil
}

// Close drops what is not acknowledged.
func (f *Feed) Close() { f.client.Close() }
