package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

const (
	accounts       = 50                    // that payments go to
	maxCopies      = 5                     // how often a payment is sent at most
	redeliverAfter = 50 * time.Millisecond // how long a refused delivery waits
)

// MakePayments makes n payments.
func MakePayments(n int, random *rand.Rand) []Payment {
	payments := make([]Payment, n)
	for i := range payments {
		payments[i] = Payment{ID: fmt.Sprintf("payment-%06d", i+1), Account: 1 + random.IntN(accounts),
			Cents: 1 + random.Int64N(10_000)}
	}
	return payments
}

// MakeDeliveries sends each payment one to five times: some copies right after each other, so that several
// workers have them at the same moment, others any time later. Some payments kill their worker, at each
// point in turn, and are sent again only because of that: a copy must not be handled first. They are among
// the first three quarters, so that the last kill is recovered from, too.
func MakeDeliveries(payments []Payment, kills int, random *rand.Rand) (deliveries []Payment) {
	killAt, first := map[int]Point{}, random.IntN(len(points))
	for i, payment := range random.Perm(max(kills, len(payments)*3/4))[:kills] {
		killAt[payment] = points[(first+i)%len(points)]
	}
	later := make([][]Payment, len(payments)) // copies by the payment that they come after
	for i, p := range payments {
		p.KillAt = killAt[i]
		deliveries = append(deliveries, p)
		for range random.IntN(maxCopies) {
			switch {
			case p.KillAt != "":
			case random.IntN(3) > 0:
				deliveries = append(deliveries, p)
			default:
				after := i + random.IntN(len(payments)-i)
				later[after] = append(later[after], p)
			}
		}
		deliveries = append(deliveries, later[i]...)
	}
	return deliveries
}

// Transport is a queue that owns its retries, as senders of webhooks do: it posts each delivery to a
// worker, again until one acknowledges it. It is safe for concurrent use.
type Transport struct {
	Deliveries int

	queue  chan Payment
	client *http.Client

	mu       sync.Mutex
	seen     Seen
	progress Progress
}

// Seen is what a transport has seen. It is complete when all deliveries are acknowledged.
type Seen struct {
	Sent, Refused int
	Acknowledged  map[string]int // by payment
	// Unsure counts, by payment, deliveries whose handler may have run without storing its marker: the
	// process was killed, or the claim was lost.
	Unsure map[string]int
	Killed []Point // in the order of the kills
}

// Progress is how far a transport has come.
type Progress struct {
	Acknowledged int // deliveries
	// Killing is where a delivery that is under way kills its worker. It is empty once the worker runs again.
	Killing Point
}

// NewTransport returns a transport that sends deliveries in this order.
func NewTransport(deliveries []Payment) *Transport {
	t := &Transport{Deliveries: len(deliveries), queue: make(chan Payment, len(deliveries)),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		seen:   Seen{Acknowledged: map[string]int{}, Unsure: map[string]int{}}}
	for _, p := range deliveries {
		t.queue <- p
	}
	return t
}

// Deliver posts one delivery after the other to a worker until ctx ends.
func (t *Transport) Deliver(ctx context.Context, address string) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-t.queue:
			again := p
			if t.begin(p) {
				status := t.post(ctx, address, p)
				if ctx.Err() != nil {
					return
				}
				if again = t.end(p, status); status == http.StatusOK {
					continue
				}
			}
			if demo.Pause(ctx, redeliverAfter) == nil {
				t.queue <- again // never full: it has room for all deliveries
			}
		}
	}
}

// begin counts a delivery. It returns false if the delivery has to wait because another one is to kill
// its worker: the first of two in one process would end both.
func (t *Transport) begin(p Payment) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.KillAt != "" {
		if t.progress.Killing != "" {
			return false
		}
		t.progress.Killing = p.KillAt
	}
	t.seen.Sent++
	return true
}

// post returns the worker's response, and 0 if there is none because the worker was killed.
func (t *Transport) post(ctx context.Context, address string, p Payment) (status int) {
	body, err := json.Marshal(p)
	if err != nil {
		return http.StatusBadRequest
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return http.StatusBadRequest
	}
	response, err := t.client.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// end counts the response, and returns what to deliver again unless it is an acknowledgement.
func (t *Transport) end(p Payment, status int) Payment {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch status {
	case http.StatusOK:
		t.seen.Acknowledged[p.ID]++
		t.progress.Acknowledged++
	case 0, http.StatusConflict:
		t.seen.Unsure[p.ID]++
	default:
		t.seen.Refused++
	}
	switch {
	case p.KillAt == "":
	case status == 0:
		p.KillAt = "" // Restarted counts the kill, before or after this, and allows the next one
	default: // refused before it reached that point
		t.progress.Killing = ""
	}
	return p
}

// Restarted is called when the worker that killed itself runs again, maybe before its connections have ended
// here. It returns where workers were killed.
func (t *Transport) Restarted() []Point {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen.Killed = append(t.seen.Killed, t.progress.Killing)
	t.progress.Killing = ""
	return slices.Clone(t.seen.Killed)
}

// Progress returns how far the transport has come.
func (t *Transport) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress
}
