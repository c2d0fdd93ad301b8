// Package kafkaproxy is a proxy between a test and a Kafka broker that cuts connections in the
// middle of a response, forges responses, or delays requests. For all connections to pass through the proxy, not
// only the first, the broker must advertise the proxy's address. Only tests and the soak test
// import it.
package kafkaproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout is the timeout for connecting to the broker.
const dialTimeout = 5 * time.Second

// Proxy is a proxy in front of one broker. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	ended    sync.WaitGroup

	mu     sync.Mutex
	broker string
	conns  map[net.Conn]bool
	closed bool
	least  int // minimum size of responses that are cut
	left   int // how many more are to be cut
	cut    int
	forged map[int16][]byte // responses, by the API key of their requests

	holds    func(key int16, request []byte) bool // nil if no request is held
	held     int                                  // how many requests wait for released
	released chan struct{}                        // closed by Release
}

// Start starts a proxy in front of a broker (host:port). Close stops it.
func Start(broker string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", broker, err)
	}
	p := &Proxy{listener: listener, broker: broker, conns: map[net.Conn]bool{}, forged: map[int16][]byte{}}
	p.ended.Go(p.serve)
	return p, nil
}

// Address returns the address that clients connect to.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Redirect sends new connections to another address.
func (p *Proxy) Redirect(broker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broker = broker
}

// CutAnswers cuts the next n responses of at least this size in the middle, on any connection, and
// closes their connections. It replaces earlier calls. n = 0 ends it.
func (p *Proxy) CutAnswers(n, least int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.least = n, least
}

// Cut returns how many responses have been cut.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// Forge replaces everything after the correlation ID in responses to requests with an API key. nil
// ends that. Requests with SASL tokens that are not wrapped in Kafka requests have no key and
// cannot be forged.
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

// Hold delays requests until Release. matches chooses them by their API key and what follows it in the request. What a
// connection sends after such a request waits, too. The broker gets a held request even if its client is gone by then.
func (p *Proxy) Hold(matches func(key int16, request []byte) bool) {
	p.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds, p.released = matches, make(chan struct{})
}

// Held returns how many requests are held now.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Release sends what is held, and holds nothing more.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds != nil {
		close(p.released)
		p.holds = nil
	}
}

func (p *Proxy) holding() (matches func(key int16, request []byte) bool, released chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds, p.released
}

// wait returns once a held request may be sent.
func (p *Proxy) wait(released chan struct{}) {
	count := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held += n
	}
	count(1)
	defer count(-1)
	<-released
}

// Close stops the proxy and closes every connection through it.
func (p *Proxy) Close() {
	p.Release()
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
		_ = p.requests(broker, client, keys)
		_ = broker.Close()
	})
	_ = p.answers(client, broker, keys)
	_ = client.Close()
	requests.Wait()
}

// queue has the API keys of a connection's unanswered requests. Brokers answer in the order of the
// requests.
type queue struct {
	mu   sync.Mutex
	keys []int16
}

func (q *queue) add(key int16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keys = append(q.keys, key)
}

// next returns the key of the request that is answered now, or -1 if there is none.
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

// requests forwards the client's requests. Each is a frame that begins with its length and its API key. A request that
// may be held is read as a whole first, because its client may end.
func (p *Proxy) requests(broker io.Writer, client io.Reader, keys *queue) error {
	header := make([]byte, 4+2)
	for {
		if _, err := io.ReadFull(client, header); err != nil {
			return err
		}
		size, key := int64(binary.BigEndian.Uint32(header))-2, int16(binary.BigEndian.Uint16(header[4:]))
		rest := client
		if matches, released := p.holding(); matches != nil {
			request, err := io.ReadAll(io.LimitReader(client, size))
			if err != nil {
				return err
			}
			if matches(key, request) {
				p.wait(released)
			}
			rest = bytes.NewReader(request)
		}
		keys.add(key)
		if _, err := broker.Write(header); err != nil {
			return err
		}
		if _, err := io.CopyN(broker, rest, size); err != nil {
			return err
		}
	}
}

var errCut = errors.New("cut")

// answers forwards the broker's responses. Each is a frame that begins with its length.
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
