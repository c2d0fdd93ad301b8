package kafka

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// throttle answers the first fetch at once with a throttle time and nothing else, as brokers do
// under a quota (KIP-219). It counts fetches that arrive before that time is over. A broker would
// not read them until then.
func (r *rig) throttle(d time.Duration) (throttled *atomic.Bool, early *atomic.Int32) {
	throttled, early = &atomic.Bool{}, &atomic.Int32{}
	k := r.kafka.Cluster()
	var until time.Time
	k.ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if throttled.Load() {
			if time.Now().Before(until) {
				early.Add(1)
			}
			return nil, nil, false
		}
		answer := request.ResponseKind().(*kmsg.FetchResponse)
		answer.ThrottleMillis = int32(d.Milliseconds())
		until = time.Now().Add(d)
		throttled.Store(true)
		return answer, nil, true
	})
	return throttled, early
}

// TestThrottledFetcherWaitsAsLongAsTheBrokerAsks proves contract 7.8: a quota may throttle a
// consumer for longer than a request's timeout, and that is no failure. The timeout here is long
// enough for a slow machine to receive the throttle time.
func TestThrottledFetcherWaitsAsLongAsTheBrokerAsks(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	_, early := r.throttle(7 * time.Second)
	r.produce(3, 0)
	c := r.start(func(c *kafkaconsumer.Config) { c.RequestTimeout = 5 * time.Second })
	eventually(t, "read", func() bool {
		for _, p := range c.Health().Partitions {
			require.NoError(t, p.Err)
		}
		return r.ledger.accepted(topic) == 3
	})
	require.Zero(t, early.Load())
}

func TestThrottledFetcherStopsImmediately(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	throttled, _ := r.throttle(time.Hour)
	c := r.start()
	eventually(t, "throttled", throttled.Load)
	stop(t, c)
}

// TestGapIsFoundAmongThrottledResponses checks that a response that only throttles does not clear an
// error.
func TestGapIsFoundAmongThrottledResponses(t *testing.T) {
	t.Parallel()
	k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
	require.NoError(t, k.Produce(topic, kafkatest.Record{Value: []byte("a")}))
	commit(t, k, 100)
	var fetches atomic.Int32
	k.Cluster().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		if fetches.Add(1)%2 == 0 {
			return nil, nil, false
		}
		answer := request.ResponseKind().(*kmsg.FetchResponse)
		answer.ThrottleMillis = 1
		return answer, nil, true
	})
	accepted := &values{}
	c := consumer(t, config(k.Brokers(), topic), accepted)
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "the log is read from its start", func() bool {
		seen := accepted.seen()
		return len(seen) > 1 && seen[len(seen)-1] == "a"
	})
	require.Equal(t, []string{"100->0", "a"}, accepted.seen())
	stop(t, c)
}
