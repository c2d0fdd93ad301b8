package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

// batches are what the crash tests produce. In three partitions the first, middle or last record is
// bad. One partition has only bad records, and one has none. bad has the offsets.
var batches = []struct {
	records int
	bad     []int64
}{
	{6, []int64{0}}, {6, []int64{3}}, {6, []int64{5}}, {2, []int64{0, 1}}, {6, nil},
}

// left returns how many records the group has not committed.
func (r *rig) left() (n int) {
	for partition, batch := range batches {
		n += batch.records - int(max(r.committed(partition), 0))
	}
	return n
}

// badness is a way for records to be bad.
type badness struct {
	name string
	// record returns a bad record.
	record func(partition int) kafkatest.Record
}

var (
	undecodable = badness{"undecodable", func(p int) kafkatest.Record { return record(p, "") }}
	refusedOnes = badness{"refused by the database", func(p int) kafkatest.Record {
		r := record(p, fmt.Sprintf("refused %d", p))
		r.Value = []byte("no")
		return r
	}}
	unroutedOnes = badness{"unrouted", func(p int) kafkatest.Record {
		r := record(p, "unrouted")
		r.Headers = append(r.Headers, kafkatest.Header{Key: "MessageType", Value: []byte("x")})
		return r
	}}
)

// policy is a policy for bad records.
type policy struct {
	name   string
	adjust func(*acceptor.Options)
	bad    []badness
}

var policies = []policy{
	{"Store", func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordStore }, []badness{undecodable, refusedOnes}},
	{"DeadLetterTopic", func(o *acceptor.Options) {
		o.BadRecords = acceptor.BadRecordDeadLetter
	}, []badness{undecodable, refusedOnes}},
	{"Halt", func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordHalt }, []badness{undecodable, refusedOnes}},
	{"unrouted Reject", func(o *acceptor.Options) { o.Unrouted = acceptor.UnroutedReject }, []badness{unroutedOnes}},
	{"unrouted Halt", func(o *acceptor.Options) { o.Unrouted = acceptor.UnroutedHalt }, []badness{unroutedOnes}},
}

func (p policy) halts() bool     { return p.name == "Halt" || p.name == "unrouted Halt" }
func (p policy) publishes() bool { return p.name == "DeadLetterTopic" }

// step is a step of the consumer's work at which it crashes.
type step struct {
	name string
	only func(policy) bool
	// arrange makes the consumer hang at the step, and returns a function that reports whether it
	// hangs.
	arrange func(l *life) (there func() bool)
	// repeats is true if published records are published again after the crash.
	repeats bool
}

var steps = []step{
	{name: "before the accept", arrange: func(l *life) func() bool {
		l.wrapped.before = hang(l)
		return l.hangs
	}},
	{name: "with the accept's answer lost", arrange: func(l *life) func() bool {
		l.wrapped.after = hang(l)
		return l.hangs
	}},
	{name: "between accept and publishing", only: policy.publishes, arrange: func(l *life) func() bool {
		l.faults = append(l.faults, l.kafka.FailNext(kmsg.Produce, 19, -1))
		return func() bool { return l.consumer.Health().DeadLetterErr != nil }
	}},
	{name: "with the answer of publishing lost", only: policy.publishes, repeats: true,
		arrange: func(l *life) func() bool {
			l.faults = append(l.faults, l.kafka.FailNext(kmsg.Produce, answerLost, -1))
			return func() bool { return l.consumer.Health().DeadLetterErr != nil }
		}},
	{name: "between acknowledgement and commit", only: policy.publishes, repeats: true,
		arrange: func(l *life) func() bool {
			l.failCommits()
			return func() bool { return l.counters.Load(telemetry.DeadLettered) >= 5 }
		}},
	{name: "between accept and commit", repeats: true, arrange: func(l *life) func() bool {
		l.failCommits()
		return func() bool { return l.counters.Load(telemetry.Accepted) > 0 }
	}},
}

// life is one run of a consumer on an inbox's tables.
type life struct {
	t        *testing.T
	kafka    *kafkatest.Kafka
	consumer *kafkaconsumer.Consumer
	wrapped  *wrapped
	counters *telemetry.Counters
	faults   []*kafkatest.Fault
	there    chan struct{}
	once     sync.Once
}

// wrapped is an acceptor that can be made to hang.
type wrapped struct {
	*acceptor.Acceptor
	before, after func(ctx context.Context) error
}

func (w *wrapped) AcceptRecords(
	ctx context.Context, channel string, received []envelope.Received,
) ([]envelope.Result, error) {
	if w.before != nil {
		if err := w.before(ctx); err != nil {
			return nil, err
		}
	}
	results, err := w.Acceptor.AcceptRecords(ctx, channel, received)
	if err == nil && w.after != nil {
		err = w.after(ctx)
	}
	return results, err
}

func hang(l *life) func(context.Context) error {
	return func(ctx context.Context) error {
		l.once.Do(func() { close(l.there) })
		<-ctx.Done()
		return ctx.Err()
	}
}

func (l *life) hangs() bool {
	select {
	case <-l.there:
		return true
	default:
		return false
	}
}

func (l *life) failCommits() {
	l.faults = append(l.faults, l.kafka.FailNext(kmsg.OffsetCommit, -1, -1))
}

// born makes a life without starting it.
func born(t *testing.T, d *inboxtest.Database, r *rig, p policy) *life {
	t.Helper()
	registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t",
		Handler: handler.New("h", inboxtest.Nothing)}})
	require.NoError(t, err)
	l := &life{t: t, kafka: r.kafka, counters: &telemetry.Counters{}, there: make(chan struct{})}
	options := acceptor.DefaultOptions()
	p.adjust(&options)
	accepting, err := acceptor.New(acceptor.Config{Store: inboxtest.Store(t, d.DB), Registry: registry,
		Channels: []string{"c"}, StatementTimeout: inboxtest.Patience, Options: options,
		Clock: clock.System{}, Logger: zap.NewNop(), Counters: l.counters, Wake: func([]string) {},
		WakeAt: func(time.Time) {}})
	require.NoError(t, err)
	l.wrapped = &wrapped{Acceptor: accepting}
	cfg := config(r.kafka.Brokers(), topic)
	cfg.Decoder = envelope.DecoderConfig{Mode: envelope.Plain, TypeHeader: "MessageType", Type: "t"}
	// All partitions are in one accept, even on a slow machine. Otherwise an accept could have
	// mostly bad records, and the database's refusals would halt the consumer.
	cfg.AcceptConcurrency, cfg.BatchRecords, cfg.Linger, cfg.DrainTimeout = 1, max(r.left(),
		1), 10*time.Second, 50*time.Millisecond
	if p.publishes() {
		cfg.DeadLetterTopic = letters
		cfg.OnDeadLetter = func(envelope.Record, error) { l.counters.OfChannel(telemetry.DeadLettered, "orders.events", 1) }
	}
	l.consumer, err = kafkaconsumer.New("c", cfg, l.wrapped, logger(t), nil)
	require.NoError(t, err)
	t.Cleanup(l.end)
	return l
}

// end stops the consumer. A hanging accept is cancelled.
func (l *life) end() { stop(l.t, l.consumer) }

// durable is what the tables and the dead-letter topic contain, each record as "partition/offset".
type durable struct {
	messages, rejected, published []string
}

func look(t *testing.T, d *inboxtest.Database, r *rig) (found durable) {
	t.Helper()
	var rows []models.RejectedMessage
	require.NoError(t, d.DB.Find(&rows).Error)
	for _, row := range rows {
		found.rejected = append(found.rejected, fmt.Sprint(row.Partition, "/", row.Offset))
	}
	require.NoError(t, d.DB.Model(&models.Message{}).Pluck("id", &found.messages).Error)
	if r.kafka.HasTopic(letters) {
		found.published = lettersOf(read(t, r.client(), letters))
	}
	return found
}

// holds reports whether the offset of a record may be committed.
func (d durable) holds(partition int, offset int64) bool {
	at := fmt.Sprint(partition, "/", offset)
	return slices.Contains(d.messages, at) || slices.Contains(d.rejected, at) || slices.Contains(d.published, at)
}

// TestCrashAtEachStepOfEachPolicyLosesAndDoublesNothing proves contract 2, 7.1 and 7.4, whatever
// the policy, wherever in its batch a bad record is, and at whatever step the process dies. No
// offset is committed past a record that is not durable. Afterwards each record is durable, rows
// exist once and dead letters at least once.
func TestCrashAtEachStepOfEachPolicyLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, p := range policies {
		for _, b := range p.bad {
			t.Run(p.name+", "+b.name, func(t *testing.T) {
				inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
					inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))) // makes its tables
					if b.name == refusedOnes.name {
						refuseNo(t, d)
					}
					for _, s := range steps {
						if s.only != nil && !s.only(p) {
							continue
						}
						t.Run(s.name, func(t *testing.T) {
							for _, table := range []string{"handler_statuses", "messages", "rejected_messages"} {
								inboxtest.Exec(t, d.DB, "DELETE FROM inbox_"+table)
							}
							crash(t, d, p, b, s)
						})
					}
				})
			})
		}
	}
}

func crash(t *testing.T, d *inboxtest.Database, p policy, b badness, s step) {
	r := newDead(t, len(batches), kafkatest.Topic(letters, 1))
	var good, bad []string
	for partition, batch := range batches {
		var records []kafkatest.Record
		for offset := range batch.records {
			at := fmt.Sprint(partition, "/", offset)
			if slices.Contains(batch.bad, int64(offset)) {
				records, bad = append(records, b.record(partition)), append(bad, at)
			} else {
				records, good = append(records, record(partition, at)), append(good, at)
			}
		}
		require.NoError(t, r.kafka.Produce(topic, records...))
	}

	first := born(t, d, r, p)
	there := s.arrange(first)
	require.NoError(t, first.consumer.Start(t.Context()))
	eventually(t, s.name, there)
	first.end()
	crashed := look(t, d, r)
	for partition, committed := range r.kafka.Committed(group, topic) {
		for offset := range committed {
			require.True(t, crashed.holds(partition, offset), "%d/%d is committed (%d) and not durable: %+v", partition, offset,
				committed, crashed)
		}
	}
	for _, fault := range first.faults {
		fault.Remove()
	}

	second := born(t, d, r, p)
	require.NoError(t, second.consumer.Start(t.Context()))
	if p.halts() {
		eventually(t, "each partition stands before its first bad record", func() bool {
			for partition, batch := range batches {
				want := int64(batch.records)
				if len(batch.bad) > 0 {
					want = batch.bad[0]
				}
				if r.committed(partition) != want {
					return false
				}
			}
			return len(second.consumer.Health().Halted()) == 4
		})
		found := look(t, d, r)
		require.Empty(t, found.rejected)
		require.Len(t, found.messages, 6+3+5, "what lies behind is not stored")
		second.end()
		second = born(t, d, r, policy{name: "mended", adjust: func(o *acceptor.Options) {
			o.Unrouted = acceptor.UnroutedReject
		}})
		require.NoError(t, second.consumer.Start(t.Context()))
	}
	eventually(t, "all committed", func() bool {
		for partition, batch := range batches {
			if r.committed(partition) != int64(batch.records) {
				return false
			}
		}
		return true
	})
	found := look(t, d, r)
	require.ElementsMatch(t, good, found.messages, "each good record is a message, once")
	if !p.publishes() {
		require.ElementsMatch(t, bad, found.rejected, "each bad one is kept, once")
		require.Empty(t, found.published)
		return
	}
	require.Empty(t, found.rejected)
	slices.Sort(found.published)
	if !s.repeats {
		require.Equal(t, bad, found.published, "each bad one is published")
	}
	require.Equal(t, bad, slices.Compact(found.published), "each bad one is published")
}

// refuseNo makes the database refuse messages whose content is "no".
func refuseNo(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	if d.Dialect == "sqlite" {
		inboxtest.Exec(t, d.DB,
			`CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages WHEN CAST(NEW.content AS TEXT) = 'no' BEGIN SELECT RAISE(ABORT, 'refused'); END`)
		return
	}
	inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_messages ADD CHECK (NOT content = 'no'::bytea)`)
}
