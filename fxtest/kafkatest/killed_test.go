package kafkatest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
)

// member is a group member that sends each request of the group protocol separately, so that it can
// be killed between any two.
type member struct {
	ctx        context.Context
	client     *kgo.Client
	id         string
	generation int32
}

func newMember(t *testing.T, k *kafkatest.Kafka) *member {
	t.Helper()
	client, err := kgo.NewClient(k.ClientOptions()...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	m := &member{ctx: ctx, client: client}
	first, err := m.join()
	require.NoError(t, err)
	require.ErrorIs(t, kerr.ErrorForCode(first.ErrorCode), kerr.MemberIDRequired)
	m.id = first.MemberID
	return m
}

// join sends a JoinGroup request, which waits until the other members join again.
func (m *member) join() (*kmsg.JoinGroupResponse, error) {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = "group", m.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 1000, int32(patience.Milliseconds())
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name = "range"
	req.Protocols = append(req.Protocols, protocol)
	resp, err := req.RequestWith(m.ctx, m.client)
	if err == nil && resp.ErrorCode == 0 {
		m.generation = resp.Generation
	}
	return resp, err
}

// rejoin joins again as the leader, and returns how many members the group then has.
func (m *member) rejoin(t *testing.T) int {
	t.Helper()
	resp, err := m.join()
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.ErrorCode))
	require.Equal(t, m.id, resp.LeaderID)
	return len(resp.Members)
}

// lead assigns partitions to these members, as the group's leader.
func (m *member) lead(t *testing.T, ids ...string) {
	t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = "group", m.id, m.generation
	for _, id := range ids {
		assignment := kmsg.NewSyncGroupRequestGroupAssignment()
		assignment.MemberID, assignment.MemberAssignment = id, []byte("a part")
		req.GroupAssignment = append(req.GroupAssignment, assignment)
	}
	resp, err := req.RequestWith(m.ctx, m.client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.ErrorCode))
}

// untilRebalance sends heartbeats until the group rebalances.
func (m *member) untilRebalance(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation = "group", m.id, m.generation
		resp, err := req.RequestWith(m.ctx, m.client)
		return err == nil && kerr.ErrorForCode(resp.ErrorCode) == kerr.RebalanceInProgress
	}, patience, 50*time.Millisecond, "the group rebalances")
}

// TestGroupContinuesWithoutAKilledMember checks that the fake behaves like a real broker, at
// whichever step a member is killed.
func TestGroupContinuesWithoutAKilledMember(t *testing.T) {
	for name, whileItJoins := range map[string]bool{"while it joins": true, "before it has its partitions": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kafkatest.Start(t)
			survivor := newMember(t, k)
			require.Equal(t, 1, survivor.rejoin(t))
			survivor.lead(t, survivor.id)

			killed := newMember(t, k)
			before := k.Connections()
			joined := make(chan error, 1)
			go func() { _, err := killed.join(); joined <- err }()
			survivor.untilRebalance(t)
			kill := func() {
				killed.client.Close()
				require.Eventually(t, func() bool { return k.Connections() < before }, patience, time.Millisecond)
			}
			if whileItJoins {
				kill()
				require.Error(t, <-joined)
			}
			require.Equal(t, 2, survivor.rejoin(t))
			if !whileItJoins {
				require.NoError(t, <-joined)
				kill()
			}
			survivor.lead(t, survivor.id, killed.id)

			survivor.untilRebalance(t)
			require.Equal(t, 1, survivor.rejoin(t), "all partitions are the survivor's")
			survivor.lead(t, survivor.id)
			require.Equal(t, 1, k.Members("group"))
		})
	}
}
