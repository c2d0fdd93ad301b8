package kafkaconsumer

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// network owns every connection of a consumer. kafka-go waits for some answers
// without a deadline and cannot be told to give up; cutting its connections
// ends it in any case.
type network struct {
	cfg       Config
	dialer    *kafka.Dialer    // for the group
	transport *kafka.Transport // for everything else but fetching
	client    *kafka.Client    // requests on the transport
	inflater  *inflater

	cutting  context.Context // ends with cut
	endDials context.CancelFunc

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// metadataTTL bounds how long a moved leader or a new topic goes unnoticed.
const metadataTTL = time.Second

// newNetwork makes no connection yet; cfg is valid.
func newNetwork(cfg Config) (*network, error) {
	mechanism, err := cfg.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	n := &network{cfg: cfg, inflater: &inflater{limit: cfg.MaxBatchBytes}, conns: map[*conn]struct{}{}}
	n.cutting, n.endDials = context.WithCancel(context.Background())
	n.dialer = &kafka.Dialer{ClientID: cfg.ClientID, Timeout: cfg.DialTimeout, DialFunc: n.dial, TLS: cfg.TLS, SASLMechanism: mechanism}
	n.transport = &kafka.Transport{
		Dial: n.dial, DialTimeout: cfg.DialTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: mechanism,
		MetadataTTL: metadataTTL, MetadataTopics: cfg.Topics,
	}
	n.client = &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: cfg.RequestTimeout, Transport: n.transport}
	return n, nil
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.cutting, cancel)() // kafka-go dials on contexts of its own
	dialed, err := (&net.Dialer{Timeout: n.cfg.DialTimeout, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
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

// cut closes all connections and refuses new ones, for good.
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

// conn never waits for ever: kafka-go removes deadlines, also before it
// authenticates.
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

func (c *conn) SetDeadline(t time.Time) error      { return c.Conn.SetDeadline(c.limit(t)) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(c.limit(t)) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.limit(t)) }

// limit replaces "no deadline". An idle connection may outlive the limit,
// because each request sets a deadline of its own.
func (c *conn) limit(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now().Add(c.network.cfg.DialTimeout + c.network.cfg.RequestTimeout)
	}
	return t
}
