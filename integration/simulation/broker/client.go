package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// Link carries each request of a client to the brokers: "Connect" for a new connection, otherwise the API's name, such
// as "Fetch" or "OffsetCommit". It may wait before or after do, which sends the request and receives the response, and
// may leave it out. If it returns an error, the connection breaks, and the client gets no response: one that do has
// received is lost. With ErrSilent the connection does not break: the client waits until its deadline.
//
// ctx ends when the client has closed the connection, and when it sends another request before the response. A Link
// that waits must then go on at once. kafka-go holds a connection's mutex while it waits for a response. Virtual time
// stands still while another goroutine waits for that mutex.
type Link func(ctx context.Context, request string, do func() error) error

// ErrSilent is a Link's error for a request or a response that disappears. The brokers do not notice when the client
// closes the connection. If the client sends another request on the connection, the connection breaks.
var ErrSilent = errors.New("the connection is silent")

// Client is the network of one process. Dial is safe for concurrent use.
type Client struct {
	broker *Broker
	link   Link

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // the brokers' sides
	killed bool
}

// Client returns the network of a process. A nil link passes everything.
func (b *Broker) Client(link Link) *Client {
	if link == nil {
		link = func(_ context.Context, _ string, do func() error) error { return do() }
	}
	c := &Client{broker: b, link: link, conns: map[net.Conn]struct{}{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, c)
	return c
}

// Dial connects to a broker.
func (c *Client) Dial(ctx context.Context, _, to string) (net.Conn, error) {
	var own net.Conn
	err := c.link(ctx, "Connect", func() (err error) {
		own, err = c.connect(ctx, address(to))
		return err
	})
	if errors.Is(err, ErrSilent) {
		<-ctx.Done()
		err = ctx.Err()
	}
	if err == nil && own == nil {
		err = refused(address(to))
	}
	if err != nil && own != nil {
		_ = own.Close()
	}
	if err != nil {
		return nil, err
	}
	return own, nil
}

// Kill breaks all connections and refuses new ones, as if the process had died. Goroutines of the process that still
// run can reach no broker.
func (c *Client) Kill() {
	c.mu.Lock()
	conns := c.conns
	c.conns, c.killed = nil, true
	c.mu.Unlock()
	for conn := range conns {
		_ = conn.Close()
	}
}

func (c *Client) connect(ctx context.Context, to address) (net.Conn, error) {
	broker, err := c.broker.connect(ctx, "tcp", string(to))
	if err != nil {
		return nil, err
	}
	own, other := pipe(to)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		_ = broker.Close()
		return nil, refused(to)
	}
	c.conns[other] = struct{}{}
	x := &exchange{client: c, conn: other, broker: broker, requests: make(chan []byte, 16), done: make(chan struct{})}
	x.ctx, x.end = context.WithCancel(context.Background())
	go x.receive()
	go x.run()
	return own, nil
}

// exchange passes the requests of a connection to a broker, one after the other, as a broker processes them. Each is
// carried out to its end even if the client is gone: the brokers' groups expect that a response can be sent, and then
// wait for the session timeout of a member that does not answer.
type exchange struct {
	client   *Client
	conn     net.Conn // to the client
	broker   net.Conn
	requests chan []byte
	done     chan struct{} // closed when run has returned

	ctx     context.Context // ends when the client has closed the connection
	end     context.CancelFunc
	current atomic.Pointer[context.CancelFunc] // ends the wait for the current request
}

// receive reads requests before they can be sent, to notice when the client sends another one or closes.
func (x *exchange) receive() {
	defer x.end()
	for {
		request, err := readFrame(x.conn)
		if err != nil {
			return
		}
		select {
		case x.requests <- request:
		case <-x.done:
			return
		}
		if hurry := x.current.Load(); hurry != nil {
			(*hurry)()
		}
	}
}

func (x *exchange) run() {
	silent := false
	defer func() {
		x.client.mu.Lock()
		delete(x.client.conns, x.conn)
		x.client.mu.Unlock()
		_ = x.conn.Close()
		if !silent {
			_ = x.broker.Close()
		}
		close(x.done)
	}()
	for {
		select {
		case <-x.ctx.Done():
			return
		case request := <-x.requests:
			ctx, hurry := context.WithCancel(x.ctx)
			x.current.Store(&hurry)
			if len(x.requests) > 0 {
				hurry()
			}
			err := x.pass(ctx, request)
			if silent = errors.Is(err, ErrSilent); silent {
				<-ctx.Done()
			}
			hurry()
			if err != nil {
				return
			}
		}
	}
}

func (x *exchange) pass(ctx context.Context, request []byte) error {
	var response []byte
	err := x.client.link(ctx, apiOf(request).Name(), func() (err error) {
		response, err = x.client.broker.ask(x.broker, request)
		return err
	})
	if err == nil {
		_, err = x.conn.Write(response)
	}
	return err
}
