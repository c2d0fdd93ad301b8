package kafkaconsumer

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSilentBrokerNeverHoldsAnAuthentication: kafka-go authenticates without a
// deadline.
func TestSilentBrokerNeverHoldsAnAuthentication(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }() // accepts, as the kernel does, and never answers
	cfg := Config{
		Brokers: []string{listener.Addr().String()}, Topics: []string{"t"}, GroupID: "g", SASL: SASL{Mechanism: "PLAIN", Username: "u", Password: "p"},
		DialTimeout: 200 * time.Millisecond, RequestTimeout: 200 * time.Millisecond,
	}.withDefaults()
	n, err := newNetwork(cfg)
	require.NoError(t, err)
	defer n.cut()
	returned := make(chan error, 1)
	go func() {
		_, err := n.dialer.DialContext(t.Context(), "tcp", cfg.Brokers[0])
		returned <- err
	}()
	select {
	case err := <-returned:
		require.Error(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting")
	}
}

func TestCutNetworkRefusesConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	n, err := newNetwork(Config{Brokers: []string{listener.Addr().String()}, Topics: []string{"t"}, GroupID: "g"}.withDefaults())
	require.NoError(t, err)
	open, err := n.dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	n.cut()
	_, err = open.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = n.dial(t.Context(), "tcp", listener.Addr().String())
	require.ErrorIs(t, err, net.ErrClosed)
}
