package workload

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestEachCommitOfTheGroupIsJudgedOnce(t *testing.T) {
	o := &Offsets{group: "g", topic: "jobs", grown: make(chan struct{}), read: map[string]int64{}, log: map[int][]string{},
		committed: map[int]int64{}, checked: map[int]int64{}}
	commit := func(group, topic string, offset int64) {
		key, value := kmsg.OffsetCommitKey{Version: 1, Group: group, Topic: topic, Partition: 2},
			kmsg.OffsetCommitValue{Version: 3, Offset: offset, CommitTimestamp: 1000}
		o.addCommit(&kgo.Record{Topic: commitLog, Key: key.AppendTo(nil), Value: value.AppendTo(nil)})
	}
	for i := range 5 {
		o.addRecord(&kgo.Record{Topic: "jobs", Partition: 2, Offset: int64(i)})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	commit("g", "other", 9)
	commit("other", "jobs", 9)
	o.addCommit(&kgo.Record{Topic: commitLog, Key: []byte{0, 2, 0, 1, 'g'}}) // a member
	require.Zero(t, o.report)

	commit("g", "jobs", 2)
	c, ids, from, ok := o.next(ended)
	require.True(t, ok)
	require.EqualValues(t, 0, from)
	require.Len(t, ids, 2)
	require.Equal(t, int64(1001), c.at.UnixMilli(), "not before it was received")
	o.checked[2] = 2

	commit("g", "jobs", 2)
	_, _, _, ok = o.next(ended)
	require.False(t, ok, "its records are known to be stored")

	commit("g", "jobs", 6)
	_, _, _, ok = o.next(ended)
	require.False(t, ok, "the topic has not been read so far")
	require.Len(t, o.commits, 1, "and it is not forgotten")
	require.Zero(t, o.report.Backwards)

	commit("g", "jobs", 5)
	require.Equal(t, 1, o.report.Backwards)
	key := kmsg.OffsetCommitKey{Version: 1, Group: "g", Topic: "jobs", Partition: 2}
	o.addCommit(&kgo.Record{Topic: commitLog, Key: key.AppendTo(nil)})
	require.Equal(t, 2, o.report.Backwards, "a deleted commit")
	o.addCommit(&kgo.Record{Topic: commitLog, Key: []byte{0, 1, 0}})
	require.Equal(t, 3, o.report.Backwards, "a key that cannot be read")
	o.addRecord(&kgo.Record{Topic: "jobs", Partition: 2, Offset: 6})
	require.Equal(t, 1, o.report.PastUnstored, "a gap in the topic")
}
