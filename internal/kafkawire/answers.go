package kafkawire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// Bounds of the answers that kafka-go reads.
const (
	// smallAnswer bounds answers that list API versions, mechanisms or nothing.
	smallAnswer = 64 << 10
	// largeAnswer bounds answers that list brokers, partitions or members. The metadata of 100,000 partitions has 6 MB.
	largeAnswer = 16 << 20
	// largeAtOnce is how many answers above smallAnswer all of a consumer's connections may read and pass on at a time.
	largeAtOnce = 2
	// maxListed bounds the elements of all lists of an answer together. A number counts as one and anything else as
	// otherListed, because a few bytes on the wire become a hundred in memory. The metadata of 100,000 partitions with
	// three replicas each counts as 1.5 million.
	maxListed   = 2 << 20
	otherListed = 8
	// maxAssigned bounds the partitions of one assignment. Each one has its own connection, and kafka-go compares all
	// of them pairwise.
	maxAssigned = 10_000
)

// checkedConn is a connection for kafka-go that checks the answers. kafka-go takes as much memory as an answer claims
// to need, and decodes on its own goroutines, where a panic ends the process. checkedConn reads each answer whole,
// within bounds, and passes it on if every length and count in it is true. It knows each answer's request from the
// requests that pass. After it has refused an answer, it only returns that error.
type checkedConn struct {
	net.Conn
	guard   *Guard
	address string

	// header, seen and length describe the request that is being written.
	header [requestHeader]byte
	seen   int64 // in bytes, including its length field
	length int64 // including its length field
	tokens bool  // SASL tokens may come without a request around them

	mu    sync.Mutex
	asked []request

	answer   bytes.Buffer // the part that is not passed on yet
	failed   error
	broker   bool        // an answer was valid
	reserved atomic.Bool // this connection is one of largeAtOnce
}

// NewCheckedConn returns a connection that checks the answers of the broker at this address, and prevents requests from
// creating topics.
func NewCheckedConn(c net.Conn, guard *Guard, address string) net.Conn {
	return &checkedConn{Conn: c, guard: guard, address: address}
}

// Guard is shared by all of a consumer's connections that kafka-go uses.
type Guard struct {
	// patience is how long an answer may wait until other large ones are read. cutting is closed when waiting must end.
	patience time.Duration
	cutting  <-chan struct{}
	large    chan struct{} // has one element for each large answer that is being read
	// passed is called for each answer that is passed on, refused for each that is not.
	passed  func(protocol.ApiKey)
	refused func(*AnswerError)
}

// NewGuard returns a Guard. An answer waits at most patience until other large ones are read, and no longer once
// cutting is closed. passed and refused may be called concurrently.
func NewGuard(
	patience time.Duration, cutting <-chan struct{}, passed func(protocol.ApiKey), refused func(*AnswerError),
) *Guard {
	return &Guard{patience: patience, cutting: cutting, large: make(chan struct{}, largeAtOnce), passed: passed,
		refused: refused}
}

// AnswerError is why kafka-go does not get an answer.
type AnswerError struct {
	Address string
	Key     protocol.ApiKey
	reason  string
}

// Error names the address, the kind of the answer, and what is wrong with it.
func (e *AnswerError) Error() string {
	return fmt.Sprintf("the answer of %s to %s is refused: %s", e.Address, e.Key, e.reason)
}

// Read implements net.Conn. It is called by one goroutine at a time.
func (c *checkedConn) Read(p []byte) (int, error) {
	if c.answer.Len() == 0 && c.failed == nil {
		c.failed = c.next()
	}
	if c.failed != nil {
		c.release()
		return 0, c.failed
	}
	n, _ := c.answer.Read(p)
	if c.answer.Len() == 0 && c.answer.Cap() > smallAnswer {
		c.answer = bytes.Buffer{}
		c.release()
	}
	return n, nil
}

// Close implements net.Conn.
func (c *checkedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// reserve waits until one more large answer may be read.
func (c *checkedConn) reserve() error {
	select {
	case c.guard.large <- struct{}{}:
		c.reserved.Store(true)
		return nil
	case <-c.guard.cutting:
		return net.ErrClosed
	case <-time.After(c.guard.patience):
		return fmt.Errorf("wait for other large answers to be read: %w", os.ErrDeadlineExceeded)
	}
}

func (c *checkedConn) release() {
	if c.reserved.CompareAndSwap(true, false) {
		<-c.guard.large
	}
}

// next reads an answer and checks it.
func (c *checkedConn) next() error {
	prefix := make([]byte, lengthField)
	if _, err := io.ReadFull(c.Conn, prefix); err != nil {
		return err
	}
	r, expected := c.answered()
	kind, known := answerKinds[r.key]
	if !expected || !known {
		return c.refuse(r, "it answers no known request")
	}
	size := int64(int32(binary.BigEndian.Uint32(prefix)))
	if size < 0 || size > kind.maxBytes {
		return c.refuse(r, fmt.Sprintf("it claims to have %d bytes, of %d at most%s", size, kind.maxBytes, c.guess(prefix)))
	}
	if size > smallAnswer {
		if err := c.reserve(); err != nil {
			return err
		}
	}
	c.answer.Write(prefix)
	// The buffer grows with what has arrived and takes at most as much again.
	if _, err := io.CopyN(&c.answer, c.Conn, size); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	if reason := r.check(c.answer.Bytes()[lengthField:]); reason != "" {
		return c.refuse(r, reason)
	}
	c.broker = true
	c.guard.passed(r.key)
	return nil
}

func (c *checkedConn) refuse(r request, reason string) error {
	c.answer = bytes.Buffer{}
	err := &AnswerError{c.address, r.key, reason}
	c.guard.refused(err)
	return err
}

// guess returns a hint at what may have answered, by its first bytes. Whatever has given a valid answer is a broker.
func (c *checkedConn) guess(prefix []byte) string {
	const tlsAlert, tlsHandshake, tlsMajor = 21, 22, 3
	switch {
	case c.broker:
		return ""
	case string(prefix) == "HTTP":
		return " (it speaks HTTP: is this the address of a Kafka broker?)"
	case (prefix[0] == tlsAlert || prefix[0] == tlsHandshake) && prefix[1] == tlsMajor:
		return " (the broker appears to be expecting TLS: set TLS of kafkaconsumer.Config)"
	default:
		return " (is this the address of a Kafka broker?)"
	}
}

// request is one that waits for its answer.
type request struct {
	key     protocol.ApiKey
	version int16
	id      int32
	// token means a SASL token without a request around it, as before Kafka 1.0. Its answer has no frame either.
	token bool
}

// requestHeader is the size of a request's length, API key, version and correlation ID.
const requestHeader = 4 + 2 + 2 + 4

const (
	metadataFirst        = 4 // the first version with allow_auto_topic_creation,
	metadataLast         = 7 // and the last one where it is the last field
	lengthField          = 4
	allowNoTopicCreation = 0
)

// Write changes each metadata request so that it does not create topics. As the group's leader, kafka-go asks for the
// partitions of its topics and lets the broker create missing ones. A topic that is deleted while it is consumed would
// then come back with the broker's defaults: the commit of its offsets fails, the member joins again, and asks for it.
//
// In the versions that have the field (4 to 7, of which kafka-go uses 6) it is the request's last byte. Requests may
// come in pieces, or several in one write, but from one goroutine at a time.
func (c *checkedConn) Write(p []byte) (int, error) {
	var out []byte // a copy of p once it differs: p belongs to the caller
	for i := 0; i < len(p); {
		if c.seen < requestHeader && (c.seen < lengthField || c.seen < c.length) {
			c.header[c.seen] = p[i]
			c.seen++
			i++
			if c.seen == lengthField {
				c.length = lengthField + int64(binary.BigEndian.Uint32(c.header[:lengthField]))
			}
		} else {
			n := min(int64(len(p)-i), c.length-c.seen)
			c.seen += n
			i += int(n)
		}
		if c.seen < lengthField || c.seen < c.length {
			continue
		}
		if r := c.completed(); r.key == protocol.Metadata && r.version >= metadataFirst && r.version <= metadataLast {
			if out == nil {
				out = append(out, p...)
			}
			out[i-1] = allowNoTopicCreation
		}
		c.seen, c.length = 0, 0
	}
	if out == nil {
		out = p
	}
	return c.Conn.Write(out)
}

// completed records the request that is complete, before its last byte is sent.
func (c *checkedConn) completed() request {
	r := request{key: -1}
	if c.length > requestHeader {
		header := cursor{rest: c.header[lengthField:]}
		r = request{key: protocol.ApiKey(header.int16()), version: header.int16(), id: header.int32()}
	}
	// A token never begins with the key of a request: PLAIN's begins with the user's name, the tokens of SCRAM and
	// OAUTHBEARER begin with "n,".
	if _, known := answerKinds[r.key]; c.tokens && !known {
		r = request{key: protocol.SaslAuthenticate, token: true}
	}
	c.tokens = c.tokens || r.key == protocol.SaslHandshake && r.version == 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r)
	return r
}

// answered removes and returns the request that is answered next. Brokers answer a connection's requests in order.
func (c *checkedConn) answered() (request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.asked) == 0 {
		return request{key: -1}, false
	}
	r := c.asked[0]
	c.asked = slices.Delete(c.asked, 0, 1)
	return r, true
}
