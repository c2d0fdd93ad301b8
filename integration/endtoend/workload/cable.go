package workload

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// Cable forwards connections to a database server without knowing its protocol. What a read of the server's side
// returns is an answer, or a part of one. It is safe for concurrent use.
type Cable struct {
	listener net.Listener
	dsn      string
	ended    sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  map[net.Conn]bool // nil after Close
	delay  time.Duration
	lossy  *rand.Rand
	lost   int
}

// lossyEvery is how many answers there are for each one that is lost.
const lossyEvery = 40

// StartCable starts a cable to the server of a DSN. Close it.
func StartCable(dsn string) (*Cable, error) {
	target, err := serverOf(dsn)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cable to %s: %w", target, err)
	}
	c := &Cable{listener: listener, target: target, dsn: strings.Replace(dsn, target, listener.Addr().String(), 1),
		conns: map[net.Conn]bool{}}
	c.ended.Go(c.serve)
	return c, nil
}

// serverOf returns the host and the port in a DSN.
func serverOf(dsn string) (string, error) {
	if config, err := driver.ParseDSN(dsn); err == nil {
		return config.Addr, nil
	}
	server, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("cable: %w", err)
	}
	return server.Host, nil
}

// DSN returns the DSN of the server as clients of the cable use it.
func (c *Cable) DSN() string { return c.dsn }

// Redirect connects new clients to the server of another DSN.
func (c *Cable) Redirect(dsn string) error {
	target, err := serverOf(dsn)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = target
	return err
}

// Cut closes all connections.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut()
}

func (c *Cable) cut() {
	for conn := range c.conns {
		_ = conn.Close()
	}
}

// Delay delays each answer from now on.
func (c *Cable) Delay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// LoseAnswers cuts connections in place of answers at random. A seed of 0 ends that.
func (c *Cable) LoseAnswers(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lossy = nil
	if seed > 0 {
		c.lossy = rand.New(rand.NewPCG(seed, seed))
	}
}

// AnswersLost returns how many answers were lost.
func (c *Cable) AnswersLost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Close closes the cable and all of its connections.
func (c *Cable) Close() {
	_ = c.listener.Close()
	c.mu.Lock()
	c.cut()
	c.conns = nil
	c.mu.Unlock()
	c.ended.Wait()
}

func (c *Cable) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.ended.Go(func() { c.connect(client) })
	}
}

func (c *Cable) connect(client net.Conn) {
	defer client.Close()
	c.mu.Lock()
	target := c.target
	c.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, time.Minute)
	if err != nil {
		return
	}
	defer server.Close()
	if !c.keep(client, server) {
		return
	}
	defer c.forget(client, server)
	var both sync.WaitGroup
	both.Go(func() { c.forward(server, client, func() bool { return true }) })
	both.Go(func() { c.forward(client, server, c.answers) })
	both.Wait()
}

func (c *Cable) keep(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		if c.conns == nil {
			return false
		}
		c.conns[conn] = true
	}
	return true
}

func (c *Cable) forget(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		delete(c.conns, conn)
	}
}

// answers waits for the delay, and reports false if this answer is lost.
func (c *Cable) answers() bool {
	c.mu.Lock()
	lost := c.lossy != nil && c.lossy.IntN(lossyEvery) == 0
	if lost {
		c.lost++
	}
	delay := c.delay
	c.mu.Unlock()
	<-time.After(delay)
	return !lost
}

// forward copies until one side ends or an answer is lost, and then closes both.
func (c *Cable) forward(to, from net.Conn, passes func() bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !passes() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
