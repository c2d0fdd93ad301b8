package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestTLSIsUsedOnEveryConnection(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	certificate := authority.pair(t, "server", x509.ExtKeyUsageServerAuth)
	r := newRig(t, 2, kafkatest.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}, authority.trust()))
	r.produce(10, 0, 1)
	first := r.start(func(c *kafkaconsumer.Config) { c.TLS = authority.trust() })
	r.awaitAll()
	second := r.start(func(c *kafkaconsumer.Config) { c.TLS = authority.trust() })
	eventually(t, "both have a partition", func() bool {
		return len(first.Health().Partitions) == 1 && len(second.Health().Partitions) == 1
	})
	r.kafka.LoseAnswers(kmsg.OffsetCommit, 1) // the next is made by another connection
	r.produce(10, 0, 1)
	r.awaitAll()
	strangers := r.start(func(c *kafkaconsumer.Config) { c.TLS = &tls.Config{} })
	says(t, strangers, "certificate signed by unknown authority")
	require.Error(t, strangers.Health().GroupErr)
}
