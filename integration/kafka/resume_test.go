package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

const ada = ops.Actor("ada")

// haltAtBad makes bad records halt.
func haltAtBad(o *inbox.Options) { o.Acceptor.BadRecords = acceptor.BadRecordHalt }

// operator returns an Ops of another process, on the tables alone.
func operator(t *testing.T, d *inboxtest.Database) *ops.Ops {
	t.Helper()
	o, err := ops.New(d.Another(t))
	require.NoError(t, err)
	return o
}

// haltAt waits until a worker reports a partition as halted at an offset, and returns what it reports.
func haltAt(t *testing.T, o *ops.Ops, partition int32, offset int64) (at ops.PartitionRef, p ops.ConsumedPartition) {
	t.Helper()
	at = ops.PartitionRef{Channel: "c", Topic: topic, Partition: partition, Offset: offset}
	eventually(t, "the halt is reported", func() bool {
		consumers, err := o.Consumers(t.Context())
		require.NoError(t, err)
		for _, c := range consumers {
			for _, p = range c.Partitions {
				if p.Halted && p.Partition == partition && p.Position == offset {
					at.AfterGap = p.AfterGap
					return true
				}
			}
		}
		return false
	})
	return at, p
}

// request makes a request, which must be taken.
func request(
	t *testing.T, act func(context.Context, ops.Actor, ops.PartitionRef) error, at ops.PartitionRef,
) {
	t.Helper()
	require.NoError(t, answer(t, act, at))
}

// answer makes a request and returns its error. It tries again while the worker's last heartbeat is from
// between two halts.
func answer(
	t *testing.T, act func(context.Context, ops.Actor, ops.PartitionRef) error, at ops.PartitionRef,
) (err error) {
	t.Helper()
	eventually(t, "the worker reports the halt", func() bool {
		err = act(t.Context(), ada, at)
		return !betweenHalts(err)
	})
	return err
}

// betweenHalts tells whether a request was refused because the worker's last heartbeat is from between
// two halts: the partition goes on (ErrStale), or the worker joins its group again and has no
// partition (ErrNotFound).
func betweenHalts(err error) bool {
	return errors.Is(err, ops.ErrStale) || errors.Is(err, ops.ErrNotFound)
}

func requestsOf(t *testing.T, ib *inbox.Inbox) (left []models.PartitionRequest) {
	t.Helper()
	require.NoError(t, ib.DB().Find(&left).Error)
	return left
}

func rejectedOf(t *testing.T, ib *inbox.Inbox) (rows []models.RejectedMessage) {
	t.Helper()
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Order("record_offset").Find(&rows).Error)
	return rows
}

// TestHaltedPartitionResumesOnceItsCauseIsGone proves contract 7.10 and 11.1: an operator of
// another process sees the halt and resumes the partition. Until the cause is gone it halts again.
func TestHaltedPartitionResumesOnceItsCauseIsGone(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		const records = 40
		for i := range records {
			require.NoError(t, k.Produce(topic, record(0, fmt.Sprint(i)), record(1, fmt.Sprint("other", i))))
		}
		var fixed atomic.Bool
		halts := make(chan error, 10)
		_, ib, _ := application(t, d, k, inbox.Configure(haltAtBad), plain(k, func(c *kafkaconsumer.Config) {
			c.BatchRecords = 1 // so that records after the halt are fetched already
			c.OnHalt = func(_ string, _ int, reason error) { halts <- reason }
			c.Decoder.ID = envelope.Func(func(in envelope.IDInput) (string, error) {
				if id := string(in.Record.Headers[0].Value); id != "3" || fixed.Load() {
					return id, nil
				}
				return "", errors.New("no rule for order 3")
			})
		}))
		o := operator(t, d)
		at, p := haltAt(t, o, 0, 3)
		require.ErrorContains(t, receive(t, halts), "no rule for order 3")
		require.Contains(t, p.Problem, "no rule for order 3")
		require.Equal(t, []any{"halted", true, false}, []any{p.State, p.Skippable, p.AfterGap})
		require.EqualValues(t, records-3, p.Lag)
		require.False(t, ib.Health().Ready())

		request(t, o.ResumePartition, at)
		require.ErrorContains(t, receive(t, halts), "no rule for order 3", "it is not fixed yet")
		require.Empty(t, requestsOf(t, ib))
		fixed.Store(true)
		request(t, o.ResumePartition, at)
		require.NoError(t, o.AwaitPartition(t.Context(), at))
		eventually(t, "all is committed", func() bool {
			committed := k.Committed(group, topic)
			return committed[0] == records && committed[1] == records
		})
		require.Equal(t, 2*records, inboxtest.CountMessages(t, ib))
		require.True(t, ib.Health().Ready(), "%v", ib.Health().Reasons)
		require.Empty(t, ib.Health().Consumers[0].Halted())
		require.Empty(t, requestsOf(t, ib))
		require.Empty(t, rejectedOf(t, ib))
		page, err := o.Audit(t.Context(), ops.AuditFilter{Action: "resume_partition"}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		require.Equal(t, "partition orders/0 of channel c", page.Items[0].Target)
		require.Equal(t, ada, page.Items[0].Actor)
		eventually(t, "the state is reported", func() bool {
			return errors.Is(o.ResumePartition(t.Context(), ada, at), ops.ErrStale)
		})
	})
}

// TestSkippedRecordIsKeptAsRejectedAndOthersContinue proves contract 7.10 for the halts about
// one record, in each delivery mode.
func TestSkippedRecordIsKeptAsRejectedAndOthersContinue(t *testing.T) {
	unrouted := record(0, "2")
	unrouted.Headers = append(unrouted.Headers, kafkatest.Header{Key: "MessageType", Value: []byte("x")})
	bad := record(0, "")
	bad.Key, bad.Headers = []byte("k"), []kafkatest.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{0xff}}}
	for name, c := range map[string]struct {
		halts  kafkatest.Record
		mode   []inbox.ChannelOption
		reason string
	}{
		"a bad record of an Inbox channel":  {halts: bad, reason: "message ID is missing"},
		"an unrouted record":                {halts: unrouted, reason: "unrouted"},
		"a bad record of a Direct channel":  {halts: unrouted, mode: []inbox.ChannelOption{inbox.Direct()}, reason: "unrouted"},
		"a record that a handler gave up":   {record(0, "2"), []inbox.ChannelOption{inbox.Direct()}, "boom"},
		"one of an Inline channel's":        {record(0, "2"), []inbox.ChannelOption{inbox.Inline()}, "boom"},
		"a bad record of an Inline channel": {bad, []inbox.ChannelOption{inbox.Inline()}, "message ID is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				var attempts atomic.Int32
				fails := func(_ context.Context, m inboxtest.Bytes) error {
					if m.ID == "2" {
						attempts.Add(1)
						return handler.Poison(errBoom)
					}
					return nil
				}
				k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
				require.NoError(t, k.Produce(topic, record(0, "1"), c.halts, record(0, "3"), record(0, "4")))
				cfg := config(k.Brokers(), topic)
				cfg.Decoder = envelope.DecoderConfig{TypeHeader: "MessageType", Type: "t"}
				_, ib, _ := application(t, d, k, inbox.Configure(func(o *inbox.Options) {
					haltAtBad(o)
					o.Acceptor.Unrouted = acceptor.UnroutedHalt
				}), inbox.Channel("c", append(c.mode, inbox.Kafka(cfg), inbox.On("t", inboxtest.Do("h", fails)))...))
				o := operator(t, d)
				at, p := haltAt(t, o, 0, 1)
				require.True(t, p.Skippable)
				ran := attempts.Load()
				request(t, o.SkipRecord, at)
				eventually(t, "all is committed", func() bool { return k.Committed(group, topic)[0] == 4 })
				rows := rejectedOf(t, ib)
				require.Len(t, rows, 1)
				require.Equal(t, []any{"c", topic, int32(0), int64(1)},
					[]any{rows[0].Channel, rows[0].Topic, rows[0].Partition, rows[0].Offset})
				require.Equal(t, [][]byte{c.halts.Key, c.halts.Value}, [][]byte{rows[0].Key, rows[0].Value})
				require.Contains(t, rows[0].Reason, c.reason)
				require.Equal(t, ran, attempts.Load(), "its handlers do not run again")
				require.Empty(t, requestsOf(t, ib))
				require.True(t, ib.Health().Ready())
			})
		})
	}
}

// TestRequestForAnotherHaltChangesNothing proves contract 7.10: requests for another offset or of a
// decision that the halt does not allow, and old ones, are never carried out.
func TestRequestForAnotherHaltChangesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "3"), record(1, "")))
		var halts [2]atomic.Int32
		_, ib, logs := application(t, d, k, inbox.Configure(haltAtBad), plain(k, func(c *kafkaconsumer.Config) {
			c.OnHalt = func(_ string, partition int, _ error) { halts[partition].Add(1) }
		}))
		o := operator(t, d)
		at, _ := haltAt(t, o, 0, 1)
		for _, offset := range []int64{0, 2} {
			other := at
			other.Offset = offset
			require.ErrorIs(t, o.ResumePartition(t.Context(), ada, other), ops.ErrStale)
			require.ErrorIs(t, o.SkipRecord(t.Context(), ada, other), ops.ErrStale)
		}
		unknown := at
		unknown.Partition = 2
		require.ErrorIs(t, o.SkipRecord(t.Context(), ada, unknown), ops.ErrNotFound)
		require.Empty(t, requestsOf(t, ib), "what is refused is not stored")

		stale := models.PartitionRequest{Channel: "c", Topic: topic, ID: uuid.NewString(), Offset: 1, Decision: "skip",
			Actor: "ada", RequestedAt: time.Now()}
		for _, change := range []func(*models.PartitionRequest){
			func(r *models.PartitionRequest) { r.Offset = 0 },
			func(r *models.PartitionRequest) { r.Offset = 2 },
			func(r *models.PartitionRequest) { r.RequestedAt = time.Now().Add(-2 * time.Hour) },
			func(r *models.PartitionRequest) { r.Channel = "another" },
		} {
			r := stale
			change(&r)
			require.NoError(t, ib.DB().Create(&r).Error)
			// The poll that finds this one finds the other, too.
			seen := halts[1].Load()
			request(t, o.ResumePartition, ops.PartitionRef{Channel: "c", Topic: topic, Partition: 1})
			eventually(t, "a poll", func() bool { return halts[1].Load() > seen })
			require.Subset(t, []string{r.ID}, idsOf(requestsOf(t, ib)), "an old one is deleted by the next request")
			require.NoError(t, ib.DB().Delete(&r).Error)
		}
		stale.Decision, stale.RequestedAt = "continue", time.Now() // as if a gap had been at that offset
		require.NoError(t, ib.DB().Create(&stale).Error)
		eventually(t, "it is dropped", func() bool { return len(requestsOf(t, ib)) == 0 })
		eventually(t, "it is logged", func() bool { return logs.FilterMessageSnippet("is dropped").Len() > 0 })

		require.Empty(t, rejectedOf(t, ib))
		require.EqualValues(t, 1, halts[0].Load())
		require.Equal(t, int64(1), k.Committed(group, topic)[0])
		haltAt(t, o, 0, 1)
	})
}

func idsOf(requests []models.PartitionRequest) (ids []string) {
	for _, r := range requests {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestConcurrentRequestsAreCarriedOutOnce proves contract 7.10: the later one of two requests
// replaces the earlier one, and whatever wins, the record is kept once and nothing is lost.
func TestConcurrentRequestsAreCarriedOutOnce(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "3")))
		_, ib, _ := application(t, d, k, inbox.Configure(haltAtBad), plain(k))
		o := operator(t, d)
		at, _ := haltAt(t, o, 0, 1)
		asked := atomic.Int32{}
		ask := func(i int) error {
			act := o.SkipRecord
			if i%2 == 1 {
				act = o.ResumePartition
			}
			err := act(t.Context(), ada, at)
			if betweenHalts(err) {
				return nil
			}
			asked.Add(1)
			return err
		}
		for _, err := range racetest.Together(10, ask) {
			require.NoError(t, err)
		}
		eventually(t, "skipped", func() bool {
			if k.Committed(group, topic)[0] == 3 {
				return true
			}
			return len(requestsOf(t, ib)) == 0 && ask(0) != nil // a resume has won: it is halted again
		})
		require.Len(t, rejectedOf(t, ib), 1)
		require.Equal(t, 2, inboxtest.CountMessages(t, ib))
		page, err := o.Audit(t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
		require.NoError(t, err)
		require.Len(t, page.Items, int(asked.Load()), "each is audited")
	})
}

// TestNextOwnerCarriesOutThePartitionRequest proves contract 7.10: the process with the
// halted partition leaves its group before it has polled, and another one joins.
func TestNextOwnerCarriesOutThePartitionRequest(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "3")))
		slow := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(haltAtBad), plain(k,
			func(c *kafkaconsumer.Config) { // it does not poll in time
				c.SessionTimeout, c.HeartbeatInterval = 4*time.Minute, time.Minute
			}))
		stopSlow := inboxtest.Start(t, slow)
		o := operator(t, d)
		at, _ := haltAt(t, o, 0, 1)
		request(t, o.SkipRecord, at)
		stopSlow()
		require.Len(t, requestsOf(t, slow), 1, "it is pending")
		require.Empty(t, rejectedOf(t, slow))

		next := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(haltAtBad), plain(k))
		inboxtest.Start(t, next)
		eventually(t, "all is committed", func() bool { return k.Committed(group, topic)[0] == 3 })
		require.Len(t, rejectedOf(t, next), 1)
		require.Empty(t, requestsOf(t, next))
		require.Equal(t, 2, inboxtest.CountMessages(t, next))
	})
}

// TestSkipWithFailedCommitKeepsOneRow proves contract 7.10: after a crash between the effect and the
// commit the record comes again. It halts again, and skipping it again keeps one row.
func TestSkipWithFailedCommitKeepsOneRow(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, record(0, "1"), record(0, ""), record(0, "3")))
		halts := make(chan error, 10)
		_, ib, _ := application(t, d, k, inbox.Configure(haltAtBad), plain(k, func(c *kafkaconsumer.Config) {
			c.OnHalt = func(_ string, _ int, reason error) { halts <- reason }
		}))
		o := operator(t, d)
		receive(t, halts)
		eventually(t, "what is before is committed", func() bool { return k.Committed(group, topic)[0] == 1 })
		at, _ := haltAt(t, o, 0, 1)
		fault := k.FailNext(kmsg.OffsetCommit, 22, 1) // ends the generation, as a crash does
		request(t, o.SkipRecord, at)
		receive(t, halts)
		require.Equal(t, 1, fault.Hits())
		require.Len(t, rejectedOf(t, ib), 1)
		require.Empty(t, requestsOf(t, ib), "it was carried out")
		request(t, o.SkipRecord, at)
		eventually(t, "all is committed", func() bool { return k.Committed(group, topic)[0] == 3 })
		require.Len(t, rejectedOf(t, ib), 1)
	})
}

// TestRequestSkipsAndStoresTheGap proves contract 7.10 and 7.5: resuming after a gap keeps the gap and
// goes on as under GapContinue. A gap has no record to skip.
func TestRequestSkipsAndStoresTheGap(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, k *kafkatest.Kafka) (to, end int64){
		"records that were deleted": func(t *testing.T, k *kafkatest.Kafka) (to, end int64) {
			produceIDs(t, k, 5, 20)
			require.NoError(t, k.DeleteRecords(topic, 0, 15))
			return 15, 20
		},
		"a topic that was created again": func(t *testing.T, k *kafkatest.Kafka) (to, end int64) {
			require.NoError(t, k.DeleteTopic(topic))
			require.NoError(t, k.CreateTopic(topic, 1))
			commit(t, k, 5) // as on brokers that keep the offsets
			produceIDs(t, k, 5, 8)
			return 0, 3
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), plain(k))
				produceIDs(t, k, 0, 5)
				during(t, ib, func() {
					eventually(t, "the first are committed", func() bool { return k.Committed(group, topic)[0] == 5 })
				})
				to, end := lose(t, k)
				inboxtest.Start(t, ib)
				o := operator(t, d)
				at, p := haltAt(t, o, 0, 5)
				require.True(t, p.AfterGap)
				require.ErrorIs(t, answer(t, o.SkipRecord, at), ops.ErrNotSkippable)
				require.Empty(t, gapsOf(t, ib))
				request(t, o.ResumePartition, at)
				eventually(t, "those that are left are committed", func() bool { return k.Committed(group, topic)[0] == end })
				gaps := gapsOf(t, ib)
				require.Len(t, gaps, 1)
				require.Equal(t, []int64{5, to}, []int64{gaps[0].FromOffset, gaps[0].ToOffset})
				require.Equal(t, 5+int(end-to), inboxtest.CountMessages(t, ib))
				require.EqualValues(t, 1, ib.Counters().Gaps)
				require.Empty(t, requestsOf(t, ib))
				require.True(t, ib.Health().Ready())
			})
		})
	}
}

// TestUnreadableBatchIsReadAgainNotSkipped proves contract 7.10: its records are unknown, so
// skipping one would lose others.
func TestUnreadableBatchIsReadAgainNotSkipped(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := &rig{t: t, kafka: kafkatest.Start(t, kafkatest.Topic(topic, 1))}
		log := []craftedBatch{{base: 0, last: 1, offsets: []int64{0, 1}},
			{base: 2, last: 3, offsets: []int64{2, 3}, corrupt: true}, {base: 4, last: 4, offsets: []int64{4}}}
		r.serve(log)
		_, ib, _ := application(t, d, r.kafka, plain(r.kafka, func(c *kafkaconsumer.Config) {
			c.Decoder.ID = envelope.KafkaCoordinates()
		}))
		o := operator(t, d)
		at, p := haltAt(t, o, 0, 2)
		require.Equal(t, []bool{false, false}, []bool{p.Skippable, p.AfterGap})
		require.ErrorIs(t, answer(t, o.SkipRecord, at), ops.ErrNotSkippable)
		fixed := append([]craftedBatch(nil), log...)
		fixed[1].corrupt = false
		r.serve(fixed)
		request(t, o.ResumePartition, at)
		eventually(t, "all is committed", func() bool { return r.committed(0) == 5 })
		require.Equal(t, 5, inboxtest.CountMessages(t, ib))
	})
}

// asking is a ledger with an operator who decides about each halt as soon as the consumer polls.
type asking struct {
	*ledger
	mu      sync.Mutex
	halted  map[int64]bool // offsets that halt once
	at      int64          // where the partition is halted; -1 if it is not
	record  envelope.Record
	skipped map[int64]int
}

func (a *asking) halts(r envelope.Record) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.halted[r.Offset] {
		delete(a.halted, r.Offset)
		a.at, a.record = r.Offset, r
		return true
	}
	return false
}

func (a *asking) PartitionRequests(context.Context, string) ([]models.PartitionRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at < 0 {
		return nil, nil
	}
	decision := "resume"
	if a.at%2 == 1 {
		decision = "skip"
	}
	return []models.PartitionRequest{{Channel: "c", Topic: topic, ID: fmt.Sprint(a.at), Offset: a.at,
		Decision: decision}}, nil
}

func (a *asking) AcceptRecords(ctx context.Context, channel string, received []envelope.Received) (
	[]envelope.Result, error,
) {
	results, err := a.ledger.AcceptRecords(ctx, channel, received)
	for i := range results {
		results[i].Skippable = true
	}
	return results, err
}

func (a *asking) CarryOut(
	_ context.Context, r models.PartitionRequest, record *envelope.Received, _ *envelope.Gap,
) (envelope.Disposition, error) {
	if rand.IntN(3) == 0 {
		return 0, errors.New("the database is away")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at != r.Offset {
		return envelope.Halt, nil
	}
	a.at = -1
	if record != nil {
		a.skipped[record.Record.Offset]++
		a.ledger.mu.Lock()
		defer a.ledger.mu.Unlock()
		a.store(place{record.Record.Topic, record.Record.Partition}, record.Record)
	}
	return envelope.Durable, nil
}

// TestResumedPartitionReadsEachRecordInOrder halts a partition again and again while records after
// the halt are fetched and queued. The ledger checks that none is passed, and that no offset is
// committed before its record is accepted (contract 7.1, 7.10).
func TestResumedPartitionReadsEachRecordInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	a := &asking{ledger: r.ledger, halted: map[int64]bool{}, at: -1, skipped: map[int64]int{}}
	r.ledger.halt = a.halts
	const records = 300
	for range 30 {
		a.halted[rand.Int64N(records)] = true
	}
	odd := 0
	for offset := range a.halted {
		odd += int(offset % 2)
	}
	r.produce(records, 0)
	cfg := config(r.kafka.Brokers(), topic)
	cfg.BatchRecords, cfg.HeartbeatInterval, cfg.Linger = 7, 10*time.Millisecond, time.Millisecond
	c, err := kafkaconsumer.New("c", cfg, a, logger(t), nil)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, c) })
	require.NoError(t, c.Start(t.Context()))
	r.awaitAll()
	require.Len(t, a.skipped, odd)
	require.Empty(t, c.Health().Halted())
}
