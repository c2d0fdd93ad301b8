package kafkaconsumer

import (
	"context"
	"crypto/tls"
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
)

// network owns every connection of a consumer. kafka-go waits for some answers without a deadline
// and cannot be cancelled. Closing its connections ends such a wait in any case.
type network struct {
	cfg       Config
	dialer    *kafka.Dialer    // for the group
	transport *kafka.Transport // for everything else but fetching
	client    *kafka.Client    // requests on the transport
	inflater  *kafkawire.Inflater
	// refreshing is the condition that answers about the cluster are refused after something is
	// already known of the cluster.
	refreshing *condition.Condition
	known      atomic.Bool
	guard      *kafkawire.Guard

	cutting  context.Context // ends with cut
	endDials context.CancelFunc

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// metadataTTL bounds how long a moved leader or a new topic goes unnoticed.
const metadataTTL = time.Second

// newNetwork makes no connection yet. cfg must be valid.
func newNetwork(cfg Config, log *zap.Logger, clk clock.Clock) (*network, error) {
	mechanism, err := cfg.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	cfg.SASL = cfg.SASL.withoutSecrets()
	n := &network{
		cfg: cfg, inflater: kafkawire.NewInflater(cfg.MaxBatchBytes), conns: map[*conn]struct{}{},
		refreshing: condition.New(log, clk, zap.WarnLevel, "cluster refresh", "what is known of the brokers gets old"),
	}
	n.cutting, n.endDials = context.WithCancel(context.Background())
	n.guard = kafkawire.NewGuard(cfg.RequestTimeout, n.cutting.Done(), n.passed, n.refused)
	topics := cfg.Topics
	if cfg.DeadLetterTopic != "" {
		topics = append(slices.Clone(topics), cfg.DeadLetterTopic)
	}
	// Neither gets the TLS config: dial encrypts the connection.
	n.dialer = &kafka.Dialer{
		ClientID: cfg.ClientID, Timeout: cfg.DialTimeout, DialFunc: n.dialChecked, SASLMechanism: mechanism,
	}
	n.transport = &kafka.Transport{
		Dial: n.dialChecked, DialTimeout: cfg.DialTimeout, ClientID: cfg.ClientID, SASL: mechanism,
		MetadataTTL: metadataTTL, MetadataTopics: topics,
	}
	n.client = &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: cfg.RequestTimeout, Transport: n.transport}
	return n, nil
}

// dial opens every connection, encrypted if TLS is configured. kafka-go's own TLS would have to be
// configured in several places, and one of them leaks a connection for each failed handshake.
func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	defer context.AfterFunc(n.cutting, cancel)() // kafka-go dials on contexts of its own
	c, err := n.open(ctx, network, address)
	if err != nil || n.cfg.TLS == nil {
		return c, err
	}
	encrypted, err := handshake(ctx, c, n.cfg.TLS, address)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return encrypted, nil
}

// open connects without TLS.
func (n *network) open(ctx context.Context, network, address string) (net.Conn, error) {
	dialed, err := (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	if n.cutting.Err() != nil && err != nil {
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: dialed, network: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = dialed.Close()
		return nil, net.ErrClosed
	}
	n.conns[c] = struct{}{}
	return c, nil
}

func handshake(ctx context.Context, c net.Conn, cfg *tls.Config, address string) (net.Conn, error) {
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, &handshakeError{address, err}
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	encrypted := tls.Client(c, cfg)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, &handshakeError{address, err}
	}
	return encrypted, nil
}

// dialChecked connects for kafka-go. Since dial does TLS, the checks see plain bytes.
func (n *network) dialChecked(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := n.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return kafkawire.NewCheckedConn(c, n.guard, address), nil
}

// cut closes all connections and refuses new ones from then on.
func (n *network) cut() {
	n.endDials()
	n.transport.CloseIdleConnections()
	n.mu.Lock()
	n.closed = true
	conns := n.conns
	n.conns = map[*conn]struct{}{}
	n.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

// conn always has a deadline: kafka-go removes deadlines, also before it authenticates.
type conn struct {
	net.Conn
	network *network
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error { return c.Conn.SetDeadline(c.limit(t)) }

func (c *conn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.limit(t)) }

func (c *conn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.limit(t)) }

// limit replaces "no deadline" by the dial and request timeouts together. An idle connection may
// live longer, because each request sets its own deadline.
func (c *conn) limit(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now().Add(c.network.cfg.DialTimeout + c.network.cfg.RequestTimeout)
	}
	return t
}

// refused begins the refreshing condition for a refused answer that was to refresh what is known of
// the cluster. kafka-go does not report such a failure once it knows anything, and keeps using the
// old data. For all other answers kafka-go returns the error.
func (n *network) refused(err *kafkawire.AnswerError) {
	if !n.known.Load() {
		return
	}
	switch err.Key {
	case protocol.ApiVersions, protocol.SaslHandshake, protocol.SaslAuthenticate: // these precede metadata requests
		if !slices.Contains(n.cfg.Brokers, err.Address) {
			return
		}
	case protocol.Metadata:
	default:
		return
	}
	n.refreshing.Begin(nil, err)
}

func (n *network) passed(key protocol.ApiKey) {
	if key == protocol.Metadata {
		n.known.Store(true)
		n.refreshing.End(nil)
	}
}
