package pgproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// link is one connection through the proxy.
//
// A client's requests form exchanges: a simple query, or messages of the extended protocol up to a
// Sync. The server answers the exchanges in order, each with messages that end with ReadyForQuery.
// Before the proxy forwards the last message of an exchange, it appends the exchange's fault to
// exchanges, where the goroutine that reads answers finds it.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	// Used only by the goroutine that reads requests.
	prepared map[string]string // statements by name
	portals  map[string]string // statements by portal

	silence sync.Once
	silent  chan struct{} // closed when nothing passes any more

	mu         sync.Mutex
	exchanges  []Fault // in progress, oldest first
	backendKey []byte  // the server's name for the connection
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, prepared: map[string]string{}, portals: map[string]string{},
		silent: make(chan struct{})}
}

var (
	errCut = errors.New("cut")
	// errDetached closes the client's side of a link only. The server's side stays open.
	errDetached = errors.New("detached")
	// errSilent closes the server's side of a link only. The client's side stays open.
	errSilent = errors.New("silent")
)

// run forwards both directions until one end closes its connection or a fault cuts it. In a
// partition the other end does not notice before the partition heals.
func (l *link) run() {
	var both sync.WaitGroup
	for _, direction := range []func() error{l.requests, l.answers} {
		both.Add(1)
		go func() {
			defer both.Done()
			err := direction()
			l.proxy.pass()
			if !errors.Is(err, errSilent) {
				_ = l.client.Close()
			}
			if !errors.Is(err, errDetached) {
				_ = l.server.Close()
			}
		}()
	}
	both.Wait()
}

// requests forwards what the client sends.
func (l *link) requests() error {
	// The first message has no type. The server answers it with ReadyForQuery after it has
	// authenticated the client.
	startup, err := readMessage(l.client, 0)
	if err != nil {
		return err
	}
	if isCancel(startup) && l.proxy.isLost(startup[8:]) {
		return errCut
	}
	l.begin(0)
	if err := l.send(startup); err != nil {
		return err
	}
	var fault Fault // of the current exchange
	for {
		message, err := readMessage(l.client, 1)
		if l.isSilent() {
			return l.swallow()
		}
		if err != nil {
			return err
		}
		if sql, executes := l.statement(message); (executes || sql != "") && fault == 0 {
			fault = l.proxy.fault(sql, executes)
		}
		switch fault {
		case RequestLost:
			return errCut
		case Silence, SilenceMidway:
			l.fallSilent()
			return l.swallow()
		}
		last := message[0] == 'Q' || message[0] == 'S'
		if last {
			if fault == ConnectionLost {
				l.proxy.lose(l.key())
			}
			if fault == 0 && l.proxy.losesThis() {
				fault = AnswerLost
			}
			l.begin(fault)
		}
		if err := l.send(message); err != nil {
			return err
		}
		if last && fault == ConnectionLost {
			return errDetached
		}
		if last {
			fault = 0
		}
	}
}

// fallSilent makes nothing pass any more in either direction.
func (l *link) fallSilent() {
	l.silence.Do(func() {
		l.proxy.lose(l.key())
		close(l.silent)
	})
}

// swallow reads what the client still sends until it closes its connection. The server's connection
// stays open until the server or the proxy closes it.
func (l *link) swallow() error {
	_, _ = io.Copy(io.Discard, l.client)
	return errDetached
}

func (l *link) isSilent() bool {
	select {
	case <-l.silent:
		return true
	default:
		return false
	}
}

func (l *link) send(message []byte) error {
	l.proxy.pass()
	_, err := l.server.Write(message)
	return err
}

func (l *link) begin(fault Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exchanges = append(l.exchanges, fault)
}

// statement records the statements that a message prepares. It returns the text of the statement
// that the message is about, and whether the message executes it.
func (l *link) statement(message []byte) (sql string, executes bool) {
	body := message[5:]
	switch message[0] {
	case 'Q':
		sql, _ = text(body)
		return sql, true
	case 'P': // Parse: name, text
		name, rest := text(body)
		l.prepared[name], _ = text(rest)
		return l.prepared[name], false
	case 'B': // Bind: portal, name
		portal, rest := text(body)
		name, _ := text(rest)
		l.portals[portal] = l.prepared[name]
		return l.portals[portal], false
	case 'E': // Execute: portal
		portal, _ := text(body)
		return l.portals[portal], true
	}
	return "", false
}

// text splits a zero-terminated text off the start of a message body.
func text(body []byte) (string, []byte) {
	before, after, _ := bytes.Cut(body, []byte{0})
	return string(before), after
}

// answers forwards what the server sends.
func (l *link) answers() error {
	for {
		message, err := readMessage(l.server, 1)
		if l.isSilent() {
			_, _ = io.Copy(io.Discard, l.server) // until the server closes the connection
			return errSilent
		}
		if err != nil {
			return err
		}
		if message[0] == 'K' {
			l.mu.Lock()
			l.backendKey = message[5:]
			l.mu.Unlock()
		}
		ready := message[0] == 'Z'
		switch l.current(ready) {
		case AnswerLost, ConnectionLost:
			if ready {
				return errCut
			}
			continue
		case AnswerSilent:
			_, err := io.Copy(io.Discard, l.server) // until the client closes the connection
			return err
		}
		if ready {
			l.proxy.late()
		}
		l.proxy.pass()
		if _, err := l.client.Write(message); err != nil {
			return err
		}
	}
}

// current returns the fault of the exchange that the server is answering. ready ends the exchange.
// Messages outside of any exchange, such as a shutdown notice, have no fault.
func (l *link) current(ready bool) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.exchanges) == 0 {
		return 0
	}
	fault := l.exchanges[0]
	if ready {
		l.exchanges = l.exchanges[1:]
	}
	return fault
}

func (l *link) key() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.backendKey
}

// isCancel reports whether a first message is a request to cancel a statement of another
// connection. pgx sends one when a connection fails. It must be dropped, because in reality it
// would take the route that has just failed.
func isCancel(startup []byte) bool {
	const code = 80877102
	return len(startup) >= 8 && binary.BigEndian.Uint32(startup[4:]) == code
}

// readMessage reads one message: a type of typed bytes, a length that includes itself, and a body.
func readMessage(from io.Reader, typed int) ([]byte, error) {
	header := make([]byte, typed+4)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(header[typed:])) - 4
	if length < 0 {
		return nil, errors.New("message shorter than its length")
	}
	message := append(header, make([]byte, length)...)
	_, err := io.ReadFull(from, message[typed+4:])
	return message, err
}
