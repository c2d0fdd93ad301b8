package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Delivery is what the transport sends, in a line of JSON.
type Delivery struct {
	Payment Payment `json:"payment"`
	// DieAt says, for the demonstration, where the process is to kill itself.
	DieAt Point `json:"die_at,omitempty"`
}

// What a worker answers, in a line: that the delivery is done with, that it is
// not and why, or that the process kills itself now.
const (
	acknowledged = "ack"
	refused      = "nack "
	lostClaim    = "lost " // refused, and the handler may have run
	dying        = "dying"
)

// redeliverAfter is how long what was refused waits.
const redeliverAfter = 50 * time.Millisecond

// Transport is a queue that owns its retries, as brokers' queues do: each
// delivery is with one consumer at a time, and comes again until one
// acknowledges it. It is lost with no process but the parent's. Each connection
// is a consumer with one delivery at a time.
type Transport struct {
	listener net.Listener
	serving  sync.WaitGroup
	stop     context.CancelFunc
	ctx      context.Context

	mu      sync.Mutex
	changed chan struct{} // closed and made anew when there is more to take
	queue   []Payment
	orders  []order        // kills that have not happened, the next first
	pending bool           // one has been sent out, or the process it killed is not known to have ended
	alone   string         // the payment that is to kill in its handler: no other copy of it is sent out
	out     map[string]int // deliveries that are out, by payment
	state   Deliveries
}

// order is a kill: at a point, of a delivery after so many.
type order struct {
	after int
	at    Point
}

// Deliveries are what the transport has seen.
type Deliveries struct {
	Sent         int            // deliveries handed out
	Acknowledged map[string]int // by payment
	Total        int            // sum of Acknowledged
	Refused      int
	// Unsure counts, by payment, deliveries whose handler may have run without
	// anybody remembering: the process died, or the claim was lost meanwhile.
	Unsure map[string]int
	// Killed says where, in the order of the kills.
	Killed []Point
	// Killing: a delivery that is to kill is out, or the process is not Buried.
	Killing bool
}

// NewTransport listens, with deliveries in the order in which they are sent
// first, and kills to be done.
func NewTransport(deliveries []Payment, kills []order) (*Transport, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	t := &Transport{listener: listener, queue: slices.Clone(deliveries), orders: kills, changed: make(chan struct{}),
		out: map[string]int{}, state: Deliveries{Acknowledged: map[string]int{}, Unsure: map[string]int{}}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.serving.Go(t.accept)
	return t, nil
}

// Address is where consumers connect to.
func (t *Transport) Address() string { return t.listener.Addr().String() }

// Close ends it and every connection.
func (t *Transport) Close() error {
	t.stop()
	err := t.listener.Close()
	t.serving.Wait()
	return err
}

func (t *Transport) accept() {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // closed; a run whose workers find nobody does not end well
		}
		t.serving.Go(func() {
			unwatch := context.AfterFunc(t.ctx, func() { _ = conn.Close() })
			defer unwatch()
			defer conn.Close()
			t.serve(conn)
		})
	}
}

// serve hands out one delivery after the other until the consumer is gone. What
// it had in hand then comes again at once.
func (t *Transport) serve(conn net.Conn) {
	answers, send := bufio.NewReader(conn), json.NewEncoder(conn)
	for {
		// The consumer asks: one that is gone gets nothing.
		if _, err := answers.ReadString('\n'); err != nil {
			return
		}
		d, ok := t.take()
		if !ok {
			return
		}
		answer := ""
		if send.Encode(d) == nil {
			answer, _ = answers.ReadString('\n')
		}
		answer = strings.TrimSuffix(answer, "\n")
		if strings.HasPrefix(answer, refused) || strings.HasPrefix(answer, lostClaim) {
			_ = scratch.Pause(t.ctx, redeliverAfter)
		}
		t.settle(d, answer)
	}
}

// take waits for something to deliver; not ok if the transport is closed.
func (t *Transport) take() (d Delivery, ok bool) {
	for {
		t.mu.Lock()
		if i := slices.IndexFunc(t.queue, func(p Payment) bool { return p.ID != t.alone }); i >= 0 {
			d.Payment = t.queue[i]
			copy(t.queue[1:], t.queue[:i])
			t.queue = t.queue[1:]
			t.state.Sent++
			d.DieAt = t.sendOut(d.Payment)
			t.mu.Unlock()
			return d, true
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-t.ctx.Done():
			return d, false
		case <-changed:
		}
	}
}

// sendOut counts a delivery as out and chooses whether it kills. One order is out
// at a time: of two in one process the first would end both. A delivery that is to
// kill in the handler must reach it: no other copy of its payment is out, or is sent
// out before it has ended. On SQLite it may else wait for the database's lock while
// others bring its payment, and then all the rest.
func (t *Transport) sendOut(p Payment) Point {
	t.out[p.ID]++
	if t.pending || len(t.orders) == 0 || t.state.Sent < t.orders[0].after {
		return ""
	}
	at := t.orders[0].at
	if at.needsBody() {
		if t.state.Acknowledged[p.ID] > 0 || t.out[p.ID] > 1 {
			return ""
		}
		t.alone = p.ID
	}
	t.pending = true
	return at
}

func (t *Transport) settle(d Delivery, answer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out[d.Payment.ID]--
	if answer == acknowledged {
		t.state.Acknowledged[d.Payment.ID]++
		t.state.Total++
	} else {
		t.queue = append([]Payment{d.Payment}, t.queue...)
	}
	if d.DieAt != "" {
		t.alone = ""
	}
	close(t.changed)
	t.changed = make(chan struct{})
	switch {
	case strings.HasPrefix(answer, refused):
		t.state.Refused++
	case answer != acknowledged: // gone, dying, or its claim was
		t.state.Unsure[d.Payment.ID]++
	}
	switch {
	case d.DieAt == "":
	case answer == dying:
		t.state.Killed = append(t.state.Killed, d.DieAt)
		t.orders = t.orders[1:] // Buried says when the next may go out
	default: // it was refused or lost its claim before: the next may
		t.pending = false
	}
}

// Buried says that the process that killed itself has ended, with its
// connections.
func (t *Transport) Buried() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = false
}

// Seen is what it has seen so far.
func (t *Transport) Seen() Deliveries {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.state
	seen.Acknowledged, seen.Unsure = maps.Clone(seen.Acknowledged), maps.Clone(seen.Unsure)
	seen.Killed = slices.Clone(seen.Killed)
	seen.Killing = t.pending
	return seen
}
