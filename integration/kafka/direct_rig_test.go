package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

// directRig is a rig whose ledger is written by handlers. With the handlers "first" and "then", it
// has the records that both have done.
type directRig struct {
	*rig
	database *inboxtest.Database

	mu      sync.Mutex
	calls   map[string][]call // by handler key
	running map[place]int     // handlers running now
	most    int               // the most handlers at once, over all partitions
	beside  bool              // two handlers ran for one partition at the same time
}

// call is one attempt as its handler saw it.
type call struct {
	place
	offset  int64
	id      string
	attempt int
}

// onDirect runs a test of a Direct channel on each database.
func onDirect(t *testing.T, partitions int, test func(t *testing.T, r *directRig)) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		test(t, &directRig{rig: newRig(t, partitions), database: d, calls: map[string][]call{}, running: map[place]int{}})
	})
}

// handler declares a handler that records its calls and then calls do.
func (r *directRig) handler(key string, do func(ctx context.Context, m inboxtest.Bytes) error) *inbox.HandlerSpec {
	return inbox.Func(key, func(ctx context.Context, m inboxtest.Bytes) error {
		at := r.enter(key, m)
		defer r.leave(at)
		return do(ctx, m)
	})
}

func (r *directRig) enter(key string, m inboxtest.Bytes) place {
	c := m.Properties.Kafka
	at := place{c.Topic, c.Partition}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key] = append(r.calls[key], call{at, c.Offset, m.ID, m.Attempt})
	r.running[at]++
	r.beside = r.beside || r.running[at] > 1
	total := 0
	for _, n := range r.running {
		total += n
	}
	r.most = max(r.most, total)
	return at
}

func (r *directRig) leave(at place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[at]--
}

// done records a record as done in the ledger.
func (r *directRig) done(_ context.Context, m inboxtest.Bytes) error {
	c := m.Properties.Kafka
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.ledger.store(place{c.Topic, c.Partition}, envelope.Record{Topic: c.Topic, Partition: c.Partition, Offset: c.Offset})
	return nil
}

func (r *directRig) of(key string) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.calls[key]...)
}

// attempts returns the attempt numbers that a handler saw for one record.
func (r *directRig) attempts(key string, partition int, offset int64) []int {
	var attempts []int
	for _, c := range r.of(key) {
		if c.partition == partition && c.offset == offset {
			attempts = append(attempts, c.attempt)
		}
	}
	return attempts
}

// settings are the settings of a Direct or Inline channel in a test.
type settings struct {
	inline  []inbox.InlineOption // nil for a Direct channel
	config  []func(*kafkaconsumer.Config)
	options []inbox.Option
	channel []inbox.ChannelOption
}

// inbox makes an inbox with the channel "c" on a pool of its own.
func (r *directRig) inbox(t *testing.T, s settings, handlers ...*inbox.HandlerSpec) *inbox.Inbox {
	t.Helper()
	return r.inboxOn(t, r.database.Another(t), s, handlers...)
}

func (r *directRig) inboxOn(t *testing.T, db *gorm.DB, s settings, handlers ...*inbox.HandlerSpec) *inbox.Inbox {
	t.Helper()
	cfg := config(r.kafka.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Type: "t"}
	for _, change := range s.config {
		change(&cfg)
	}
	opts := append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Logger = logger(t)
		o.Backoff = func(int) time.Duration {
			return 5 * time.Millisecond
		}
	})}, s.options...)
	mode := inbox.Direct()
	if s.inline != nil {
		mode = inbox.Inline(s.inline...)
	}
	channel := append([]inbox.ChannelOption{mode, inbox.Kafka(cfg), inbox.On("t", handlers...)}, s.channel...)
	return inboxtest.New(t, db, append(opts, inbox.Channel("c", channel...))...)
}

// run starts an inbox. The returned function stops it, at the latest when the test ends.
func (r *directRig) run(t *testing.T, s settings, handlers ...*inbox.HandlerSpec) (ib *inbox.Inbox, end func()) {
	t.Helper()
	ib = r.inbox(t, s, handlers...)
	return ib, inboxtest.Start(t, ib)
}

func (r *directRig) rejected(t *testing.T, ib *inbox.Inbox) []models.RejectedMessage {
	t.Helper()
	var rows []models.RejectedMessage
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Order("topic").
		Order(clause.OrderByColumn{Column: clause.Column{Name: "partition"}}).Order("record_offset").Find(&rows).Error)
	return rows
}

// awaitCommitted waits until everything produced is committed.
func (r *directRig) awaitCommitted(t *testing.T) {
	t.Helper()
	eventually(t, "all committed", func() bool {
		committed := r.kafka.Committed(group, topic)
		for at, n := range r.next {
			if committed[at.partition] != int64(n) {
				return false
			}
		}
		return true
	})
}

// send produces records, one for each ID. An empty ID means none.
func (r *directRig) send(t *testing.T, partition int, ids ...string) {
	t.Helper()
	at := place{topic, partition}
	for _, id := range ids {
		require.NoError(t, r.kafka.Produce(topic, record(partition, id)))
		r.next[at]++
	}
}

// gate blocks handlers until it is opened or they are cancelled.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) wait(ctx context.Context) error {
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("handler: %w", ctx.Err())
	}
}
