package kafkaconsumer

import (
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

func TestLogSurvivesItsCommit(t *testing.T) {
	for _, log := range []logID{{}, {topic: kafkawire.TopicID{1}}, {kafkawire.TopicID{1}, "a cluster=b"},
		{kafkawire.TopicID{15: 0xff}, "MkU3OEVBNTcwNTJENDM2Qg"}} {
		require.Equal(t, log, logOf(log.metadata()))
	}
	const id = "inbox topic=AQAAAAAAAAAAAAAAAAAAAA"
	require.Equal(t, id+" cluster=c", logID{kafkawire.TopicID{1}, "c"}.metadata())
	require.Empty(t, logID{cluster: "c"}.metadata())
	for _, other := range []string{"", "x", "inbox topic=", id, id[1:] + " cluster=c", id + "AA cluster=c"} {
		require.Zero(t, logOf(other))
	}
}

func TestCommitOfManyPartitionsHasNoMetadata(t *testing.T) {
	s := &session{consumer: &Consumer{shared: &shared{}}, gen: &kafka.Generation{}}
	log := logID{kafkawire.TopicID{1}, "c"}
	all := []offsetCommit{{"refunds", 0, position{9, log}}}
	for id := range maxNamed {
		all = append(all, offsetCommit{"orders", id, position{int64(id), log}})
	}
	request := s.commitRequest(all[1:], false)
	require.Len(t, request.Topics, 1)
	require.Equal(t, log.metadata(), request.Topics[0].Partitions[maxNamed-1].CommittedMetadata)
	request = s.commitRequest(all, false)
	require.Len(t, request.Topics, 2)
	for i, p := range request.Topics[1].Partitions {
		require.Equal(t, offsetcommit.RequestPartition{PartitionIndex: int32(i), CommittedOffset: int64(i),
			CommittedLeaderEpoch: -1}, p)
	}
}
