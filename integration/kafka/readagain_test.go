package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// againRig is a broker and a database, for topics that are read again.
type againRig struct {
	*bench
	database *inboxtest.Database
	base     time.Time // of the first record
}

// onAgain runs a test on each broker, with any database.
func onAgain(t *testing.T, test func(t *testing.T, r *againRig)) {
	t.Helper()
	t.Run("in-process", func(t *testing.T) { againOn(t, newBench(t, kafkatest.Start(t).Brokers()), test) })
	t.Run("real", func(t *testing.T) { againOn(t, realBench(t), test) })
}

func againOn(t *testing.T, b *bench, test func(t *testing.T, r *againRig)) {
	t.Helper()
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		test(t, &againRig{bench: b, database: d, base: time.Now().Add(-time.Hour).Truncate(time.Millisecond)})
	})
}

// againSettings change the inbox of a test.
type againSettings struct {
	config  func(*kafkaconsumer.Config)
	options func(*inbox.Options)
	channel []inbox.ChannelOption
}

// inbox makes an inbox whose channel "c" has a handler for each of the types.
func (r *againRig) inbox(t *testing.T, s againSettings, types ...string) *inbox.Inbox {
	t.Helper()
	cfg := r.config()
	cfg.Decoder = envelope.DecoderConfig{TypeHeader: "MessageType", Type: "t"} // the ID is in a header
	if s.config != nil {
		s.config(&cfg)
	}
	channel := append([]inbox.ChannelOption{inbox.Kafka(cfg)}, s.channel...)
	for _, name := range types {
		channel = append(channel, inbox.On(name, inboxtest.Do("handle-"+name, inboxtest.Nothing)))
	}
	options := []inbox.Option{inboxtest.Brisk(), inbox.Channel("c", channel...)}
	if s.options != nil {
		options = append(options, inbox.Configure(s.options))
	}
	return inboxtest.New(t, r.database.Another(t), options...)
}

// record returns a record of type t that was produced so many seconds after the base.
func (r *againRig) record(partition, second int, id string) *kgo.Record {
	return &kgo.Record{Partition: int32(partition), Value: []byte("x"),
		Timestamp: r.base.Add(time.Duration(second) * time.Second),
		Headers:   []kgo.RecordHeader{{Key: "MessageId", Value: []byte(id)}}}
}

// produceSeconds produces n records to each partition, one a second, with the IDs "partition-second".
func (r *againRig) produceSeconds(partitions, n int) {
	r.t.Helper()
	var records []*kgo.Record
	for p := range partitions {
		for i := range n {
			records = append(records, r.record(p, i, fmt.Sprintf("%d-%d", p, i)))
		}
	}
	r.produce(r.client, records...)
}

func (r *againRig) all() envelope.ReadAgain {
	return envelope.ReadAgain{Channel: "c", Topic: r.topic, From: r.base}
}

// mustReadAgain reads again without an error.
func mustReadAgain(t *testing.T, ib *inbox.Inbox, request envelope.ReadAgain) envelope.ReadAgainResult {
	t.Helper()
	result, err := opsOf(t, ib).ReadAgain(t.Context(), "ada", request)
	require.NoError(t, err)
	return result
}

// rows counts what reading again may write: messages, statuses and rejected messages.
func rows(t *testing.T, ib *inbox.Inbox) (counts [3]int64) {
	t.Helper()
	for i, table := range []string{ib.Tables().Messages(), ib.Tables().HandlerStatuses(), ib.Tables().RejectedMessages()} {
		require.NoError(t, ib.DB().Table(table).Count(&counts[i]).Error)
	}
	return counts
}

func messageIDs(t *testing.T, ib *inbox.Inbox) (ids []string) {
	t.Helper()
	require.NoError(t, ib.DB().Model(&models.Message{}).Clauses(ib.Tables()).Order("number").Pluck("id", &ids).Error)
	return ids
}

// TestReadingAgainAcceptsOnlyWhatIsMissing proves contract 7.11: stored messages stay duplicates, deleted and unrouted
// ones are accepted, a dry run counts the same and writes nothing, and the group's offsets stay.
func TestReadingAgainAcceptsOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(3, nil)
		var records []*kgo.Record
		for p := range 3 {
			for i := range 20 {
				record := r.record(p, i, fmt.Sprintf("%d-%d", p, i))
				if i%5 == 0 {
					record.Headers = append(record.Headers, kgo.RecordHeader{Key: "MessageType", Value: []byte("later")})
				}
				records = append(records, record)
			}
			tombstone := r.record(p, 20, "tombstone")
			tombstone.Value = nil
			records = append(records, tombstone)
		}
		bad := r.record(1, 20, "")
		bad.Headers = nil
		r.produce(r.client, append(records, bad)...)
		before := r.inbox(t, againSettings{}, "t")
		during(t, before, func() {
			r.awaitEnd()
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, before) }, "all completed")
		})
		require.Equal(t, [3]int64{48, 48, 1}, rows(t, before))
		for _, id := range []string{"1-1", "2-19"} {
			require.NoError(t, opsOf(t, before).Delete(t.Context(), "ada", ops.MessageRef{ID: id, Namespace: "c"}, id))
		}
		committed, err := r.committed(r.group)
		require.NoError(t, err)

		ib := r.inbox(t, againSettings{}, "t", "later")
		dry := r.all()
		dry.DryRun = true
		want := envelope.ReadAgainResult{Read: 64, Accepted: 14, Duplicates: 46, Bad: 1, Empty: 3,
			ByType: map[string]envelope.TypeCounts{"t": {Accepted: 2, Duplicates: 46}, "later": {Accepted: 12}}}
		require.Equal(t, want, mustReadAgain(t, ib, dry))
		require.Equal(t, [3]int64{46, 46, 1}, rows(t, ib))
		require.Zero(t, ib.Counters(), "nothing happened")

		progress := 0
		wet := r.all()
		wet.Progress = func(envelope.ReadAgainResult) { progress++ }
		require.Equal(t, want, mustReadAgain(t, ib, wet))
		require.GreaterOrEqual(t, progress, 3)
		require.Equal(t, [3]int64{60, 60, 1}, rows(t, ib))
		require.EqualValues(t, 14, ib.Counters().Accepted)
		require.Equal(t, 14, inboxtest.Process(t, ib).Completed)

		want.Accepted, want.Duplicates = 0, 60
		want.ByType = map[string]envelope.TypeCounts{"t": {Duplicates: 48}, "later": {Duplicates: 12}}
		require.Equal(t, want, mustReadAgain(t, ib, r.all()))
		require.Equal(t, [3]int64{60, 60, 1}, rows(t, ib))
		after, err := r.committed(r.group)
		require.NoError(t, err)
		require.Equal(t, committed, after)

		page, err := opsOf(t, ib).Audit(t.Context(), ops.AuditFilter{Action: ops.ActionReadAgain}, "", 10)
		require.NoError(t, err)
		require.Len(t, page.Items, 5, "the dry run's end, and of each run begin and end")
		for i, entry := range slices.Backward(page.Items) {
			require.Equal(t, ops.Actor("ada"), entry.Actor)
			require.Equal(t, "topic "+r.topic+" of channel c", entry.Target)
			require.Equal(t, i == 4, strings.Contains(entry.Detail, `"dry_run":true`), entry.Detail)
		}
		require.Contains(t, page.Items[2].Detail,
			`"result":{"read":64,"bad":1,"empty":3,"accepted":14,"duplicates":46,"unrouted":0,`)
	})
}

// TestReadingAgainTakesAPeriod proves that a period includes its begin and excludes its end.
func TestReadingAgainTakesAPeriod(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(2, nil)
		r.produceSeconds(2, 10)
		ib := r.inbox(t, againSettings{}, "t")
		at := func(second int) time.Time { return r.base.Add(time.Duration(second) * time.Second) }
		for name, c := range map[string]struct {
			from, to   time.Time
			partitions []int
			read       int64
		}{
			"all":                          {from: at(0), read: 20},
			"begin included, end excluded": {from: at(3), to: at(6), read: 6},
			"one partition":                {from: at(3), to: at(6), partitions: []int{1}, read: 3},
			"between two records":          {from: at(3).Add(time.Millisecond), to: at(6).Add(-time.Millisecond), read: 4},
			"within a millisecond":         {from: at(3).Add(time.Nanosecond), to: at(6).Add(time.Nanosecond), read: 6},
			"begin before all":             {from: at(-5), to: at(1), read: 2},
			"end after all":                {from: at(8), to: at(100), read: 4},
			"begin after all":              {from: at(50), read: 0},
			"no record":                    {from: at(3).Add(time.Millisecond), to: at(4), read: 0},
		} {
			request := envelope.ReadAgain{Channel: "c", Topic: r.topic, From: c.from, To: c.to, Partitions: c.partitions,
				DryRun: true}
			result := mustReadAgain(t, ib, request)
			require.Equal(t, c.read, result.Read, name)
			require.Equal(t, c.read, result.Accepted, name)
			require.Empty(t, result.Gaps, name)
		}
		mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, From: at(3), To: at(5)})
		require.Equal(t, []string{"0-3", "0-4", "1-3", "1-4"}, messageIDs(t, ib))
		mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: []envelope.Range{{Partition: 1, From: 8}}})
		mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: []envelope.Range{{From: 0, To: 1}}})
		require.Equal(t, []string{"0-3", "0-4", "1-3", "1-4", "1-8", "1-9", "0-0"}, messageIDs(t, ib))
	})
}

// TestReadingAgainGoesOnWhereItEnded proves that a call which was cancelled, or has read MaxRecords, goes on without
// losing or doubling a record.
func TestReadingAgainGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(2, nil)
		r.produceSeconds(2, 100)
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) { c.BatchRecords = 10 }}, "t")
		next, read := r.all(), int64(0)
		for i := 0; ; i++ {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			next.MaxRecords, next.Progress = 0, nil
			if i%2 == 0 {
				next.MaxRecords = 33
			} else {
				next.Progress = func(envelope.ReadAgainResult) { cancel() }
			}
			result, err := opsOf(t, ib).ReadAgain(ctx, "ada", next)
			read += result.Read
			require.Equal(t, result.Read, result.Accepted)
			require.EqualValues(t, read, rows(t, ib)[0])
			if len(result.Left) == 0 {
				require.NoError(t, err)
				break
			}
			if i%2 == 0 {
				require.NoError(t, err)
				require.EqualValues(t, 33, result.Read)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.EqualValues(t, 10, result.Read)
			}
			next.From, next.Ranges = time.Time{}, result.Left
		}
		require.EqualValues(t, 200, read)
		require.Len(t, messageIDs(t, ib), 200)
		r.produceSeconds(1, 1) // after the end
		next = envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: []envelope.Range{{From: 0, To: 100}}}
		require.EqualValues(t, 100, mustReadAgain(t, ib, next).Duplicates)
	})
}

// TestReadingAgainSeesCommittedTransactionsOnly proves that aborted and open transactions are not read.
func TestReadingAgainSeesCommittedTransactionsOnly(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(1, nil)
		producer := r.newClient(kgo.TransactionalID(r.topic + "-tx"))
		transact := func(id string) {
			require.NoError(t, producer.BeginTransaction())
			r.produce(producer, r.record(0, 1, id))
		}
		r.produce(r.client, r.record(0, 0, "plain"))
		transact("aborted")
		require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
		transact("committed")
		require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryCommit))
		transact("open")
		r.produce(r.client, r.record(0, 3, "behind"))
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) { c.FetchMaxBytes = 1 }}, "t")
		require.EqualValues(t, 2, mustReadAgain(t, ib, r.all()).Read)
		require.Equal(t, []string{"plain", "committed"}, messageIDs(t, ib))
		require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
		require.EqualValues(t, 3, mustReadAgain(t, ib, r.all()).Read)
		require.Equal(t, []string{"plain", "committed", "behind"}, messageIDs(t, ib))
	})
}

// TestReadingAgainEndsOnACompactedTopic needs a real log cleaner.
func TestReadingAgainEndsOnACompactedTopic(t *testing.T) {
	againOn(t, realBench(t), func(t *testing.T, r *againRig) {
		r.createTopic(1, map[string]string{
			"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.001",
			"delete.retention.ms": "0", "max.compaction.lag.ms": "200",
		})
		keyed := func(i int) *kgo.Record {
			record := r.record(0, i, fmt.Sprint(i))
			record.Key = fmt.Append(nil, i%4)
			return record
		}
		last := 0
		for range 6 {
			client := r.newClient() // idempotent, with its own producer ID
			for range 10 {
				r.produce(client, keyed(last), keyed(last+1), keyed(last+2), keyed(last+3))
				last += 4
			}
			await(t.Context(), 250*time.Millisecond) // a segment's age depends on the broker's clock
		}
		eventually(t, "compaction has removed records", func() bool { return len(r.reference(0)) < last/2 })
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) { c.FetchMaxBytes = 300 }}, "t")
		eventually(t, "as many as the reference has", func() bool {
			before := len(r.reference(0))
			request := envelope.ReadAgain{Channel: "c", Topic: r.topic, From: r.base, DryRun: true}
			result := mustReadAgain(t, ib, request)
			ranges := request
			half := int64(last) / 2
			ranges.From, ranges.Ranges = time.Time{}, []envelope.Range{{From: 0, To: half}}
			read := mustReadAgain(t, ib, ranges).Read
			after := r.reference(0)
			for offset := range after {
				if offset < half {
					read--
				}
			}
			return read == 0 && int(result.Read) == before && before == len(after)
		})
	})
}

// TestReadingAgainHaltsBesideTheConsumer proves that a halt ends the call before its record, and that the consumer of
// the same partition goes on.
func TestReadingAgainHaltsBesideTheConsumer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*acceptor.Options){
		"halt":            func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordHalt },
		"mostly bad":      func(o *acceptor.Options) { o.HaltAtBadRecords = 1 },
		"unrouted halt":   func(o *acceptor.Options) { o.Unrouted = acceptor.UnroutedHalt },
		"too large, kept": func(*acceptor.Options) {},
	} {
		t.Run(name, func(t *testing.T) {
			onAgain(t, func(t *testing.T, r *againRig) {
				r.createTopic(1, nil)
				bad := r.record(0, 5, "")
				bad.Headers = nil
				switch name {
				case "unrouted halt":
					bad = r.record(0, 5, "unrouted")
					bad.Headers = append(bad.Headers, kgo.RecordHeader{Key: "MessageType", Value: []byte("x")})
				case "too large, kept":
					bad.Value = make([]byte, 5000)
				}
				r.produceSeconds(1, 5)
				r.produce(r.client, bad, r.record(0, 6, "after"))
				r.commitAt(t, 6)
				ib := r.inbox(t, againSettings{options: func(o *inbox.Options) { change(&o.Acceptor) },
					config: func(c *kafkaconsumer.Config) {
						c.BatchRecords, c.Decoder.MaxRecordBytes = 1, 4000
					}}, "t")
				during(t, ib, func() {
					r.awaitEnd() // what is not committed is left to the consumer
					result, err := opsOf(t, ib).ReadAgain(t.Context(), "ada", r.all())
					require.ErrorContains(t, err, "ends before offset 5 of "+r.topic+"/0")
					require.EqualValues(t, 5, result.Read)
					require.EqualValues(t, 5, result.Accepted)
					require.EqualValues(t, 5, result.Left[0].From)
					require.Zero(t, rows(t, ib)[2])
					require.Zero(t, ib.Counters().Rejected)
					r.produce(r.client, r.record(0, 7, "goes on"))
					eventually(t, "still consuming", func() bool { return slices.Contains(messageIDs(t, ib), "goes on") })
					require.Empty(t, ib.Health().Consumers[0].Halted())

					result.Left[0].From++
					result = mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: result.Left})
					require.Equal(t, []int64{1, 1}, []int64{result.Read, result.Duplicates})
				})
			})
		})
	}
}

// commitAt sets the group's offset of partition 0.
func (r *againRig) commitAt(t *testing.T, offset int64) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(r.topic, 0, offset, -1)
	require.NoError(t, r.admin.CommitAllOffsets(t.Context(), r.group, offsets))
}

// TestReadingAgainLeavesUnreadRecordsToTheConsumer proves contract 5.12 and 7.11: the messages of a lane are accepted
// in the order of their log, also if a period that the consumer has not reached is read.
func TestReadingAgainLeavesUnreadRecordsToTheConsumer(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(1, nil)
		r.produceSeconds(1, 10)
		r.commitAt(t, 4)
		ib := r.inbox(t, againSettings{}, "t")
		later := r.all()
		later.From, later.To = r.base.Add(5*time.Second), r.base.Add(8*time.Second)
		offsets := func(result envelope.ReadAgainResult) [][2]int64 {
			require.Empty(t, result.Left)
			var all [][2]int64
			for _, u := range result.Unconsumed {
				require.NotEmpty(t, u.Log)
				all = append(all, [2]int64{u.From, u.To})
			}
			return all
		}
		result := mustReadAgain(t, ib, later)
		require.Zero(t, result.Read)
		require.Equal(t, [][2]int64{{5, 8}}, offsets(result))
		ranges := envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: []envelope.Range{{From: 2}}}
		result = mustReadAgain(t, ib, ranges)
		require.EqualValues(t, 2, result.Read)
		require.Equal(t, [][2]int64{{4, 10}}, offsets(result))
		result = mustReadAgain(t, ib, r.all())
		require.EqualValues(t, 4, result.Read)
		require.Equal(t, [][2]int64{{4, 10}}, offsets(result))
		ranges.Ranges[0].To = 4
		require.Empty(t, mustReadAgain(t, ib, ranges).Unconsumed)
		require.Equal(t, []string{"0-2", "0-3", "0-0", "0-1"}, messageIDs(t, ib))

		metadata, err := r.admin.BrokerMetadata(t.Context())
		require.NoError(t, err)
		deleted := kadm.Offset{Topic: r.topic, At: 4, LeaderEpoch: -1,
			Metadata: "inbox topic=AAAAAAAAAAAAAAAAAAAAAQ cluster=" + metadata.Cluster}
		require.NoError(t, r.admin.CommitAllOffsets(t.Context(), r.group, kadm.Offsets{r.topic: {0: deleted}}))
		require.Equal(t, [][2]int64{{0, 10}}, offsets(mustReadAgain(t, ib, r.all())), "the offset is one of a deleted log")

		r.commitAt(t, 4)
		during(t, ib, r.awaitEnd)
		require.Equal(t, []string{"0-2", "0-3", "0-0", "0-1", "0-4", "0-5", "0-6", "0-7", "0-8", "0-9"}, messageIDs(t, ib))
		require.Empty(t, mustReadAgain(t, ib, r.all()).Unconsumed)
	})
}

// TestReadingAgainPublishesBadRecords proves that bad records go to the dead-letter topic where that is the policy, but
// not in a dry run, and that one which cannot be published is read again by the next call.
func TestReadingAgainPublishesBadRecords(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(1, nil)
		letters := r.topic + "-letters"
		r.produceSeconds(1, 3)
		bad := r.record(0, 3, "")
		bad.Headers = nil
		r.produce(r.client, bad, r.record(0, 4, "last"))
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) { c.DeadLetterTopic = letters },
			options: func(o *inbox.Options) { o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter }}, "t")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		result, err := opsOf(t, ib).ReadAgain(ctx, "ada", r.all()) // the dead-letter topic is missing
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, letters)
		require.Zero(t, result.Read)
		_, err = r.admin.CreateTopic(t.Context(), 1, 1, nil, letters)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = r.admin.DeleteTopics(context.Background(), letters) })
		dry := r.all()
		dry.DryRun = true
		require.EqualValues(t, 1, mustReadAgain(t, ib, dry).Bad)
		published := func() int64 {
			ends, err := r.admin.ListEndOffsets(t.Context(), letters)
			require.NoError(t, err)
			end, _ := ends.Lookup(letters, 0)
			return end.Offset
		}
		require.Zero(t, published())
		result = mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: result.Left})
		require.Equal(t, []int64{5, 1, 4}, []int64{result.Read, result.Bad, result.Accepted + result.Duplicates})
		require.EqualValues(t, 1, published())
		require.Len(t, messageIDs(t, ib), 4)
		require.Zero(t, rows(t, ib)[2])
	})
}

// TestReadingAgainEndsBeforeARefusedDeadLetter proves contract 7.4 and 7.11 on a real broker, which enforces the size
// limit: what was published before is not published again, and the next call may leave out the refused record.
func TestReadingAgainEndsBeforeARefusedDeadLetter(t *testing.T) {
	againOn(t, realBench(t), func(t *testing.T, r *againRig) {
		r.createTopic(1, nil)
		letters, limit := r.topic+"-letters", "2000"
		_, err := r.admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &limit}, letters)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = r.admin.DeleteTopics(context.Background(), letters) })
		bad := func(second, size int) *kgo.Record {
			record := r.record(0, second, "")
			record.Headers, record.Value = nil, make([]byte, size)
			return record
		}
		r.produceSeconds(1, 2)
		r.produce(r.client, bad(2, 10), r.record(0, 3, "3"), bad(4, 3000), r.record(0, 5, "5"))
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) { c.DeadLetterTopic = letters },
			options: func(o *inbox.Options) { o.Acceptor.BadRecords = acceptor.BadRecordDeadLetter }}, "t")
		result, err := opsOf(t, ib).ReadAgain(t.Context(), "ada", r.all())
		require.ErrorContains(t, err, "ends before offset 4 of "+r.topic+"/0")
		require.ErrorAs(t, err, new(*kafkaconsumer.DeadLetterError))
		require.Equal(t, []int64{4, 1, 3}, []int64{result.Read, result.Bad, result.Accepted})
		require.EqualValues(t, 4, result.Left[0].From)
		result.Left[0].From++
		result = mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: result.Left})
		require.Equal(t, []int64{1, 0}, []int64{result.Read, result.Bad})
		require.Equal(t, []string{"0/2"}, lettersOf(read(t, r.client, letters)))
	})
}

// TestReadingAgainOutlivesAFailedAccept proves that the same records are accepted once their accept has failed, and
// that the end of the context ends the tries.
func TestReadingAgainOutlivesAFailedAccept(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	require.NoError(t, k.Produce(topic, record(0, "a"), record(0, "b")))
	away := errors.New("the database is away")
	ranges := envelope.ReadAgain{Topic: topic, Ranges: []envelope.Range{{To: 2}}}
	calls := 0
	result, err := consumer(t, config(k.Brokers(), topic), judge(always)).ReadAgain(t.Context(), ranges,
		func(_ context.Context, received []envelope.Received) ([]envelope.Result, error) {
			if calls++; calls < 3 {
				return nil, away
			}
			return make([]envelope.Result, len(received)), nil
		})
	require.NoError(t, err)
	require.EqualValues(t, 2, result.Read)
	require.Empty(t, result.Left)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls = 0
	result, err = consumer(t, config(k.Brokers(), topic), judge(always)).ReadAgain(ctx, ranges,
		func(context.Context, []envelope.Received) ([]envelope.Result, error) {
			if calls++; calls == 2 {
				cancel()
			}
			return nil, away
		})
	require.ErrorIs(t, err, away)
	require.Equal(t, 2, calls)
	require.Zero(t, result.Read)
	require.EqualValues(t, 0, result.Left[0].From)
}

// TestReadingAgainSaysWhatIsMissing proves that deleted records are a gap in the result, and that a topic which was
// created again is an error.
func TestReadingAgainSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		r.createTopic(1, nil)
		r.produceSeconds(1, 10)
		ib := r.inbox(t, againSettings{}, "t")
		part := r.all()
		part.MaxRecords = 2
		left := mustReadAgain(t, ib, part).Left
		_, err := r.admin.DeleteRecords(t.Context(), kadm.Offsets{r.topic: {0: {Topic: r.topic, Partition: 0, At: 6}}})
		require.NoError(t, err)
		result := mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: left})
		require.EqualValues(t, 4, result.Read)
		require.Len(t, result.Gaps, 1)
		require.Equal(t, []any{r.topic, 0, int64(2), int64(6)},
			[]any{result.Gaps[0].Topic, result.Gaps[0].Partition, result.Gaps[0].From, result.Gaps[0].To})
		require.Contains(t, result.Gaps[0].Reason, "4 records were deleted")
		gone := mustReadAgain(t, ib, envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: []envelope.Range{{From: 1, To: 5}}})
		require.Zero(t, gone.Read)
		require.EqualValues(t, 5, gone.Gaps[0].To)

		timed := mustReadAgain(t, ib, r.all())
		require.EqualValues(t, 4, timed.Read)
		require.Len(t, timed.Gaps, 1)
		require.Equal(t, []int64{-1, 6}, []int64{timed.Gaps[0].From, timed.Gaps[0].To})
		later := r.all()
		later.From = r.base.Add(7 * time.Second)
		require.Empty(t, mustReadAgain(t, ib, later).Gaps)

		emptied := kadm.Offsets{r.topic: {0: {Topic: r.topic, Partition: 0, At: 10}}}
		whole := r.all()
		whole.To = r.base.Add(5 * time.Second)
		for _, c := range []struct {
			request envelope.ReadAgain
			first   int64
		}{{whole, 6}, {whole, 10}, {r.all(), 10}} {
			if c.first == 10 {
				_, err = r.admin.DeleteRecords(t.Context(), emptied)
				require.NoError(t, err)
			}
			result := mustReadAgain(t, ib, c.request)
			require.Zero(t, result.Read, "the whole period is deleted")
			require.Len(t, result.Gaps, 1)
			require.Equal(t, []int64{-1, c.first}, []int64{result.Gaps[0].From, result.Gaps[0].To})
		}

		_, err = r.admin.DeleteTopics(t.Context(), r.topic)
		require.NoError(t, err)
		eventually(t, "created again", func() bool {
			_, err := r.admin.CreateTopic(t.Context(), 1, 1, nil, r.topic)
			return err == nil
		})
		r.client = r.newClient()
		r.produceSeconds(1, 12)
		for _, from := range []int64{0, 2} {
			left[0].From = from
			result, err = opsOf(t, ib).ReadAgain(t.Context(), "ada",
				envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: left})
			require.ErrorAs(t, err, new(*kafkaconsumer.TopicRecreatedError))
			require.Zero(t, result.Read)
		}
	})
}

// TestReadingAgainReportsACompactedEnd proves contract 7.11: what a readable log no longer has is a gap, not a success
// without a trace.
func TestReadingAgainReportsACompactedEnd(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	require.NoError(t, k.Produce(topic, record(0, "a"), record(0, "b"), record(0, "c")))
	k.Cluster().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		response := request.ResponseKind().(*kmsg.FetchResponse)
		empty := kmsg.NewFetchResponseTopicPartition()
		empty.HighWatermark, empty.LastStableOffset = 3, 3
		response.Topics = []kmsg.FetchResponseTopic{{Topic: topic, Partitions: []kmsg.FetchResponseTopicPartition{empty}}}
		return response, nil, true
	})
	result, err := consumer(t, config(k.Brokers(), topic), judge(always)).ReadAgain(t.Context(),
		envelope.ReadAgain{Topic: topic, Ranges: []envelope.Range{{From: 1}}},
		func(context.Context, []envelope.Received) ([]envelope.Result, error) {
			return nil, errors.New("nothing is read")
		})
	require.NoError(t, err)
	require.Empty(t, result.Left)
	require.Len(t, result.Gaps, 1)
	require.Equal(t, []int64{1, 3}, []int64{result.Gaps[0].From, result.Gaps[0].To})
}

// TestReadingAgainNeedsOnlyThePartitionsThatItReads proves that a partition without a leader does not keep others from
// being read.
func TestReadingAgainNeedsOnlyThePartitionsThatItReads(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
	require.NoError(t, k.Produce(topic, record(1, "a"), record(1, "b")))
	id, leader := k.Cluster().TopicInfo(topic).TopicID, k.Cluster().PartitionInfo(topic, 1).Leader
	host, port, err := net.SplitHostPort(k.Brokers()[0])
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	k.Cluster().ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		response := request.ResponseKind().(*kmsg.MetadataResponse)
		response.ControllerID, response.Brokers = leader, []kmsg.MetadataResponseBroker{{NodeID: leader, Host: host,
			Port: int32(number)}}
		topics := kmsg.NewMetadataResponseTopic()
		topics.Topic, topics.TopicID = kmsg.StringPtr(topic), id
		for i, of := range []int32{-1, leader} {
			p := kmsg.NewMetadataResponseTopicPartition()
			if p.Partition, p.Leader = int32(i), of; of < 0 {
				p.ErrorCode = kerr.LeaderNotAvailable.Code
			}
			topics.Partitions = append(topics.Partitions, p)
		}
		response.Topics = append(response.Topics, topics)
		return response, nil, true
	})
	result, err := consumer(t, config(k.Brokers(), topic), judge(always)).ReadAgain(t.Context(),
		envelope.ReadAgain{Topic: topic, Partitions: []int{1}, From: time.UnixMilli(0)},
		func(_ context.Context, received []envelope.Received) ([]envelope.Result, error) {
			return make([]envelope.Result, len(received)), nil
		})
	require.NoError(t, err)
	require.EqualValues(t, 2, result.Read)
}

// TestTopicRecreatedWhileItIsReadAgainIsAnError proves that no record of the new log is taken for one of the old.
func TestTopicRecreatedWhileItIsReadAgainIsAnError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t)
		r := &againRig{bench: newBench(t, k.Brokers()), database: d, base: time.Now().Add(-time.Hour)}
		r.createTopic(1, nil)
		for i := range 50 { // each in a batch of its own, so that none is fetched with another
			r.produce(r.client, r.record(0, i, fmt.Sprint(i)))
		}
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) {
			c.BatchRecords, c.FetchMaxBytes = 1, 1
		}}, "t")
		request, done := r.all(), false
		request.Progress = func(envelope.ReadAgainResult) {
			if done {
				return
			}
			done = true
			require.NoError(t, k.DeleteTopic(r.topic))
			require.NoError(t, k.CreateTopic(r.topic, 1))
			var records []kafkatest.Record
			for i := range 100 {
				records = append(records, record(0, fmt.Sprint("new", i)))
			}
			require.NoError(t, k.Produce(r.topic, records...))
			await(t.Context(), 300*time.Millisecond) // no topic can be made again in less time
		}
		_, err := opsOf(t, ib).ReadAgain(t.Context(), "ada", request)
		require.ErrorAs(t, err, new(*kafkaconsumer.TopicRecreatedError))
		for _, id := range messageIDs(t, ib) {
			require.NotContains(t, id, "new")
		}
	})
}

// TestReadingAgainRefusesWhatItCannotDo proves that bad input and channels without stored messages are refused, with
// the reason.
func TestReadingAgainRefusesWhatItCannotDo(t *testing.T) {
	r := &againRig{bench: newBench(t, kafkatest.Start(t).Brokers()), base: time.Now().Add(-time.Hour)}
	r.createTopic(2, nil)
	r.produceSeconds(2, 3)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r.database = d
		ib := r.inbox(t, againSettings{}, "t")
		inlined := r.inbox(t, againSettings{channel: []inbox.ChannelOption{inbox.Inline()}}, "t")
		direct := r.inbox(t, againSettings{channel: []inbox.ChannelOption{inbox.Direct()}}, "t")
		for _, c := range []struct {
			ib     *inbox.Inbox
			change func(*envelope.ReadAgain)
			says   string
		}{
			{inlined, func(*envelope.ReadAgain) {}, "is Inline"},
			{direct, func(*envelope.ReadAgain) {}, "is Direct"},
			{ib, func(q *envelope.ReadAgain) { q.Channel = "other" }, `no channel "other"`},
			{ib, func(q *envelope.ReadAgain) { q.Channel = "" }, "channel"},
			{ib, func(q *envelope.ReadAgain) { q.Topic = "other" }, `topic "other"`},
			{ib, func(q *envelope.ReadAgain) { q.From = time.Time{} }, "from"},
			{ib, func(q *envelope.ReadAgain) { q.To = q.From }, "age"},
			{ib, func(q *envelope.ReadAgain) { q.MaxRecords = -1 }, "max"},
			{ib, func(q *envelope.ReadAgain) { q.Partitions = []int{2} }, "partition 2"},
			{ib, func(q *envelope.ReadAgain) { q.Partitions = []int{1, 1} }, "partition 1"},
			{ib, func(q *envelope.ReadAgain) { q.Ranges = []envelope.Range{{From: 1}} }, "ranges"},
			{ib, func(q *envelope.ReadAgain) {
				q.From, q.Ranges = time.Time{}, []envelope.Range{{From: 1, To: 1000}}
			}, "ends at"},
			{ib, func(q *envelope.ReadAgain) {
				q.From, q.Ranges = time.Time{}, []envelope.Range{{From: 2, To: 1}}
			}, "offsets 2 to 1"},
		} {
			request := r.all()
			c.change(&request)
			result, err := opsOf(t, c.ib).ReadAgain(t.Context(), "ada", request)
			require.ErrorIs(t, err, ops.ErrBadInput)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, result.Read)
		}
		_, err := opsOf(t, ib).ReadAgain(t.Context(), "", r.all())
		require.ErrorIs(t, err, ops.ErrBadInput)
		tables, err := ops.New(d.DB)
		require.NoError(t, err)
		_, err = tables.ReadAgain(t.Context(), "ada", r.all())
		require.ErrorIs(t, err, ops.ErrNeedsApplication)

		request := r.all()
		request.Progress = func(envelope.ReadAgainResult) {
			_, err := opsOf(t, ib).ReadAgain(t.Context(), "ben", r.all())
			require.ErrorIs(t, err, ops.ErrProcessing)
		}
		mustReadAgain(t, ib, request)
	})
}

// TestReadingAgainIsRequestedOfAConsumer proves contract 7.11 and 11.1: a program with only the tables requests it, a
// stop ends it after a batch, and the next request goes on with what is left.
func TestReadingAgainIsRequestedOfAConsumer(t *testing.T) {
	t.Parallel()
	onAgain(t, func(t *testing.T, r *againRig) {
		const n = 500
		r.createTopic(1, nil)
		r.produceSeconds(1, n)
		r.commitAt(t, n)
		slow := againSettings{config: func(c *kafkaconsumer.Config) { c.BatchRecords = 1 }}
		ib := r.inbox(t, slow, "t")
		o, err := ops.New(ib.DB())
		require.NoError(t, err)
		ask := func(request envelope.ReadAgain) (id string) {
			id, err := o.RequestReadAgain(t.Context(), "ada", request)
			require.NoError(t, err)
			return id
		}
		resultOf := func(asked ops.Request) (result envelope.ReadAgainResult) {
			require.NoError(t, json.Unmarshal([]byte(asked.Result), &result), asked.Problem)
			return result
		}
		var id string
		during(t, ib, func() {
			dry := r.all()
			dry.DryRun, dry.MaxRecords = true, 5
			asked, err := o.AwaitRequest(t.Context(), ask(dry))
			require.NoError(t, err)
			require.EqualValues(t, 5, resultOf(asked).Accepted)
			require.Empty(t, messageIDs(t, ib))
			wrong := r.all()
			wrong.Topic = "other"
			_, err = o.AwaitRequest(t.Context(), ask(wrong))
			require.ErrorIs(t, err, ops.ErrRequestFailed)
			require.ErrorContains(t, err, `topic "other"`)

			id = ask(r.all())
			eventually(t, "some are accepted", func() bool { return len(messageIDs(t, ib)) > 3 })
		})
		asked, err := o.AwaitRequest(t.Context(), id)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.ErrorContains(t, err, "stopped meanwhile")
		left := resultOf(asked)
		require.Less(t, left.Read, int64(n))
		require.Len(t, left.Left, 1)
		require.Equal(t, left.Read, left.Left[0].From)

		next := r.inbox(t, againSettings{}, "t")
		during(t, next, func() {
			request := envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: left.Left}
			asked, err := o.AwaitRequest(t.Context(), ask(request))
			require.NoError(t, err)
			require.EqualValues(t, n, left.Read+resultOf(asked).Read)
			require.Len(t, messageIDs(t, next), n)
		})
	})
}

// TestReadingAgainOutlivesASilentConnection proves that a connection which passes nothing any more is replaced, and
// that the end of the context ends a call whose broker hangs.
func TestReadingAgainOutlivesASilentConnection(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t)
		r := &againRig{bench: newBench(t, k.Brokers()), database: d, base: time.Now().Add(-time.Hour)}
		require.NoError(t, k.CreateTopic(r.topic, 1)) // r's own client would wait for its silent connection
		for i := range 50 {                           // each in a batch of its own, so that none is fetched with another
			require.NoError(t, k.Produce(r.topic, record(0, fmt.Sprint(i))))
		}
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) {
			c.BatchRecords, c.FetchMaxBytes = 1, 1
			c.RequestTimeout, c.DialTimeout = 500*time.Millisecond, 500*time.Millisecond
		}}, "t")
		request := r.all()
		request.DryRun = true
		request.Progress = func(n envelope.ReadAgainResult) {
			if n.Read == 10 {
				k.FallSilent()
			}
		}
		require.EqualValues(t, 50, mustReadAgain(t, ib, request).Read)

		ctx, cancel := context.WithCancel(t.Context())
		request.Progress = func(n envelope.ReadAgainResult) {
			if n.Read == 10 {
				k.Freeze()
				cancel()
			}
		}
		result, err := opsOf(t, ib).ReadAgain(ctx, "ada", request)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 10, result.Left[0].From)
		require.NoError(t, k.Restart())
	})
}

// TestReadingAgainGivesUpWhileARecordCannotBeDecodedYet proves contract 7.11: the call ends with the reason, before the
// record, and goes on there later.
func TestReadingAgainGivesUpWhileARecordCannotBeDecodedYet(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := &againRig{bench: newBench(t, kafkatest.Start(t).Brokers()), database: d,
			base: time.Now().Add(-time.Hour).Truncate(time.Millisecond)}
		r.createTopic(1, nil)
		r.produceSeconds(1, 5)
		var available atomic.Bool
		ib := r.inbox(t, againSettings{config: func(c *kafkaconsumer.Config) {
			c.Decoder = envelope.DecoderConfig{TypeOf: func(r envelope.Record) (string, error) {
				if r.Offset == 2 && !available.Load() {
					return "", fmt.Errorf("registry: %w", envelope.ErrUnavailable)
				}
				return "t", nil
			}}
		}}, "t")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		result, err := opsOf(t, ib).ReadAgain(ctx, "ada", r.all())
		require.ErrorContains(t, err, "decode the record at offset 2: ")
		require.ErrorContains(t, err, "registry: temporarily unavailable")
		require.Equal(t, []int64{2, 2, 0}, []int64{result.Read, result.Accepted, result.Bad})
		require.EqualValues(t, 2, result.Left[0].From)

		available.Store(true)
		rest := envelope.ReadAgain{Channel: "c", Topic: r.topic, Ranges: result.Left}
		require.EqualValues(t, 3, mustReadAgain(t, ib, rest).Accepted)
	})
}
