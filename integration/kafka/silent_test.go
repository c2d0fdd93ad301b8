package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestConsumingContinuesAfterSilentConnectionLoss covers every connection: those that fetch, commit,
// send heartbeats and refresh what is known of the cluster. None of them learns that it is lost.
func TestConsumingContinuesAfterSilentConnectionLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	c := r.start(func(cfg *kafkaconsumer.Config) { cfg.RequestTimeout, cfg.DialTimeout = 2*time.Second, 2*time.Second })
	for range 3 {
		r.produce(10, 0, 1, 2)
		r.awaitAll()
		r.kafka.FallSilent()
	}
	r.produce(10, 0, 1, 2)
	r.awaitAll()
	eventually(t, "nothing fails any more", func() bool { return c.Health().Err() == nil })
}

func TestStopEndsAfterSilentConnectionLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.start(func(cfg *kafkaconsumer.Config) { cfg.RequestTimeout, cfg.DialTimeout = 2*time.Second, 2*time.Second })
	r.produce(10, 0)
	r.awaitAll()
	r.kafka.FallSilent()
	began := time.Now()
	_ = c.Stop(t.Context())
	require.Less(t, time.Since(began), patience)
	require.NoError(t, r.start().Health().AcceptErr)
	r.produce(10, 0)
	r.awaitAll()
}
