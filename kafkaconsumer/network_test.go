package kafkaconsumer

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/testenv"
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
	n, err := newNetwork(cfg, zap.NewNop(), clock.System{})
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
	case <-time.After(testenv.Patience):
		t.Fatal("still waiting")
	}
}

// TestFailedHandshakesLeaveNoConnectionOpen: an untrusted certificate is met
// again and again, until an operator comes.
func TestFailedHandshakesLeaveNoConnectionOpen(t *testing.T) {
	server := httptest.NewUnstartedServer(nil) // by a certificate that nobody trusts
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	cfg := Config{Brokers: []string{server.Listener.Addr().String()}, Topics: []string{"t"}, GroupID: "g", TLS: &tls.Config{}}.withDefaults()
	n, err := newNetwork(cfg, zap.NewNop(), clock.System{})
	require.NoError(t, err)
	defer n.cut()
	for range 3 {
		_, err := n.dialer.DialContext(t.Context(), "tcp", cfg.Brokers[0])
		require.ErrorContains(t, err, cfg.Brokers[0])
		require.ErrorContains(t, err, "certificate signed by unknown authority")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	require.Empty(t, n.conns)
}

// TestSilentBrokerNeverHoldsAHandshake: it may be one that does not know TLS.
func TestSilentBrokerNeverHoldsAHandshake(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	cfg := Config{
		Brokers: []string{listener.Addr().String()}, Topics: []string{"t"}, GroupID: "g", TLS: &tls.Config{}, DialTimeout: 200 * time.Millisecond,
	}.withDefaults()
	n, err := newNetwork(cfg, zap.NewNop(), clock.System{})
	require.NoError(t, err)
	defer n.cut()
	_, err = n.dial(t.Context(), "tcp", cfg.Brokers[0])
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "TLS handshake with "+cfg.Brokers[0])
}

func TestCutNetworkRefusesConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	cfg := Config{Brokers: []string{listener.Addr().String()}, Topics: []string{"t"}, GroupID: "g"}.withDefaults()
	n, err := newNetwork(cfg, zap.NewNop(), clock.System{})
	require.NoError(t, err)
	open, err := n.dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	n.cut()
	_, err = open.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = n.dial(t.Context(), "tcp", listener.Addr().String())
	require.ErrorIs(t, err, net.ErrClosed)
}
