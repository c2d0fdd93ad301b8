package kafka

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func fromLast(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.Last }

// beginLast makes the group begin after n records in each of the partitions.
func (r *rig) beginLast(n int, partitions ...int) {
	r.t.Helper()
	r.produce(n, partitions...)
	for _, p := range partitions {
		r.ledger.next[place{topic, p}] = int64(n)
	}
}

func (r *rig) awaitCommitted(want map[int]int64) {
	r.t.Helper()
	eventually(r.t, "committed", func() bool { return maps.Equal(r.kafka.Committed(group, topic), want) })
}

// TestLastReadsAnAddedPartitionFromItsStart proves contract 7.5: a partition that is added to the
// topic of a running group is read from its first record, because it did not exist when the group
// began.
func TestLastReadsAnAddedPartitionFromItsStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.beginLast(3, 0)
	r.start(func(c *kafkaconsumer.Config) { fromLast(c); c.WatchInterval = 500 * time.Millisecond })
	r.awaitCommitted(map[int]int64{0: 3})
	client, err := kgo.NewClient(r.kafka.ClientOptions()...)
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreatePartitions(t.Context(), 1, topic)
	require.NoError(t, err)
	r.produce(5, 1) // before any member knows of the partition
	r.awaitCommitted(map[int]int64{0: 3, 1: 5})
	require.Equal(t, 5, r.ledger.accepted(topic))
}

func TestLastReadsALaterTopicFromItsStart(t *testing.T) {
	t.Parallel()
	for name, existing := range map[string]int{"beside another": 1, "alone": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, existing)
			c := r.start(func(c *kafkaconsumer.Config) {
				fromLast(c)
				c.WatchInterval = 500 * time.Millisecond
				if c.Topics = []string{"later"}; existing > 0 {
					c.Topics = append(c.Topics, topic)
				}
			})
			eventually(t, "it is found missing", func() bool { return slices.Contains(c.Health().MissingTopics, "later") })
			require.NoError(t, r.kafka.CreateTopic("later", 1))
			r.produceTo("later", 5, 0)
			r.awaitTopic("later")
		})
	}
}

// TestMembersStartingTogetherAllReadFromLast checks that one member commits where all
// partitions begin. If each member did so for its own partitions, the group would not look new to
// members that ask later.
func TestMembersStartingTogetherAllReadFromLast(t *testing.T) {
	t.Parallel()
	for name, partitions := range map[string][]int{"more partitions than members": {0, 1, 2, 3},
		"members without a partition": {0}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, len(partitions))
			r.beginLast(5, partitions...)
			const leaderNotAvailable = 5
			fault := r.kafka.FailNext(kmsg.ListOffsets, leaderNotAvailable, -1)
			members := []*kafkaconsumer.Consumer{r.start(fromLast), r.start(fromLast), r.start(fromLast)}
			eventually(t, "they share the partitions, and none knows where to begin", func() bool {
				assigned, generation := 0, members[0].Health().Generation
				for _, m := range members {
					h := m.Health()
					if h.State != kafkaconsumer.StateRunning || h.Generation != generation {
						return false
					}
					assigned += len(h.Partitions)
				}
				return assigned == len(partitions) && r.kafka.Members(group) == len(members)
			})
			require.Empty(t, r.kafka.Committed(group, topic))
			fault.Remove()
			want := map[int]int64{}
			for _, p := range partitions {
				want[p] = 5
			}
			r.awaitCommitted(want)
			r.produce(3, partitions...)
			for _, p := range partitions {
				want[p] = 8
			}
			r.awaitCommitted(want)
			require.Equal(t, 3*len(partitions), r.ledger.deliveries(topic), "nothing of before")
		})
	}
}

// TestLastStartsBeforeAnOpenTransaction proves contract 7.5: records of a transaction that is
// open at the start and committed later count as written after the start.
func TestLastStartsBeforeAnOpenTransaction(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		b.ledger.sparse = true
		b.produce(b.client, &kgo.Record{Value: []byte("before")})
		open := b.newClient(kgo.TransactionalID(b.topic + "-open"))
		require.NoError(t, open.BeginTransaction())
		b.produce(open, &kgo.Record{Value: []byte("inside")})
		b.start(fromLast)
		eventually(t, "its start is committed", func() bool {
			committed, err := b.committed(b.group)
			return err == nil && len(committed) == 1
		})
		require.NoError(t, open.EndTransaction(t.Context(), kgo.TryCommit))
		eventually(t, "it is read", func() bool { return b.ledger.accepted(b.topic) > 0 })
		require.Equal(t, map[int64]string{1: "=inside"}, b.found(0))
	})
}

// TestLastSkipsNothingWhenOffsetsAreDeleted proves contract 7.5: if a group's
// offsets are deleted under a running member, the member does not treat the group as new. Otherwise
// records written in between would be skipped.
func TestLastSkipsNothingWhenOffsetsAreDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.ledger.again(topic)
	c := r.start(fromLast)
	r.awaitCommitted(map[int]int64{0: 0})
	r.produce(3, 0)
	r.awaitAll()
	client, err := kgo.NewClient(r.kafka.ClientOptions()...)
	require.NoError(t, err)
	defer client.Close()
	away := r.kafka.FailNext(kmsg.JoinGroup, coordinatorLoading, -1)
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = group
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID = c.Health().MemberID
	leave.Members = append(leave.Members, member)
	_, err = leave.RequestWith(t.Context(), client)
	require.NoError(t, err)
	eventually(t, "the group is deleted", func() bool {
		deleted, err := kadm.NewClient(client).DeleteGroup(t.Context(), group)
		return err == nil && deleted.Err == nil
	})
	eventually(t, "it reads no more", func() bool { return c.State() == kafkaconsumer.StateJoining })
	r.produce(2, 0)
	away.Remove()
	r.awaitAll()
}
