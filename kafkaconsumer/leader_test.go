package kafkaconsumer

import (
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
)

// A member assigns as leader, its join fails, and in the next another leads.
// Two members that take themselves for the leader could both begin the group,
// and one commit past what the other reads.
func TestAssignmentOfAJoinThatFailedMakesNoLeader(t *testing.T) {
	leader := &leaderView{}
	b := observedBalancer{kafka.RangeGroupBalancer{}, leader, nil}
	b.AssignGroups([]kafka.GroupMember{{ID: "a", Topics: []string{"t"}}}, []kafka.Partition{{Topic: "t"}})
	_, err := b.UserData()
	require.NoError(t, err)
	require.Nil(t, leader.take())
}
