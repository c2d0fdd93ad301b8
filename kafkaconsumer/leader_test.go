package kafkaconsumer

import (
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
)

// TestFailedJoinMakesNoLeader covers this case: a member assigns as leader, its
// join fails, and another member leads the next one. If both members took themselves for the
// leader, both could begin the group, and one could commit past what the other reads.
func TestFailedJoinMakesNoLeader(t *testing.T) {
	leader := &leaderView{}
	b := observedBalancer{kafka.RangeGroupBalancer{}, leader, nil, Config{}.names}
	b.AssignGroups([]kafka.GroupMember{{ID: "a", Topics: []string{"t"}}}, []kafka.Partition{{Topic: "t"}})
	_, err := b.UserData()
	require.NoError(t, err)
	require.Nil(t, leader.take())
}
