package kafkatest

import (
	"net"
	"sync"
	"sync/atomic"
)

// network is the broker's network. It can be cut and frozen while the broker itself keeps running.
type network struct {
	mu        sync.Mutex
	changed   *sync.Cond
	listeners []*listener
	conns     map[*conn]struct{}
	frozen    bool
	stopped   bool
	closed    bool
}

func newNetwork() *network {
	n := &network{conns: map[*conn]struct{}{}}
	n.changed = sync.NewCond(&n.mu)
	return n
}

// listen implements kfake.ListenFn.
func (n *network) listen(network, address string) (net.Listener, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	real, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	l := &listener{network: n, addr: real.Addr(), real: real}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners = append(n.listeners, l)
	return l, nil
}

func (n *network) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped || n.closed {
		return
	}
	n.stopped = true
	n.cut()
}

func (n *network) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// cut breaks all connections and refuses new ones. The caller holds the lock.
func (n *network) cut() {
	n.frozen = false
	for _, l := range n.listeners {
		_ = l.real.Close()
	}
	for c := range n.conns {
		_ = c.Conn.Close()
	}
	n.changed.Broadcast()
}

func (n *network) restart() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	if n.stopped {
		for _, l := range n.listeners {
			real, err := net.Listen(l.addr.Network(), l.addr.String())
			if err != nil {
				return err
			}
			l.real = real
		}
	}
	n.stopped, n.frozen = false, false
	n.changed.Broadcast()
	return nil
}

func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = !n.stopped && !n.closed
}

func (n *network) fallSilent() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.silent.Store(true)
	}
}

// waitWhile waits while the condition, which reads the fields of n, is true.
func (n *network) waitWhile(condition func() bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for condition() {
		n.changed.Wait()
	}
}

// thawed waits while the network is frozen.
func (n *network) thawed() { n.waitWhile(func() bool { return n.frozen }) }

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.cut()
}

// listener stays open while the network is stopped: Accept waits for the restart.
type listener struct {
	network *network
	addr    net.Addr
	real    net.Listener // guarded by network.mu
}

func (l *listener) Accept() (net.Conn, error) {
	n := l.network
	for {
		n.mu.Lock()
		for n.stopped && !n.closed {
			n.changed.Wait()
		}
		real := l.real
		n.mu.Unlock()
		accepted, err := real.Accept()
		n.mu.Lock()
		switch {
		case n.closed:
			n.mu.Unlock()
			if err == nil {
				_ = accepted.Close()
			}
			return nil, net.ErrClosed
		case err != nil && (n.stopped || real != l.real):
			n.mu.Unlock()
		case err != nil:
			n.mu.Unlock()
			return nil, err
		case n.stopped:
			n.mu.Unlock()
			_ = accepted.Close()
		default:
			c := &conn{Conn: accepted, network: n}
			n.conns[c] = struct{}{}
			n.mu.Unlock()
			return c, nil
		}
	}
}

func (l *listener) Close() error {
	l.network.close()
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// conn is a connection that passes nothing while the network is frozen, or once it is silent.
type conn struct {
	net.Conn
	network *network
	silent  atomic.Bool
}

// Read hides even the end of a silent connection until the network is stopped or closed.
func (c *conn) Read(b []byte) (int, error) {
	for {
		count, err := c.Conn.Read(b)
		if !c.silent.Load() {
			c.network.thawed()
			return count, err
		}
		if err != nil {
			c.network.waitWhile(func() bool { return !c.network.stopped && !c.network.closed })
			return 0, err
		}
	}
}

func (c *conn) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	c.network.thawed()
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}
