package kafkaconsumer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/sasl"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// network owns every connection of a consumer. kafka-go waits for some answers without a deadline
// and cannot be cancelled. Closing its connections ends such a wait in any case.
type network struct {
	cfg       Config
	dialer    *kafka.Dialer    // for the group
	transport *kafka.Transport // for everything else but fetching and committing
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
	n.dialer = &kafka.Dialer{ClientID: cfg.ClientID, Timeout: cfg.DialTimeout, DialFunc: n.dialChecked,
		SASLMechanism: mechanism}
	n.transport = &kafka.Transport{Dial: n.dialChecked, DialTimeout: cfg.DialTimeout, ClientID: cfg.ClientID,
		SASL: mechanism, MetadataTTL: metadataTTL, MetadataTopics: topics}
	n.client = &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: cfg.RequestTimeout, Transport: n.transport}
	return n, nil
}

// dial opens every connection, encrypted if TLS is configured. kafka-go's own TLS would have to be
// configured in several places, and one of them leaks a connection for each failed handshake.
func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	defer context.AfterFunc(n.cutting, cancel)() // kafka-go dials on its own contexts
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
	dialed, err := n.connect(ctx, network, address)
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

// connect calls Config.Dial if there is one. A panic in it must not end the process.
func (n *network) connect(ctx context.Context, network, address string) (dialed net.Conn, err error) {
	if n.cfg.Dial == nil {
		return (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	}
	err = routine.Protect("Dial", func() (err error) {
		dialed, err = n.cfg.Dial(ctx, network, address)
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

func (c *conn) SetDeadline(t time.Time) error      { return c.Conn.SetDeadline(c.limit(t)) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(c.limit(t)) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.limit(t)) }

// limit replaces "no deadline" by the dial and request timeouts together. An idle connection may
// live longer, because each request sets its own deadline.
func (c *conn) limit(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now().Add(c.network.cfg.DialTimeout + c.network.cfg.RequestTimeout)
	}
	return t
}

// refused begins the refreshing condition for a refused answer that was to refresh the metadata of the cluster.
// kafka-go does not report such a failure once it knows anything, and keeps using the old data. For all other answers
// kafka-go returns the error.
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

// dialLeader connects to the leader of a partition as the cached metadata names it.
func (n *network) dialLeader(ctx context.Context, topic string, partition int) (*kafkawire.Conn, error) {
	address, err := n.leader(ctx, topic, partition)
	if err != nil {
		return nil, fmt.Errorf("leader of %s/%d: %w", topic, partition, err)
	}
	conn, err := n.dialBroker(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s, the leader of %s/%d: %w", address, topic, partition, err)
	}
	return conn, nil
}

// dialBroker connects to a broker for our own requests.
func (n *network) dialBroker(ctx context.Context, address string) (*kafkawire.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout+n.cfg.RequestTimeout)
	defer cancel()
	var conn net.Conn
	ended := func() bool { return true }
	defer func() { ended() }()
	dialer := &kafka.Dialer{
		ClientID: n.cfg.ClientID, Timeout: n.cfg.DialTimeout, SASLMechanism: n.dialer.SASLMechanism,
		DialFunc: func(_ context.Context, network, address string) (_ net.Conn, err error) {
			if conn, err = n.dial(ctx, network, address); err != nil {
				return nil, err
			}
			// kafka-go authenticates without a context, so close the connection when ctx ends.
			ended = context.AfterFunc(ctx, func() { kafkawire.HangUp(conn) })
			return kafkawire.NewCheckedConn(conn, n.guard, address), nil
		},
	}
	if _, err := dialer.DialContext(ctx, "tcp", address); err != nil {
		if conn != nil {
			kafkawire.HangUp(conn)
		}
		return nil, err
	}
	return kafkawire.NewConn(ctx, conn, n.cfg.ClientID, n.cfg.RequestTimeout, n.cfg.MaxBatchBytes)
}

// leader returns the leader's address. kafka-go caches it for metadataTTL at most.
func (n *network) leader(ctx context.Context, topic string, partition int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	response, err := n.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return "", err
	}
	for _, found := range response.Topics {
		switch {
		case found.Name != topic:
			continue
		case found.Error != nil:
			return "", found.Error
		}
		for _, p := range found.Partitions {
			switch {
			case p.ID != partition:
			case p.Leader.Host != "":
				return net.JoinHostPort(p.Leader.Host, strconv.Itoa(p.Leader.Port)), nil
			case p.Error != nil:
				return "", p.Error
			default:
				return "", kafka.LeaderNotAvailable
			}
		}
	}
	return "", kafka.UnknownTopicOrPartition
}

// kafkaLog writes kafka-go's lines to zap at debug level. Important conditions are also returned as errors, and logged
// once per change.
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String(telemetry.FieldText, fmt.Sprintf(format, args...)))
	}
}

// maxIterations bounds the computation that a broker may demand of a client before the login, to about a second. Kafka
// stores at most 16,384 iterations.
const maxIterations = 1 << 20

// boundedSCRAM refuses a broker's challenge that would take hours to answer. Nothing can interrupt
// that computation once it has begun.
type boundedSCRAM struct{ sasl.Mechanism }

func (m boundedSCRAM) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Mechanism.Start(ctx)
	return boundedSCRAMSession{session}, first, err
}

type boundedSCRAMSession struct{ sasl.StateMachine }

func (s boundedSCRAMSession) Next(ctx context.Context, challenge []byte) (bool, []byte, error) {
	for field := range bytes.SplitSeq(challenge, []byte(",")) {
		count, found := bytes.CutPrefix(field, []byte("i="))
		if !found {
			continue
		}
		if n, err := strconv.Atoi(string(count)); err != nil || n > maxIterations {
			const what = "authenticate: the broker asks for %.20q iterations of SCRAM, of %d at most"
			return false, nil, fmt.Errorf(what, count, maxIterations)
		}
	}
	return s.StateMachine.Next(ctx, challenge)
}

// String returns the mechanism and the user name, never the password.
func (s SASL) String() string {
	switch {
	case s.Mechanism == "" && s.Custom == nil:
		return "none"
	case s.Mechanism == "":
		return s.Custom.Name()
	case s.Username == "":
		return s.Mechanism
	default:
		return s.Mechanism + " as " + s.Username
	}
}

// Format writes String for every verb. So printing a SASL, or a struct with one in an exported field such as Config,
// does not show the password. For an unexported field package fmt does not call Format and prints everything.
func (s SASL) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // the caller sees the writer's errors itself
}

// MarshalText returns String, for JSON, YAML and structured logs.
func (s SASL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// withoutSecrets returns the part that may stay in memory that could be printed: fmt does not call the methods of
// unexported fields.
func (s SASL) withoutSecrets() SASL {
	if s.Custom != nil {
		return SASL{Mechanism: s.Custom.Name(), AllowWithoutTLS: s.AllowWithoutTLS}
	}
	return SASL{Mechanism: s.Mechanism, Username: s.Username, AllowWithoutTLS: s.AllowWithoutTLS}
}
