// Package kafkaproxy puts a proxy between a test and a Kafka broker that cuts
// connections in the middle of an answer. Brokers must be told to advertise
// it. Only tests and the soak import it.
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
	broker   string
	ended    sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
	least  int // size of answers that are cut
	left   int // how many still are to be
	cut    int
}

// Start starts a proxy in front of a broker (host:port). Close ends it.
func Start(broker string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", broker, err)
	}
	p := &Proxy{listener: listener, broker: broker, conns: map[net.Conn]bool{}}
	p.ended.Go(p.serve)
	return p, nil
}

// Address is what clients connect to.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

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
	broker, err := net.DialTimeout("tcp", p.broker, dialTimeout)
	if err != nil || !p.track(broker) {
		return
	}
	defer p.forget(broker)
	var requests sync.WaitGroup
	requests.Go(func() {
		_, _ = io.Copy(broker, client)
		_ = broker.Close()
	})
	_ = p.answers(client, broker)
	_ = client.Close()
	requests.Wait()
}

var errCut = errors.New("cut")

// answers passes on what the broker says: frames that begin with their length.
func (p *Proxy) answers(client io.Writer, broker io.Reader) error {
	header := make([]byte, 4)
	for {
		if _, err := io.ReadFull(broker, header); err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint32(header))
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
