// Package kafkaclient connects to Kafka for all that consumes and produces. It dials with TLS and SASL, checks what
// brokers answer to kafka-go, closes every connection when its owner ends, and produces records.
package kafkaclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// Client owns every connection of a consumer or a publisher. kafka-go waits for some answers without a deadline
// and cannot be cancelled. Closing its connections ends such a wait in any case. Its methods are safe for concurrent
// use.
type Client struct {
	// Kafka sends requests. Only group membership, fetches and commits use other connections.
	Kafka *kafka.Client
	// Dialer connects for kafka-go's group membership.
	Dialer *kafka.Dialer
	// Refreshing is the condition that answers about the cluster are refused after something is
	// already known of the cluster.
	Refreshing *condition.Condition

	cfg       Config
	transport *kafka.Transport // of Kafka
	known     atomic.Bool
	guard     *kafkawire.Guard

	cutting  context.Context // ends with Cut
	endDials context.CancelFunc

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// MetadataTTL bounds how long a moved leader or a new topic goes unnoticed.
const MetadataTTL = time.Second

// New makes no connection yet. cfg must be valid.
func New(cfg Config, log *zap.Logger, clk clock.Clock) (*Client, error) {
	mechanism, err := cfg.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	cfg.SASL = cfg.SASL.WithoutSecrets()
	c := &Client{
		cfg: cfg, conns: map[*conn]struct{}{},
		Refreshing: condition.New(log, clk, zap.WarnLevel, "cluster refresh", "what is known of the brokers gets old"),
	}
	c.cutting, c.endDials = context.WithCancel(context.Background())
	c.guard = kafkawire.NewGuard(cfg.RequestTimeout, c.cutting.Done(), c.passed, c.refused)
	// Neither gets the TLS config: dial encrypts the connection.
	c.Dialer = &kafka.Dialer{ClientID: cfg.ClientID, Timeout: cfg.DialTimeout, DialFunc: c.dialChecked,
		SASLMechanism: mechanism}
	c.transport = &kafka.Transport{Dial: c.dialChecked, DialTimeout: cfg.DialTimeout, ClientID: cfg.ClientID,
		SASL: mechanism, MetadataTTL: MetadataTTL, MetadataTopics: cfg.Topics}
	c.Kafka = &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: cfg.RequestTimeout, Transport: c.transport}
	return c, nil
}

// dial opens every connection, encrypted if TLS is configured. kafka-go's own TLS would have to be
// configured in several places, and one of them leaks a connection for each failed handshake.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	defer context.AfterFunc(c.cutting, cancel)() // kafka-go dials on its own contexts
	opened, err := c.open(ctx, network, address)
	if err != nil || c.cfg.TLS == nil {
		return opened, err
	}
	encrypted, err := handshake(ctx, opened, c.cfg.TLS, address)
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	return encrypted, nil
}

// open connects without TLS.
func (c *Client) open(ctx context.Context, network, address string) (net.Conn, error) {
	dialed, err := c.connect(ctx, network, address)
	if c.cutting.Err() != nil && err != nil {
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	opened := &conn{Conn: dialed, client: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = dialed.Close()
		return nil, net.ErrClosed
	}
	c.conns[opened] = struct{}{}
	return opened, nil
}

// connect calls Config.Dial if there is one. A panic in it must not end the process.
func (c *Client) connect(ctx context.Context, network, address string) (dialed net.Conn, err error) {
	if c.cfg.Dial == nil {
		return (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	}
	err = routine.Protect("Dial", func() (err error) {
		dialed, err = c.cfg.Dial(ctx, network, address)
		return err
	})
	if err == nil && dialed == nil {
		err = errors.New("option Dial returned neither a connection nor an error")
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return dialed, nil
}

func handshake(ctx context.Context, c net.Conn, cfg *tls.Config, address string) (net.Conn, error) {
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, &HandshakeError{address, err}
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	encrypted := tls.Client(c, cfg)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, &HandshakeError{address, err}
	}
	return encrypted, nil
}

// dialChecked connects for kafka-go. Since dial does TLS, the checks see plain bytes.
func (c *Client) dialChecked(ctx context.Context, network, address string) (net.Conn, error) {
	opened, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return kafkawire.NewCheckedConn(opened, c.guard, address), nil
}

// Connect connects to a broker and authenticates, for requests that the caller writes itself. It takes no longer than
// DialTimeout and RequestTimeout together.
func (c *Client) Connect(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout+c.cfg.RequestTimeout)
	defer cancel()
	var opened net.Conn
	ended := func() bool { return true }
	defer func() { ended() }()
	dialer := &kafka.Dialer{
		ClientID: c.cfg.ClientID, Timeout: c.cfg.DialTimeout, SASLMechanism: c.Dialer.SASLMechanism,
		DialFunc: func(_ context.Context, network, address string) (_ net.Conn, err error) {
			if opened, err = c.dial(ctx, network, address); err != nil {
				return nil, err
			}
			// kafka-go authenticates without a context, so close the connection when ctx ends.
			ended = context.AfterFunc(ctx, func() { kafkawire.HangUp(opened) })
			return kafkawire.NewCheckedConn(opened, c.guard, address), nil
		},
	}
	if _, err := dialer.DialContext(ctx, "tcp", address); err != nil {
		if opened != nil {
			kafkawire.HangUp(opened)
		}
		return nil, err
	}
	return opened, nil
}

// CloseIdle closes the connections of Kafka that no request uses. Do so after one was lost: the others may be as old.
func (c *Client) CloseIdle() { c.transport.CloseIdleConnections() }

// Cut closes all connections and refuses new ones from then on.
func (c *Client) Cut() {
	c.endDials()
	c.CloseIdle()
	c.mu.Lock()
	c.closed = true
	conns := c.conns
	c.conns = map[*conn]struct{}{}
	c.mu.Unlock()
	for opened := range conns {
		_ = opened.Conn.Close()
	}
}

// conn always has a deadline: kafka-go removes deadlines, also before it authenticates.
type conn struct {
	net.Conn
	client *Client
}

func (c *conn) Close() error {
	c.client.mu.Lock()
	delete(c.client.conns, c)
	c.client.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error      { return c.Conn.SetDeadline(c.limit(t)) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(c.limit(t)) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.limit(t)) }

// limit replaces "no deadline" by the dial and request timeouts together. An idle connection may
// live longer, because each request sets its own deadline.
func (c *conn) limit(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now().Add(c.client.cfg.DialTimeout + c.client.cfg.RequestTimeout)
	}
	return t
}

// refused begins the refreshing condition for a refused answer that was to refresh the metadata of the cluster.
// kafka-go does not report such a failure once it knows anything, and keeps using the old data. For all other answers
// kafka-go returns the error.
func (c *Client) refused(err *kafkawire.AnswerError) {
	if !c.known.Load() {
		return
	}
	switch err.Key {
	case protocol.ApiVersions, protocol.SaslHandshake, protocol.SaslAuthenticate: // these precede metadata requests
		if !slices.Contains(c.cfg.Brokers, err.Address) {
			return
		}
	case protocol.Metadata:
	default:
		return
	}
	c.Refreshing.Begin(nil, err)
}

func (c *Client) passed(key protocol.ApiKey) {
	if key == protocol.Metadata {
		c.known.Store(true)
		c.Refreshing.End(nil)
	}
}
