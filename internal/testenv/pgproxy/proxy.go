// Package pgproxy is a proxy between a test and PostgreSQL that loses answers, requests or whole
// connections on demand, or lets connections fall silent. It parses the protocol only as far as
// needed to know which statement each exchange runs. Only tests and the soak test import it.
package pgproxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dialTimeout is the timeout for connecting to the server.
const dialTimeout = time.Minute

// Proxy is a proxy in front of one server. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	server   string
	dsn      string
	ended    sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	links  map[*link]bool
	closed bool
	rules  []*rule
	lossy  *rand.Rand // if not nil, one answer in lossyEvery is lost
	lost   int
	dead   chan struct{}   // not nil during a partition; closed when it ends
	gone   map[string]bool // keys of connections whose cancel requests are dropped
	delay  time.Duration   // of each answer
	done   chan struct{}   // closed by Close
}

// New starts a proxy in front of the server that dsn names (a postgres:// URL with
// sslmode=disable). The proxy is closed when the test ends. Connect through it with DSN.
func New(t testing.TB, dsn string) *Proxy {
	t.Helper()
	p, err := Start(dsn)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// Start is like New outside of a test. Close ends the proxy.
func Start(dsn string) (*Proxy, error) {
	target, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", dsn, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", dsn, err)
	}
	p := &Proxy{listener: listener, server: target.Host, conns: map[net.Conn]bool{}, links: map[*link]bool{},
		gone: map[string]bool{}, done: make(chan struct{})}
	target.Host = listener.Addr().String()
	p.dsn = target.String()
	p.own(p.serve)
	return p, nil
}

// DSN returns a DSN that leads to the server's database through the proxy.
func (p *Proxy) DSN() string { return p.dsn }

func (p *Proxy) own(f func()) {
	p.ended.Add(1)
	go func() {
		defer p.ended.Done()
		f()
	}()
}

// Close ends the proxy and all connections through it.
func (p *Proxy) Close() {
	p.Heal()
	p.mu.Lock()
	if !p.closed {
		close(p.done)
	}
	p.closed = true
	_ = p.listener.Close()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.ended.Wait()
}

// Partition stops all traffic in both directions, like a network partition. Connections stay open.
// When one end closes its connection, the other end does not notice before Heal.
func (p *Proxy) Partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead == nil && !p.closed {
		p.dead = make(chan struct{})
	}
}

// Heal ends a partition. Traffic that was held back continues.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead != nil {
		close(p.dead)
		p.dead = nil
	}
}

// Redirect connects new clients to the server of another DSN, as after a failover.
func (p *Proxy) Redirect(dsn string) error {
	target, err := url.Parse(dsn)
	if err != nil {
		return fmt.Errorf("proxy to %s: %w", dsn, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = target.Host
	return nil
}

// Cut closes all connections that are open now, on both sides. It returns how many clients it has cut off.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	return len(p.links)
}

// FallSilent is Silence for all connections that are open now. New connections work.
func (p *Proxy) FallSilent() {
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, l := range links {
		l.fallSilent()
	}
}

// Delay delays every answer by d, like a busy database or a slow network. 0 ends the delay. A
// transaction takes d for each of its round trips, because the exchanges of a connection are
// sequential.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// late waits for the delay of one answer.
func (p *Proxy) late() {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.done:
	}
}

// pass waits while there is a partition.
func (p *Proxy) pass() {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead != nil {
		<-dead
	}
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.own(func() { p.connect(client) })
	}
}

// track registers a connection that Close must close.
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

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

func (p *Proxy) connect(client net.Conn) {
	if !p.track(client) {
		return
	}
	defer p.forget(client)
	p.pass()
	p.mu.Lock()
	target := p.server
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil || !p.track(server) {
		return
	}
	defer p.forget(server)
	l := newLink(p, client, server)
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
