package endtoend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// loss is what happens to an exchange with the database.
type loss int

const (
	// answerLost: the database has done it, the connection ends before it can
	// say so.
	answerLost loss = iota + 1
	// requestLost: the connection ends before the database hears of it.
	requestLost
	// answerSilent: the database has done it, its answer never comes and the
	// connection stays open.
	answerSilent
)

// proxy stands between an inbox and PostgreSQL and loses what it is told to.
// It understands the protocol as far as where messages begin and end.
type proxy struct {
	listener net.Listener
	server   string
	ended    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	closed  bool
	commits loss // what happens to the next commits
	times   int
	lossy   *rand.Rand // if not nil, one answer in lossyEvery is lost
	lost    int
	dead    chan struct{} // while not nil nothing passes; closed to let it
}

// lossyEvery answers one is lost, when they are.
const lossyEvery = 40

func newProxy(t *testing.T, dsn string) (p *proxy, proxied string) {
	t.Helper()
	target, err := url.Parse(dsn)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p = &proxy{listener: listener, server: target.Host, conns: map[net.Conn]bool{}}
	p.ended.Go(p.serve)
	t.Cleanup(p.close)
	target.Host = listener.Addr().String()
	return p, target.String()
}

func (p *proxy) close() {
	p.heal()
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.ended.Wait()
}

// loseCommits decides what happens to the next n commits.
func (p *proxy) loseCommits(how loss, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commits, p.times = how, n
}

// left is how many commits are still to be lost.
func (p *proxy) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times
}

// loseAnswers loses answers of all kinds at random, or none any more if seed
// is 0.
func (p *proxy) loseAnswers(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy = nil
	if seed > 0 {
		p.lossy = rand.New(rand.NewPCG(seed, seed))
	}
}

func (p *proxy) answersLost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// partition lets nothing pass, in either direction; connections stay open.
func (p *proxy) partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead == nil {
		p.dead = make(chan struct{})
	}
}

// heal ends a partition; what was held back passes.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead != nil {
		close(p.dead)
		p.dead = nil
	}
}

func (p *proxy) pass() {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead != nil {
		<-dead
	}
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.ended.Go(func() { p.connect(client) })
	}
}

// track keeps a connection to be closed with the proxy.
func (p *proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *proxy) connect(client net.Conn) {
	if !p.track(client) {
		return
	}
	p.pass()
	server, err := net.Dial("tcp", p.server)
	if err != nil || !p.track(server) {
		_ = client.Close()
		return
	}
	link := &link{proxy: p, client: client, server: server}
	var both sync.WaitGroup
	for _, direction := range []func() error{link.requests, link.answers} {
		both.Go(func() {
			_ = direction() // ends with the connection
			_ = client.Close()
			_ = server.Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// link is one connection through the proxy.
type link struct {
	proxy          *proxy
	client, server net.Conn

	mu   sync.Mutex
	next loss // what happens to the next answer
}

var errCut = errors.New("cut")

// requests passes on what the client sends. The first message has no type.
func (l *link) requests() error {
	message := make([]byte, 4)
	if _, err := io.ReadFull(l.client, message); err != nil {
		return err
	}
	for first := true; ; first = false {
		if !first {
			message = make([]byte, 5)
			if _, err := io.ReadFull(l.client, message); err != nil {
				return err
			}
		}
		body := make([]byte, binary.BigEndian.Uint32(message[len(message)-4:])-4)
		if _, err := io.ReadFull(l.client, body); err != nil {
			return err
		}
		if !first && message[0] == 'Q' && bytes.EqualFold(body, []byte("commit\x00")) {
			how := l.proxy.commit()
			if how == requestLost {
				return errCut
			}
			l.mu.Lock()
			l.next = how
			l.mu.Unlock()
		}
		l.proxy.pass()
		if _, err := l.server.Write(append(message, body...)); err != nil {
			return err
		}
	}
}

// commit says what happens to a commit that is seen now.
func (p *proxy) commit() loss {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.times == 0 {
		return 0
	}
	p.times--
	return p.commits
}

// answers passes on what the server sends. An answer ends with ReadyForQuery.
func (l *link) answers() error {
	var answer []byte
	for started := false; ; {
		header := make([]byte, 5)
		if _, err := io.ReadFull(l.server, header); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(l.server, body); err != nil {
			return err
		}
		answer = append(append(answer, header...), body...)
		if started && header[0] != 'Z' {
			continue
		}
		if header[0] == 'Z' {
			l.mu.Lock()
			how := l.next
			l.next = 0
			l.mu.Unlock()
			switch {
			case how == answerSilent:
				_, err := io.Copy(io.Discard, l.server) // until the client gives up
				return err
			case how == answerLost, started && l.proxy.losesThis():
				return errCut
			}
			started = true // authentication is over
		}
		l.proxy.pass()
		if _, err := l.client.Write(answer); err != nil {
			return err
		}
		answer = nil
	}
}

func (p *proxy) losesThis() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lossy == nil || p.lossy.IntN(lossyEvery) != 0 {
		return false
	}
	p.lost++
	return true
}
