package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Kafka's error codes.
const (
	coordinatorLoading  = 14
	coordinatorGone     = 15
	notCoordinator      = 16
	illegalGeneration   = 22
	unknownMember       = 25
	rebalanceInProgress = 27
)

func TestSecondMemberTakesOverWithoutLossOrRepeat(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.produce(200, 0, 1, 2, 3)
	first := r.start()
	r.awaitAll()
	second := r.start()
	eventually(t, "both have partitions", func() bool {
		return len(first.Health().Partitions) == 2 && len(second.Health().Partitions) == 2
	})
	r.produce(200, 0, 1, 2, 3)
	r.awaitAll()
	stop(t, first)
	eventually(t, "the second has them all", func() bool { return len(second.Health().Partitions) == 4 })
	r.produce(200, 0, 1, 2, 3)
	r.awaitAll()
}

func TestRebalanceCommitsTheRunningAccept(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	entered, release := make(chan struct{}), make(chan struct{})
	slow, abandoned := atomic.Bool{}, atomic.Bool{}
	slow.Store(true)
	r.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		if slow.CompareAndSwap(true, false) {
			close(entered)
			select {
			case <-release:
			case <-ctx.Done():
				abandoned.Store(true)
				return ctx.Err()
			}
		}
		return nil
	}
	r.produce(100, 0, 1)
	// The accept takes longer than the session. Heartbeats while draining keep the member, and so
	// its last commit, alive.
	first := r.start(func(c *kafkaconsumer.Config) {
		c.SessionTimeout, c.DrainTimeout, c.AcceptConcurrency = 4*time.Second, 30*time.Second, 1
	})
	receive(t, entered)
	second := r.start()
	time.AfterFunc(6*time.Second, func() { close(release) })
	eventually(t, "both have partitions", func() bool {
		return len(first.Health().Partitions) == 1 && len(second.Health().Partitions) == 1
	})
	r.awaitAll()
	require.False(t, abandoned.Load())
	require.Equal(t, 200, r.ledger.deliveries(topic), "what was accepted while draining is committed, not redelivered")
}

func TestAcceptOutlastingTheDrainIsRedelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	stuck := atomic.Bool{}
	stuck.Store(true)
	entered := make(chan struct{}, 10)
	r.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		if stuck.Load() {
			entered <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	r.produce(50, 0, 1)
	first := r.start(func(c *kafkaconsumer.Config) { c.DrainTimeout, c.AcceptConcurrency = 300*time.Millisecond, 1 })
	receive(t, entered)
	second := r.start(func(c *kafkaconsumer.Config) { c.DrainTimeout = 300 * time.Millisecond })
	eventually(t, "rebalanced", func() bool {
		return first.Health().Rebalances > 0 && len(second.Health().Partitions) == 1
	})
	require.Zero(t, r.ledger.accepted(topic))
	stuck.Store(false)
	r.awaitAll()
}

func TestInjectedGroupErrorsAreSurvived(t *testing.T) {
	t.Parallel()
	for name, api := range map[string]kmsg.Key{
		"commit": kmsg.OffsetCommit, "heartbeat": kmsg.Heartbeat, "join": kmsg.JoinGroup,
		"sync":         kmsg.SyncGroup,
		"offset fetch": kmsg.OffsetFetch, "find coordinator": kmsg.FindCoordinator,
	} {
		for _, code := range []int16{illegalGeneration, unknownMember, rebalanceInProgress, notCoordinator, coordinatorGone,
			coordinatorLoading} {
			t.Run(fmt.Sprintf("%s/%d", name, code), func(t *testing.T) {
				r := newRig(t, 2)
				r.produce(50, 0, 1)
				fault := r.kafka.FailNext(api, code, 2)
				r.start()
				eventually(t, "injected", func() bool {
					return fault.Hits() == 2 || api == kmsg.Heartbeat && fault.Hits() > 0
				})
				fault.Remove()
				r.produce(50, 0, 1)
				r.awaitAll()
			})
		}
	}
}

func TestLostConnectionsToTheCoordinatorAreSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.start(soonForgotten)
	for _, api := range []kmsg.Key{
		kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup,
		kmsg.OffsetFetch,
		kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata,
	} {
		r.kafka.LoseAnswers(api, 1)
		r.produce(20, 0, 1)
		r.awaitAll()
	}
}

func TestFetchErrorsAreRetriedAtTheirOffset(t *testing.T) {
	t.Parallel()
	for _, code := range []int16{3, 5, 6, 7, 9, 13, 56, 74, 75, 29, -1} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			r := newRig(t, 1)
			r.produce(10, 0)
			fault := r.kafka.FailNext(kmsg.Fetch, code, 3)
			r.start()
			r.awaitAll()
			require.Equal(t, 3, fault.Hits())
			require.Equal(t, 10, r.ledger.deliveries(topic))
		})
	}
}

func TestBrokerOutageIsSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.start(soonForgotten)
	r.produce(50, 0, 1)
	r.awaitAll()
	r.kafka.Stop()
	eventually(t, "the outage shows", func() bool {
		h := c.Health()
		return h.GroupErr != nil && !h.DownSince.IsZero() && h.Err() != nil
	})
	require.NoError(t, r.kafka.Restart())
	r.produce(50, 0, 1)
	r.awaitAll()
	eventually(t, "healthy again", func() bool { return c.Health().Err() == nil && c.Health().DownSince.IsZero() })
}

func TestFrozenBrokerIsSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.start(soonForgotten, func(c *kafkaconsumer.Config) { c.RequestTimeout = 500 * time.Millisecond })
	r.produce(50, 0)
	r.awaitAll()
	r.kafka.Freeze()
	eventually(t, "the freeze shows", func() bool { return c.Health().GroupErr != nil })
	require.NoError(t, r.kafka.Restart())
	r.produce(50, 0)
	r.awaitAll()
}

func TestGapHaltsAndReportsMissingOffsets(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(20, 0, 1)
	c := r.start()
	r.awaitAll()
	stop(t, c)
	r.produce(20, 0)
	require.NoError(t, r.kafka.DeleteRecords(topic, 0, 35)) // as if retention had been faster
	halted := make(chan error, 1)
	c = r.start(func(c *kafkaconsumer.Config) {
		c.OnHalt = func(_ string, _ int, reason error) { halted <- reason }
	})
	var gap *kafkaconsumer.OffsetGapError
	require.ErrorAs(t, receive(t, halted), &gap)
	require.Equal(t, kafkaconsumer.OffsetGapError{Topic: topic, Partition: 0, Offset: 20, First: 35, Last: 40}, *gap)
	require.ErrorContains(t, gap, "15 records were deleted unread")
	r.produce(5, 1)
	eventually(t, "the other goes on", func() bool { return r.committed(1) == 25 })
	require.Equal(t, int64(20), r.committed(0))
	require.Len(t, c.Health().Halted(), 1)
	require.False(t, c.Health().CaughtUp())
}

// TestChaos lets members join and leave while accepts fail, are slow or lose their response, and
// the coordinator returns errors. The ledger checks every promise.
func TestChaos(t *testing.T) {
	t.Parallel()
	r := newRig(t, 6)
	r.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		switch rand.N(20) {
		case 0:
			return fmt.Errorf("database error")
		case 1:
			timer := time.NewTimer(rand.N(300 * time.Millisecond))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	r.ledger.after = func(context.Context, []envelope.Received) error {
		if rand.N(30) == 0 {
			return fmt.Errorf("answer lost")
		}
		return nil
	}
	members := []*kafkaconsumer.Consumer{r.start(), r.start()}
	apis := []kmsg.Key{kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.JoinGroup,
		kmsg.SyncGroup, kmsg.Fetch}
	codes := []int16{illegalGeneration, unknownMember, rebalanceInProgress, notCoordinator}
	for range 12 {
		r.produce(200, 0, 1, 2, 3, 4, 5)
		switch rand.N(4) {
		case 0:
			if len(members) < 4 {
				members = append(members, r.start())
			}
		case 1:
			if len(members) > 1 {
				stop(t, members[0])
				members = members[1:]
			}
		case 2:
			api := apis[rand.N(len(apis))]
			code := codes[rand.N(len(codes))]
			if api == kmsg.Fetch {
				code = 6
			}
			r.kafka.FailNext(api, code, 1+rand.N(3))
		case 3:
			r.kafka.LoseAnswers(apis[rand.N(len(apis))], 1)
		}
		target := r.ledger.accepted(topic) + 600
		eventually(t, "progress", func() bool {
			return r.ledger.accepted(topic) >= target || r.ledger.accepted(topic) == total(r)
		})
	}
	r.awaitAll()
}

func total(r *rig) int {
	n := 0
	for _, count := range r.next {
		n += count
	}
	return n
}
