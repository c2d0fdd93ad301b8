package kafka

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// silentBroker accepts connections and never answers, like a frozen broker.
func silentBroker(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var ended sync.WaitGroup
	var conns []net.Conn
	ended.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		ended.Wait()
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
	})
	return listener.Addr().String()
}

// TestUnresponsiveBrokerIsSkipped proves contract 7.8: a frozen broker that is named first
// does not keep members from a group that other brokers coordinate.
func TestUnresponsiveBrokerIsSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(50, 0, 1)
	silent := silentBroker(t)
	r.start(func(c *kafkaconsumer.Config) {
		c.Brokers = append([]string{silent}, c.Brokers...)
		c.RequestTimeout, c.DialTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	r.awaitAll()
}
