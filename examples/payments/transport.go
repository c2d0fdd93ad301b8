package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// redeliverAfter is how long a refused delivery waits.
const redeliverAfter = 50 * time.Millisecond

// Transport is a queue that owns its retries, as senders of webhooks do: it posts each delivery to a
// worker, again until one acknowledges it. It is safe for concurrent use.
type Transport struct {
	Deliveries int

	queue  chan Payment
	client *http.Client

	mu   sync.Mutex
	seen Seen
}

// Seen is what a transport has seen so far.
type Seen struct {
	Sent, Refused int
	Acknowledged  map[string]int // by payment
	Total         int            // sum of Acknowledged
	// Unsure counts, by payment, deliveries whose handler may have run without storing its marker: the
	// process was killed, or the claim was lost.
	Unsure map[string]int
	Killed []Point // in the order of the kills
	// Killing reports that a delivery that kills is under way, or its worker has not been restarted yet.
	Killing bool
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
			if t.begin(p) {
				status := t.post(ctx, address, p)
				if ctx.Err() != nil {
					return
				}
				p = t.end(p, status)
				if status == http.StatusOK {
					continue
				}
			}
			if demo.Pause(ctx, redeliverAfter) == nil {
				t.queue <- p // never full: it has room for all deliveries
			}
		}
	}
}

// begin counts a delivery. It returns false if the delivery has to wait because another one is to kill
// its worker: the first of two in one process would end both.
func (t *Transport) begin(p Payment) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.KillAt != "" && t.seen.Killing {
		return false
	}
	t.seen.Killing = t.seen.Killing || p.KillAt != ""
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
		t.seen.Total++
	case 0, http.StatusConflict:
		t.seen.Unsure[p.ID]++
	default:
		t.seen.Refused++
	}
	switch {
	case p.KillAt == "":
	case status == 0:
		t.seen.Killed = append(t.seen.Killed, p.KillAt) // Restarted allows the next kill
		p.KillAt = ""
	default: // refused before it reached that point
		t.seen.Killing = false
	}
	return p
}

// Restarted is called when the worker that killed itself runs again. It returns where workers were killed.
func (t *Transport) Restarted() []Point {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen.Killing = false
	return slices.Clone(t.seen.Killed)
}

// Seen returns what the transport has seen so far.
func (t *Transport) Seen() Seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.seen
	seen.Acknowledged, seen.Unsure = maps.Clone(seen.Acknowledged), maps.Clone(seen.Unsure)
	seen.Killed = slices.Clone(seen.Killed)
	return seen
}
