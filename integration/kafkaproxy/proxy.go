// Package kafkaproxy puts a proxy between a test and a Kafka broker that cuts
// connections in the middle of an answer, or forges answers. Brokers must be told
// to advertise it if more than the first connections are to pass it. Only tests
// and the soak import it.
package kafkaproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout bounds the way to the broker.
const dialTimeout = 5 * time.Second

// Proxy is one proxy in front of one broker. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	ended    sync.WaitGroup

	mu     sync.Mutex
	broker string
	conns  map[net.Conn]bool
	closed bool
	least  int // size of answers that are cut
	left   int // how many still are to be
	cut    int
	forged map[int16][]byte // answers, by the API key of their requests
}

// Start starts a proxy in front of a broker (host:port). Close ends it.
func Start(broker string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", broker, err)
	}
	p := &Proxy{listener: listener, broker: broker, conns: map[net.Conn]bool{}, forged: map[int16][]byte{}}
	p.ended.Go(p.serve)
	return p, nil
}

// Address is what clients connect to.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Redirect leads connections that are made from now on to another address.
func (p *Proxy) Redirect(broker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broker = broker
}

// CutAnswers makes the next n answers of at least so many bytes, on whichever
// connections, end in their middle, and their connections with them. It
// replaces what was asked for before; n = 0 ends it.
func (p *Proxy) CutAnswers(n, least int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.least = n, least
}

// Cut is how many answers have been cut.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// Forge replaces all that follows the correlation ID in answers to requests of
// an API key; with nil they pass again. Requests with SASL tokens that are not
// in requests of their own have no key and cannot be forged.
func (p *Proxy) Forge(key int16, content []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if content == nil {
		delete(p.forged, key)
		return
	}
	p.forged[key] = content
}

func (p *Proxy) forgery(key int16) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forged[key]
}

// Close ends the proxy and every connection through it.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.ended.Wait()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.ended.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	if !p.track(client) {
		return
	}
	defer p.forget(client)
	p.mu.Lock()
	address := p.broker
	p.mu.Unlock()
	broker, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil || !p.track(broker) {
		return
	}
	defer p.forget(broker)
	var requests sync.WaitGroup
	keys := &queue{}
	requests.Go(func() {
		_ = keys.requests(broker, client)
		_ = broker.Close()
	})
	_ = p.answers(client, broker, keys)
	_ = client.Close()
	requests.Wait()
}

// queue is the API keys of a connection's requests without an answer yet: brokers
// answer in the order of the requests.
type queue struct {
	mu   sync.Mutex
	keys []int16
}

// requests passes on what the client asks: frames that begin with their length
// and their API key.
func (q *queue) requests(broker io.Writer, client io.Reader) error {
	header := make([]byte, 4+2)
	for {
		if _, err := io.ReadFull(client, header); err != nil {
			return err
		}
		q.mu.Lock()
		q.keys = append(q.keys, int16(binary.BigEndian.Uint16(header[4:])))
		q.mu.Unlock()
		if _, err := broker.Write(header); err != nil {
			return err
		}
		if _, err := io.CopyN(broker, client, int64(binary.BigEndian.Uint32(header))-2); err != nil {
			return err
		}
	}
}

// next is the key of the request that is answered now; -1 if there is none.
func (q *queue) next() int16 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.keys) == 0 {
		return -1
	}
	key := q.keys[0]
	q.keys = q.keys[1:]
	return key
}

var errCut = errors.New("cut")

// answers passes on what the broker says: frames that begin with their length.
func (p *Proxy) answers(client io.Writer, broker io.Reader, keys *queue) error {
	header := make([]byte, 4)
	for {
		if _, err := io.ReadFull(broker, header); err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint32(header))
		if content := p.forgery(keys.next()); content != nil {
			answer := binary.BigEndian.AppendUint32(nil, uint32(4+len(content)))
			correlation := make([]byte, 4)
			if _, err := io.ReadFull(broker, correlation); err != nil {
				return err
			}
			if _, err := client.Write(append(append(answer, correlation...), content...)); err != nil {
				return err
			}
			if _, err := io.CopyN(io.Discard, broker, size-4); err != nil {
				return err
			}
			continue
		}
		cut := p.cuts(size)
		if _, err := client.Write(header); err != nil {
			return err
		}
		if cut {
			_, _ = io.CopyN(client, broker, size/2)
			return errCut
		}
		if _, err := io.CopyN(client, broker, size); err != nil {
			return err
		}
	}
}

func (p *Proxy) cuts(size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 || size < int64(p.least) {
		return false
	}
	p.left--
	p.cut++
	return true
}

func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *Proxy) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = conn.Close()
	delete(p.conns, conn)
}
