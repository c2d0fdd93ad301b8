package kafkawire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// Conn is a connection to one broker: to a partition's leader for consecutive fetches, or to a group's coordinator for
// commits. It belongs to one goroutine. kafka-go connects and authenticates. We write requests and read answers
// ourselves: kafka-go takes as much memory as an answer claims to need. It also decodes answers on its own goroutines,
// where a panic ends the process.
type Conn struct {
	net.Conn
	clientID      string
	timeout       time.Duration // of an answer
	maxBatchBytes int
	version       int16 // of fetch requests
	identifies    bool  // the broker knows topics' IDs
	correlationID int32
	mutedUntil    time.Time // when the broker reads from the connection again
	// answered is when the last answer began to arrive. idle is how long after the previous answer the last request was
	// sent.
	answered time.Time
	idle     time.Duration
	memory   []byte // where the next answer goes
}

// Versions of fetch requests that we support: from the first with record batches to the last of kafka-go's.
const (
	firstFetchVersion = 4
	lastFetchVersion  = 11
)

// NewConn uses a connection on which kafka-go has authenticated, and asks the broker which versions it supports.
// An answer may take as long as timeout. After an error the connection is closed.
func NewConn(
	ctx context.Context, conn net.Conn, clientID string, timeout time.Duration, maxBatchBytes int,
) (*Conn, error) {
	c := &Conn{Conn: conn, clientID: clientID, timeout: timeout, maxBatchBytes: maxBatchBytes}
	if err := c.negotiate(ctx); err != nil {
		c.HangUp()
		return nil, err
	}
	return c, nil
}

// HangUp closes the connection at once, which also ends a read that waits for it.
func (c *Conn) HangUp() { HangUp(c.Conn) }

// HangUp closes the connection below TLS, which waits for nothing.
func HangUp(conn net.Conn) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close()
}

// Idle returns how long no request was in flight before the last one was sent.
func (c *Conn) Idle() time.Duration { return c.idle }

// Unused returns how long ago the last answer came.
func (c *Conn) Unused() time.Duration { return time.Since(c.answered) }

// negotiate finds the version of fetch requests, and whether topics have IDs.
func (c *Conn) negotiate(ctx context.Context) error {
	const limit = 64 << 10
	answer, err := c.ask(ctx, &apiversions.Request{}, 0, 0, limit, nil)
	if err != nil {
		return fmt.Errorf("ask for API versions: %w", err)
	}
	code := answer.int16()
	for range answer.count(6) {
		if key, lowest, highest := answer.int16(), answer.int16(), answer.int16(); protocol.ApiKey(key) == protocol.Metadata {
			c.identifies = lowest <= topicIDVersion && topicIDVersion <= highest
		} else if protocol.ApiKey(key) == protocol.Fetch {
			c.version = min(highest, lastFetchVersion)
			if lowest > lastFetchVersion || c.version < firstFetchVersion {
				return fmt.Errorf("the broker speaks fetch versions %d to %d, needed is one of %d to %d: %w",
					lowest, highest, firstFetchVersion, lastFetchVersion, kafka.UnsupportedVersion)
			}
		}
	}
	switch {
	case code != 0:
		return fmt.Errorf("ask for API versions: %w", kafka.Error(code))
	case answer.short || c.version == 0:
		return fmt.Errorf("ask for API versions: the answer is cut off or without fetch: %w", kafka.Unknown)
	}
	return nil
}

// ask sends a request and returns its answer.
func (c *Conn) ask(
	ctx context.Context, request protocol.Message, version int16, wait time.Duration, maxBytes int64, h *Hold,
) (*cursor, error) {
	write := func() error { return protocol.WriteRequest(c, version, c.correlationID, c.clientID, request) }
	return c.exchange(ctx, write, wait, maxBytes, h)
}

// exchange writes a request and returns its answer, which has at most maxBytes bytes and which the broker may delay for
// wait. With a hold, the answer's memory is taken from the budget. When ctx ends, the connection is closed.
//
// Brokers answer a client that has used up its quota at once, and leave its next requests unread for the time that the
// answer names. exchange sends nothing during that time.
func (c *Conn) exchange(
	ctx context.Context, write func() error, wait time.Duration, maxBytes int64, h *Hold,
) (*cursor, error) {
	if !routine.Sleep(ctx, time.Until(c.mutedUntil)) {
		return nil, ctx.Err()
	}
	defer context.AfterFunc(ctx, c.HangUp)()
	if err := c.SetDeadline(time.Now().Add(wait + c.timeout)); err != nil {
		return nil, err
	}
	c.correlationID++
	if !c.answered.IsZero() {
		c.idle = time.Since(c.answered)
	}
	if err := write(); err != nil {
		return nil, err
	}
	answer, err := c.read(ctx, maxBytes, h)
	if err != nil {
		return nil, err
	}
	if id := answer.int32(); id != c.correlationID {
		return nil, fmt.Errorf("the answer is to request %d, not to %d: %w", id, c.correlationID, kafka.Unknown)
	}
	return answer, nil
}

// read reads an answer. It takes memory for the bytes that have arrived and at most as much again, even if the answer
// claims to be larger.
func (c *Conn) read(ctx context.Context, maxBytes int64, h *Hold) (*cursor, error) {
	const first = 256 << 10
	prefix := make([]byte, 4)
	if _, err := io.ReadFull(c, prefix); err != nil {
		return nil, err
	}
	c.answered = time.Now()
	size := int64((&cursor{rest: prefix}).int32())
	if size < 4 || size > maxBytes {
		return nil, &sizeError{size, maxBytes}
	}
	if h != nil {
		if kept, ok := answers.Get().(*[]byte); ok { // GiveBack returns it
			c.memory = *kept
		}
	}
	content := c.memory[:0]
	for len(content) < int(size) {
		step := min(int(size)-len(content), max(len(content), first))
		if h != nil && !h.Take(ctx, step) {
			return nil, ctx.Err()
		}
		// Waiting for memory may have taken any time.
		if err := c.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
			return nil, err
		}
		content = slices.Grow(content, step)
		n, err := io.ReadFull(c, content[len(content):len(content)+step])
		if content = content[:len(content)+n]; err != nil {
			return nil, err
		}
	}
	c.memory = content
	return &cursor{rest: content}, nil
}

// answers pools the memory of answers of the usual size. Only partitions that are just receiving an answer need some.
var answers sync.Pool // of *[]byte

const usualAnswer = 4 << 20

// GiveBack ends the use of the last answer's memory.
func (c *Conn) GiveBack() {
	if kept := c.memory; cap(kept) > 0 && cap(kept) <= usualAnswer {
		answers.Put(&kept)
	}
	c.memory = nil
}

// sizeError means that an answer claims an impossible size.
type sizeError struct{ size, limit int64 }

func (e *sizeError) Error() string {
	return fmt.Sprintf("the answer claims to have %d bytes, of %d at most", e.size, e.limit)
}

// Response is the answer to a fetch of one partition.
type Response struct {
	// Nothing means that the answer has no data of the partition: see Code.
	Nothing                             bool
	Code                                int16
	throttle                            time.Duration // how long the broker reads no more requests
	HighWatermark, LastStable, LogStart int64
	// Aborted is the list of aborted transactions as it came: see NewAborted.
	Aborted []byte
	// Records holds batches, the last of which may be cut off.
	Records []byte
}

var errOtherAnswer = errors.New("the answer is not about it")

// Fetch sends a fetch of one partition.
func (c *Conn) Fetch(ctx context.Context, request *fetch.Request, h *Hold) (*Response, error) {
	asked := request.Topics[0].Partitions[0]
	// A first batch may be larger than asked for, and the list of aborted transactions has no limit.
	const others = 16 << 20
	limit := min(int64(asked.PartitionMaxBytes)+int64(c.maxBatchBytes)+others, 1<<31-1)
	wait := time.Duration(request.MaxWaitTime) * time.Millisecond
	answer, err := c.ask(ctx, request, c.version, wait, limit, h)
	if _, ok := errors.AsType[*sizeError](err); ok {
		return nil, fmt.Errorf("%w: %w; is a batch larger than MaxBatchBytes (%d)?", ErrUnreadable, err, c.maxBatchBytes)
	}
	if err != nil {
		return nil, err
	}
	r, err := readResponse(answer, c.version, request.Topics[0].Topic, asked.Partition)
	if err == nil {
		c.mutedUntil = time.Now().Add(r.throttle)
	}
	return r, err
}

// readResponse reads a broker's answer to a fetch of one partition.
func readResponse(c *cursor, version int16, topic string, partition int32) (*Response, error) {
	r := &Response{LogStart: -1}
	throttled := c.int32()
	if version >= 8 { // older brokers delay the answer instead
		r.throttle = time.Duration(throttled) * time.Millisecond
	}
	if version >= 7 {
		r.Code = c.int16()
		c.int32() // no session is in use
	}
	topics := c.count(2)
	if topics == 0 && !c.short && (r.Code != 0 || throttled > 0) { // otherwise it is no answer to a fetch
		r.Nothing = true
		return r, nil
	}
	name, partitions := string(c.take(int64(c.int16()))), c.count(4)
	id, code := c.int32(), c.int16()
	if c.short || topics != 1 || partitions != 1 || name != topic || id != partition {
		return nil, fmt.Errorf("%w: %w", errOtherAnswer, kafka.Unknown)
	}
	if r.Code == 0 {
		r.Code = code
	}
	r.HighWatermark, r.LastStable = c.int64(), c.int64()
	if version >= 5 {
		r.LogStart = c.int64()
	}
	n := c.count(abortedSize)
	if n > maxAborted {
		return nil, fmt.Errorf("%w: the answer lists %d aborted transactions, of %d at most", ErrUnreadable, n, maxAborted)
	}
	r.Aborted = c.take(abortedSize * int64(n))
	if version >= 11 {
		c.int32() // we only read from the leader
	}
	if r.Records = c.bytes(); c.short {
		return nil, fmt.Errorf("%w: the answer to the fetch ends within itself", ErrUnreadable)
	}
	return r, nil
}

// TopicID identifies a topic to brokers. A topic that is created again has the same name and another ID. Zero is none.
type TopicID [16]byte

// topicIDVersion is the first version of metadata requests with topic IDs. kafka-go only has earlier versions.
const topicIDVersion = 10

// TopicID asks for the IDs of the topic and of its cluster. The topic's is zero from a broker too old to know any. The
// answer to the last fetch stays valid.
func (c *Conn) TopicID(ctx context.Context, topic string) (id TopicID, cluster string, err error) {
	if !c.identifies {
		return id, "", nil
	}
	kept := c.memory
	c.memory = nil
	defer func() { c.memory = kept }()
	const limit = 4 << 20 // it lists all brokers and all partitions of the topic: 90,000 fit
	answer, err := c.exchange(ctx, func() error { return c.writeTopicIDRequest(topic) }, 0, limit, nil)
	if err != nil {
		return id, "", err
	}
	return readTopicID(answer, topic)
}

func (c *Conn) writeTopicIDRequest(topic string) error {
	const none = 0 // tagged fields
	order := binary.BigEndian
	b := order.AppendUint16(make([]byte, 4, 64+len(c.clientID)+len(topic)), uint16(protocol.Metadata))
	b = order.AppendUint16(b, topicIDVersion)
	b = order.AppendUint32(b, uint32(c.correlationID))
	b = order.AppendUint16(b, uint16(len(c.clientID)))
	b = append(append(b, c.clientID...), none)
	b = append(b, 1+1) // one topic, by its name and not by an ID
	b = append(b, make([]byte, len(TopicID{}))...)
	b = binary.AppendUvarint(b, uint64(len(topic))+1)
	b = append(append(b, topic...), none)
	b = append(b, 0, 0, 0, none) // do not create it; no operations
	order.PutUint32(b, uint32(len(b)-4))
	_, err := c.Write(b)
	return err
}

func readTopicID(c *cursor, topic string) (id TopicID, cluster string, err error) {
	c.tags()
	c.int32() // the throttle time, which the broker enforces
	for n := c.uvarint(); n > 1 && !c.short; n-- {
		c.int32() // node
		c.compact()
		c.int32() // port
		c.compact()
		c.tags()
	}
	named := c.compact()
	c.int32() // controller
	topics, code, name := c.uvarint(), c.int16(), string(c.compact())
	copy(id[:], c.take(int64(len(id))))
	if c.short || topics != 1+1 || name != topic {
		return TopicID{}, "", fmt.Errorf("%w: %w", errOtherAnswer, kafka.Unknown)
	}
	if code != 0 {
		return TopicID{}, "", kafka.Error(code)
	}
	return id, string(named[:min(len(named), 100)]), nil // Kafka's have 22 bytes
}
