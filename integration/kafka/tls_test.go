package kafka

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestTLSIsUsedOnEveryConnection(t *testing.T) {
	t.Parallel()
	authority, err := servers.NewAuthority()
	require.NoError(t, err)
	certificate, err := authority.Server()
	require.NoError(t, err)
	r := newRig(t, 2, kafkatest.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}, authority.Trust()))
	r.produce(10, 0, 1)
	first := r.start(func(c *kafkaconsumer.Config) { c.TLS = authority.Trust() })
	r.awaitAll()
	second := r.start(func(c *kafkaconsumer.Config) { c.TLS = authority.Trust() })
	eventually(t, "both have a partition", func() bool {
		return len(first.Health().Partitions) == 1 && len(second.Health().Partitions) == 1
	})
	r.kafka.LoseAnswers(kafkatest.OffsetCommitAPI, 1) // the next commit uses another connection
	r.produce(10, 0, 1)
	r.awaitAll()
	strangers := r.start(func(c *kafkaconsumer.Config) { c.TLS = &tls.Config{} })
	says(t, strangers, "certificate signed by unknown authority")
	require.Error(t, strangers.Health().GroupErr)
}
