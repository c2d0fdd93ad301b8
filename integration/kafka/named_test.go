package kafka

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func naming(partitions ...int) func(*kafkaconsumer.Config) {
	return func(c *kafkaconsumer.Config) { c.Partitions = partitions }
}

// startAs starts a member of another group, with a ledger of its own.
func (b *bench) startAs(group string, change ...func(*kafkaconsumer.Config)) (*kafkaconsumer.Consumer, *ledger) {
	b.t.Helper()
	b.t.Cleanup(func() { _, _ = b.admin.DeleteGroups(context.Background(), group) })
	cfg, l := b.config(), newLedger()
	cfg.GroupID, l.sparse = group, true
	c := consumer(b.t, cfg, l, change...)
	require.NoError(b.t, c.Start(b.t.Context()))
	return c, l
}

// produceEach produces n records to each of the partitions.
func (b *bench) produceEach(n int, partitions ...int32) {
	b.t.Helper()
	var records []*kgo.Record
	for i := range n {
		for _, p := range partitions {
			records = append(records, &kgo.Record{Partition: p, Value: fmt.Appendf(nil, "%d/%d", p, i)})
		}
	}
	b.produce(b.client, records...)
}

// awaitOffsets waits until a group has committed these offsets and no other.
func (b *bench) awaitOffsets(group string, want map[int]int64) {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("%s has committed %v", group, want), func() bool {
		committed, err := b.committed(group)
		return err == nil && maps.Equal(committed, want)
	})
}

// TestGroupsReadOnlyThePartitionsThatTheyName proves contract 7.12: groups that divide a topic by Partitions read and
// commit each record once between them, while members come and go.
func TestGroupsReadOnlyThePartitionsThatTheyName(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(4, nil)
		b.produceEach(20, 0, 1, 2, 3)
		other := b.group + "-other"
		first := b.start(naming(2, 0))
		_, others := b.startAs(other, naming(1, 3))
		b.awaitOffsets(b.group, map[int]int64{0: 20, 2: 20})
		b.awaitOffsets(other, map[int]int64{1: 20, 3: 20})
		second := b.start(naming(2, 0))
		eventually(t, "each member has one", func() bool {
			return len(first.Health().Partitions) == 1 && len(second.Health().Partitions) == 1
		})
		third := b.start(naming(2, 0))
		eventually(t, "one more member is idle, and misses nothing", func() bool {
			for _, c := range []*kafkaconsumer.Consumer{first, second, third} {
				if idle := c.Health().Idle; idle != nil {
					return *idle == kafkaconsumer.Idle{Members: 3, Partitions: 2}
				}
			}
			return false
		})
		b.produceEach(20, 0, 1, 2, 3)
		stop(t, first)
		b.awaitOffsets(b.group, map[int]int64{0: 40, 2: 40})
		b.awaitOffsets(other, map[int]int64{1: 40, 3: 40})
		require.Equal(t, []int{40, 0, 40, 0}, perPartition(b.ledger, b.topic, 4))
		require.Equal(t, []int{0, 40, 0, 40}, perPartition(others, b.topic, 4))
		require.Equal(t, []int{0, 2}, second.Progress().Topics[0].Partitions)
		eventually(t, "nothing lags that the group reads", func() bool {
			lag, _ := second.Health().Lag()
			return lag == 0
		})
		require.NoError(t, second.Health().Err())
	})
}

// perPartition counts the records that were accepted of each of the first n partitions.
func perPartition(l *ledger, topic string, n int) []int {
	counts := make([]int, n)
	for p := range counts {
		counts[p] = len(l.of(topic, p))
	}
	return counts
}

// TestMemberNeverReadsAPartitionThatItDoesNotName proves contract 7.12: where members of a group have different lists,
// a partition waits until a member has it that names it, and health says so.
func TestMemberNeverReadsAPartitionThatItDoesNotName(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(4, nil)
		leader := b.start(naming(0, 1, 2, 3))
		eventually(t, "it leads", func() bool { return len(leader.Health().Partitions) == 4 })
		wrong, read := b.startAs(b.group, naming(9))
		eventually(t, "half of them are assigned to the member with another list", func() bool {
			err := wrong.Health().AssignmentErr
			return len(leader.Health().Partitions) == 2 && err != nil &&
				strings.Contains(err.Error(), "2 partitions that option Partitions does not name")
		})
		require.Empty(t, wrong.Health().Partitions)
		b.produceEach(10, 0, 1, 2, 3)
		eventually(t, "the leader reads its own", func() bool { return b.ledger.accepted(b.topic) == 20 })
		stop(t, wrong)
		b.awaitEnd()
		require.Equal(t, []int{10, 10, 10, 10}, perPartition(b.ledger, b.topic, 4))
		require.Zero(t, read.accepted(b.topic))
	})
}

// TestPartitionThatTheLeaderDoesNotNameDegradesHealth proves contract 7.12: where the leader's list is shorter, no
// member has the partition that only another one names, and that member says so.
func TestPartitionThatTheLeaderDoesNotNameDegradesHealth(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(3, nil)
		leader := b.start(naming(0, 1))
		eventually(t, "it leads", func() bool { return len(leader.Health().Partitions) == 2 })
		longer := b.start(naming(0, 1, 2))
		eventually(t, "the other one says it", func() bool {
			return len(longer.Health().Partitions) == 1 && strings.Contains(errText(longer),
				"1 partitions that option Partitions names are assigned to no member")
		})
		require.NoError(t, leader.Health().Err())
		b.produceEach(5, 0, 1, 2)
		stop(t, leader)
		b.awaitOffsets(b.group, map[int]int64{0: 5, 1: 5, 2: 5})
		eventually(t, "health is good", func() bool { return longer.Health().Err() == nil })
	})
}

// TestSmallerTopicOfAChannelIsComplete proves contract 7.12: a named partition must exist in one of the topics.
func TestSmallerTopicOfAChannelIsComplete(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		smaller := b.topic + "-smaller"
		b.createTopic(4, nil)
		b.create(2, smaller)
		c := b.start(topics(b.topic, smaller), naming(0, 3))
		eventually(t, "both are read", func() bool { return len(c.Health().Partitions) == 3 })
		require.NoError(t, c.Health().Err())
	})
}

// TestNamedPartitionThatDoesNotExistIsWaitedFor proves contract 7.12.
func TestNamedPartitionThatDoesNotExistIsWaitedFor(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		c := b.start(naming(1))
		eventually(t, "health names it", func() bool {
			err := c.Health().AssignmentErr
			return err != nil && strings.Contains(err.Error(), "option Partitions names 1, and no topic has more than 1 ")
		})
		_, err := b.admin.CreatePartitions(t.Context(), 2, b.topic)
		require.NoError(t, err)
		eventually(t, "the broker tells producers of all partitions", func() bool {
			topics, err := b.admin.ListTopics(t.Context(), b.topic)
			return err == nil && len(topics[b.topic].Partitions) == 3
		})
		b.produceEach(5, 0, 1, 2)
		b.awaitOffsets(b.group, map[int]int64{1: 5})
		require.Equal(t, []int{0, 5, 0}, perPartition(b.ledger, b.topic, 3))
		eventually(t, "health is good", func() bool { return c.Health().Err() == nil })
	})
}

// TestLastBeginsOnlyNamedPartitions proves contract 7.12: where a new group begins is committed for no other partition.
func TestLastBeginsOnlyNamedPartitions(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(3, nil)
		b.produceEach(3, 0, 1, 2)
		b.start(fromLast, naming(1))
		b.awaitOffsets(b.group, map[int]int64{1: 3})
		b.produceEach(2, 0, 1, 2)
		b.awaitOffsets(b.group, map[int]int64{1: 5})
		require.Equal(t, []int{0, 2, 0}, perPartition(b.ledger, b.topic, 3))
	})
}

// TestNoneReadsNothingWithoutACommittedOffset proves contract 7.12: a partition that a group takes over is read from
// the offset that was carried over, and not before there is one.
func TestNoneReadsNothingWithoutACommittedOffset(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(2, nil)
		b.produceEach(5, 0, 1)
		none := func(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.None }
		waiting := b.start(none, naming(0, 1))
		eventually(t, "health says that it waits", func() bool {
			err := waiting.Health().Err()
			return err != nil && strings.Count(err.Error(), "has no committed offset in group") == 2
		})
		stop(t, waiting)
		carried := kadm.Offsets{}
		carried.AddOffset(b.topic, 1, 3, -1)
		require.NoError(t, b.admin.CommitAllOffsets(t.Context(), b.group, carried))
		b.start(none, naming(0, 1))
		b.awaitOffsets(b.group, map[int]int64{1: 5})
		require.Equal(t, []int{0, 2}, perPartition(b.ledger, b.topic, 2))
	})
}

// TestPartitionsOfOtherGroupsHoldUpNoCleanup proves contract 6.5 and 7.12: cleanup waits for no partition that only
// others read, and reading a topic again leaves it to them.
func TestPartitionsOfOtherGroupsHoldUpNoCleanup(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		require.NoError(t, k.Produce(topic, record(0, "mine"), record(1, "another's")))
		ib, _ := remembering(t, d, k, acceptor.BadRecordHalt, naming(0))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return !remembers(t, ib, "old") }, "cleanup deletes")
		inboxtest.Eventually(t, func() bool { return remembers(t, ib, "mine") }, "its partition is read")

		o, err := ib.Ops()
		require.NoError(t, err)
		progress, err := o.Progress(t.Context())
		require.NoError(t, err)
		require.Len(t, progress, 1)
		require.Equal(t, 1, progress[0].Partitions)
		require.NotContains(t, k.Committed(group, topic), 1)
		const actor = ops.Actor("test")
		again := envelope.ReadAgain{Channel: "c", Topic: topic, From: time.UnixMilli(1)}
		result, err := o.ReadAgain(t.Context(), actor, again)
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Read)
		again.Partitions = []int{1}
		_, err = o.ReadAgain(t.Context(), actor, again)
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.ErrorContains(t, err, "is not one of option Partitions")
		require.False(t, remembers(t, ib, "another's"))
	})
}

// TestStartDeclaresNoPartitionThatAnotherGroupReads proves contract 6.5 and 7.12: a shard forgets a partition that it
// has given away, also if it starts more often than every seven days. Topics are not listed yet when a process starts.
func TestStartDeclaresNoPartitionThatAnotherGroupReads(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 2))
		undeclared := func(ib *inbox.Inbox) map[int32]int64 {
			var rows []models.Partition
			require.NoError(t, ib.DB().Table(ib.Tables().Partitions()).Find(&rows).Error)
			all := map[int32]int64{}
			for _, r := range rows {
				all[r.Partition] = r.UndeclaredFor
			}
			return all
		}
		before, _ := remembering(t, d, k, acceptor.BadRecordHalt, naming(0, 1))
		end := inboxtest.Start(t, before)
		inboxtest.Eventually(t, func() bool { return len(undeclared(before)) == 3 }, "both and the topic are declared")
		end()
		after, _ := remembering(t, d, k, acceptor.BadRecordHalt, naming(0))
		require.NoError(t, after.DB().Table(after.Tables().Partitions()).Where("1 = 1").Update("undeclared_for", 3600).Error)
		inboxtest.Start(t, after)
		require.Equal(t, map[int32]int64{-1: 0, 0: 0, 1: 3600}, undeclared(after))
	})
}
