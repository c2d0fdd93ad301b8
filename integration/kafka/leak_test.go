package kafka

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestRebalancesLeakNoGoroutinesOrConnections covers a long time of members that
// join and leave, in which leaks of each generation would add up.
func TestRebalancesLeakNoGoroutinesOrConnections(t *testing.T) {
	r := newRig(t, 3)
	c := r.start(func(c *kafkaconsumer.Config) {
		c.HeartbeatInterval = 5 * time.Millisecond
	})
	generations := func(n int) {
		for i := range n {
			before := c.Health().Rebalances
			code := int16(rebalanceInProgress) // it joins again with its member ID
			if i%50 == 49 {
				code = unknownMember // it joins as a new member
			}
			// Two failures, because the previous generation may have sent one more heartbeat while
			// it drained. On a busy machine that heartbeat arrives late and takes the first
			// failure, and its response is ignored.
			fault := r.kafka.FailNext(kmsg.Heartbeat, code, 2)
			eventually(t, "another generation", func() bool { return c.Health().Rebalances > before })
			fault.Remove()
		}
		r.produce(10, 0, 1, 2)
		r.awaitAll()
	}
	generations(10) // until caches are filled
	goroutines, connections := runtime.NumGoroutine(), r.kafka.Connections()
	const rounds = 150
	generations(rounds)
	require.GreaterOrEqual(t, c.Health().Rebalances, rounds)
	// A few come and go with running requests.
	eventually(t, "no more goroutines and connections than before", func() bool {
		return runtime.NumGoroutine() <= goroutines+10 && r.kafka.Connections() <= connections+3
	})
	t.Logf("after %d rebalances: %d goroutines (%d before), %d connections (%d before)", c.Health().Rebalances,
		runtime.NumGoroutine(), goroutines, r.kafka.Connections(), connections)
}
