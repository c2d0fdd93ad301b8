package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// database is a database server that the soak disturbs.
type database interface {
	server
	DSN() string
	Close() error
}

// route is the workers' route to the database, on which answers come late or not at all.
type route interface {
	DSN() string
	Delay(time.Duration)
	LoseAnswers(seed uint64)
	AnswersLost() int
	Close()
}

// product is a database that can be soaked.
type product struct {
	name, title string
	start       func() (database, error)
	route       func(dsn string) (route, error)
}

var products = []product{
	{"postgres", "PostgreSQL",
		func() (database, error) { return servers.StartPostgres(servers.PostgresOptions{}) },
		func(dsn string) (route, error) { return pgproxy.Start(dsn) }},
	{"mariadb", "MariaDB", func() (database, error) { return servers.StartMariaDB(servers.MySQLOptions{}) }, startCable},
	{"mysql", "MySQL", func() (database, error) { return servers.StartMySQL(servers.MySQLOptions{}) }, startCable},
}

// productNamed returns a product, or an error that lists the names.
func productNamed(name string) (product, error) {
	var names []string
	for _, p := range products {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return product{}, fmt.Errorf("-database = %q: must be %s", name, strings.Join(names, ", "))
}

// cable forwards connections to a MySQL or MariaDB without knowing their protocol. What a read of the server's side
// returns is an answer, or a part of one.
type cable struct {
	listener    net.Listener
	target, dsn string
	ended       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil after Close
	delay time.Duration
	lossy *rand.Rand
	lost  int
}

// lossyEvery is how many answers there are for each one that is lost.
const lossyEvery = 40

func startCable(dsn string) (route, error) {
	before, rest, found := strings.Cut(dsn, "@tcp(")
	target, after, closed := strings.Cut(rest, ")")
	if !found || !closed {
		return nil, fmt.Errorf("the DSN %s has no address", dsn)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cable{listener: listener, target: target, dsn: before + "@tcp(" + listener.Addr().String() + ")" + after,
		conns: map[net.Conn]bool{}}
	c.ended.Go(c.serve)
	return c, nil
}

func (c *cable) DSN() string { return c.dsn }

func (c *cable) Delay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// LoseAnswers cuts connections in place of answers at random. A seed of 0 ends that.
func (c *cable) LoseAnswers(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lossy = nil
	if seed > 0 {
		c.lossy = rand.New(rand.NewPCG(seed, seed))
	}
}

func (c *cable) AnswersLost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *cable) Close() {
	c.mu.Lock()
	_ = c.listener.Close()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.ended.Wait()
}

func (c *cable) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.ended.Go(func() { c.connect(client) })
	}
}

func (c *cable) connect(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", c.target, time.Minute)
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

func (c *cable) keep(conns ...net.Conn) bool {
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

func (c *cable) forget(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		delete(c.conns, conn)
	}
}

// answers waits for the delay, and reports false if this answer is lost.
func (c *cable) answers() bool {
	c.mu.Lock()
	lost := c.lossy != nil && c.lossy.IntN(lossyEvery) == 0
	if lost {
		c.lost++
	}
	delay := c.delay
	c.mu.Unlock()
	pause(context.Background(), delay)
	return !lost
}

// forward copies until one side ends or an answer is lost, and then closes both.
func (c *cable) forward(to, from net.Conn, passes func() bool) {
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
