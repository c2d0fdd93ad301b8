package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// address is the host and port of a broker.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// listener is a broker's port in the network in memory.
type listener struct {
	address address
	dialed  chan net.Conn
	closed  chan struct{}
	close   func()
}

func newListener(at address) *listener {
	l := &listener{address: at, dialed: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *listener) Addr() net.Addr { return l.address }
func (l *listener) Close() error   { l.close(); return nil }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) dial(ctx context.Context) (net.Conn, error) {
	client, server := pipe(l.address)
	select {
	case l.dialed <- server:
		return client, nil
	case <-l.closed:
		return nil, refused(l.address)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func refused(at address) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: at, Err: syscall.ECONNREFUSED}
}

// conn is a net.Pipe with the errors of a TCP connection. Its waits are durable blocks in a bubble.
type conn struct {
	net.Conn
	remote address
	closed atomic.Bool
}

func pipe(remote address) (client, server net.Conn) {
	client, server = net.Pipe()
	return &conn{Conn: client, remote: remote}, &conn{Conn: server, remote: "client:1"}
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.failure("read", err, io.EOF)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.failure("write", err, syscall.EPIPE)
}

func (c *conn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// failure translates an error of net.Pipe. byPeer is what a connection returns that the other side has closed.
func (c *conn) failure(op string, err, byPeer error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case errors.Is(err, io.ErrClosedPipe) && c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, io.ErrClosedPipe):
		err = byPeer
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: c.remote, Err: err}
}

// readFrame reads a request or a response with its length.
func readFrame(c net.Conn) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(c, frame); err != nil {
		return nil, err
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
	_, err := io.ReadFull(c, frame[4:])
	return frame, err
}
