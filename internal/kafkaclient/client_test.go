package kafkaclient

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// client returns a client that is cut when the test ends. Timeouts that are not set are long enough for a slow machine.
func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.ClientID = "test"
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, testenv.Patience)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, testenv.Patience)
	c, err := New(cfg, zap.NewNop(), clock.System{})
	require.NoError(t, err)
	t.Cleanup(c.Cut)
	return c
}

// TestSilentBrokerNeverHoldsAnAuthentication proves that a silent broker cannot block
// authentication: kafka-go authenticates without a deadline.
func TestSilentBrokerNeverHoldsAnAuthentication(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }() // accepts, as the kernel does, and never answers
	cfg := Config{
		Brokers: []string{listener.Addr().String()}, SASL: SASL{Mechanism: "PLAIN", Username: "u", Password: "p"},
		DialTimeout: 200 * time.Millisecond, RequestTimeout: 200 * time.Millisecond,
	}
	c := client(t, cfg)
	returned := make(chan error, 1)
	go func() {
		_, err := c.Dialer.DialContext(t.Context(), "tcp", cfg.Brokers[0])
		returned <- err
	}()
	select {
	case err := <-returned:
		require.Error(t, err)
	case <-time.After(testenv.Patience):
		t.Fatal("still waiting")
	}
}

// TestFailedHandshakesLeaveNoConnectionOpen covers an untrusted certificate, which is met again and
// again until an operator fixes it.
func TestFailedHandshakesLeaveNoConnectionOpen(t *testing.T) {
	server := httptest.NewUnstartedServer(nil) // with a certificate that is not trusted
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	cfg := Config{Brokers: []string{server.Listener.Addr().String()}, TLS: &tls.Config{}}
	c := client(t, cfg)
	for range 3 {
		_, err := c.Dialer.DialContext(t.Context(), "tcp", cfg.Brokers[0])
		require.ErrorContains(t, err, cfg.Brokers[0])
		require.ErrorContains(t, err, "certificate signed by unknown authority")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.conns)
}

// TestSilentBrokerNeverHoldsAHandshake covers a broker that may not know TLS.
func TestSilentBrokerNeverHoldsAHandshake(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	cfg := Config{
		Brokers: []string{listener.Addr().String()}, TLS: &tls.Config{}, DialTimeout: 200 * time.Millisecond,
	}
	c := client(t, cfg)
	_, err = c.dial(t.Context(), "tcp", cfg.Brokers[0])
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "TLS handshake with "+cfg.Brokers[0])
}

func TestCutClientRefusesConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	c := client(t, Config{Brokers: []string{listener.Addr().String()}})
	open, err := c.dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	c.Cut()
	_, err = open.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.dial(t.Context(), "tcp", listener.Addr().String())
	require.ErrorIs(t, err, net.ErrClosed)
}

// TestDialOpensConnections proves that every way to connect uses Config.Dial, that TLS works on top of it, and that its
// connections are cut.
func TestDialOpensConnections(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	var asked []string
	cfg := Config{Brokers: []string{"a.internal:1"},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			asked = append(asked, network+" "+address)
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		}}
	c := client(t, cfg)
	plain, err := c.Dialer.DialContext(t.Context(), "tcp", "a.internal:1")
	require.NoError(t, err)
	_, err = c.transport.Dial(t.Context(), "tcp", "b.internal:2")
	require.NoError(t, err)
	c.cfg.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	_, err = c.dial(t.Context(), "tcp", "example.com:3")
	require.NoError(t, err, "the name that is dialed is in the certificate")
	require.Equal(t, []string{"tcp a.internal:1", "tcp b.internal:2", "tcp example.com:3"}, asked)
	c.Cut()
	_, err = plain.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestDefectiveDialIsAnError(t *testing.T) {
	for want, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"dial b:1: option Dial returned neither": func(context.Context, string, string) (net.Conn, error) { return nil, nil },
		"dial b:1: Dial panicked: no proxy":      func(context.Context, string, string) (net.Conn, error) { panic("no proxy") },
		"dial b:1: EOF":                          func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF },
	} {
		_, err := client(t, Config{Brokers: []string{"b:1"}, Dial: dial}).dial(t.Context(), "tcp", "b:1")
		require.ErrorContains(t, err, want)
	}
}

// answering is a connection that reads from Reader, whatever is written.
type answering struct {
	net.Conn
	io.Reader
}

func (a answering) Read(p []byte) (int, error) { return a.Reader.Read(p) }

func (answering) Write(p []byte) (int, error) { return len(p), nil }

// TestRefusedMetadataIsAConditionUntilMetadataPasses proves that Health reports a failed refresh,
// which kafka-go does not once it knows something.
func TestRefusedMetadataIsAConditionUntilMetadataPasses(t *testing.T) {
	c := client(t, Config{Brokers: []string{"b:1"}})
	refresh := func(wire []byte) (err, said error) {
		conn := kafkawire.NewCheckedConn(answering{Reader: bytes.NewReader(wire)}, c.guard, "b:1")
		require.NoError(t, protocol.WriteRequest(conn, 6, 1, "client", &metadata.Request{}))
		_, err = io.ReadAll(conn)
		_, said = c.Refreshing.Current()
		return err, said
	}
	var answer bytes.Buffer
	require.NoError(t, protocol.WriteResponse(&answer, 6, 1, &metadata.Response{}))
	sane := answer.Bytes()
	err, said := refresh([]byte("HTTP"))
	require.Error(t, err)
	require.NoError(t, said, "whoever asks is told")
	err, said = refresh(sane)
	require.NoError(t, err)
	require.NoError(t, said)
	err, said = refresh([]byte("HTTP"))
	require.Error(t, err)
	require.Equal(t, err, said)
	require.ErrorContains(t, said, "the answer of b:1 to")
	err, said = refresh(sane)
	require.NoError(t, err)
	require.NoError(t, said)
}
