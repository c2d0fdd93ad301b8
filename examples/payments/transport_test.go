package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

// deliverHere delivers payments to a worker in this process until all are acknowledged.
func deliverHere(t *testing.T, payments []Payment, worker http.Handler, meanwhile func(*Transport)) Seen {
	t.Helper()
	server := httptest.NewServer(worker)
	defer server.Close()
	transport := NewTransport(payments)
	ctx, cancel := context.WithCancel(t.Context())
	var delivering sync.WaitGroup
	delivering.Go(func() { transport.Deliver(ctx, server.URL) })
	meanwhile(transport)
	require.Eventually(t, func() bool { return transport.Progress().Acknowledged == len(payments) }, 2*time.Minute,
		time.Millisecond)
	cancel()
	delivering.Wait()
	return transport.seen
}

func TestRefusedDeliveryIsRepeated(t *testing.T) {
	calls := map[string]int{} // one delivery at a time
	worker := Receiver(func(_ context.Context, p Payment) error {
		calls[p.ID]++
		switch {
		case p.ID == "a" && calls["a"] == 1:
			return errors.New("not now")
		case p.ID == "a" && calls["a"] == 2:
			return idempotent.ErrLost
		}
		return nil
	})
	seen := deliverHere(t, []Payment{{ID: "a"}, {ID: "b"}}, worker, func(*Transport) {})
	require.Equal(t, map[string]int{"a": 3, "b": 1}, calls)
	require.Equal(t, Seen{Sent: 4, Refused: 1, Acknowledged: map[string]int{"a": 1, "b": 1},
		Unsure: map[string]int{"a": 1}}, seen, "a lost claim may have had its effects")
}

func TestDeliveryToAKilledWorkerIsRepeated(t *testing.T) {
	receive := Receiver(func(context.Context, Payment) error { return nil })
	worker := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte("kill_at")) {
			panic(http.ErrAbortHandler) // the connection ends, as when the process is killed
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		receive.ServeHTTP(w, r)
	}
	seen := deliverHere(t, []Payment{{ID: "a", KillAt: inHandler}, {ID: "b", KillAt: afterMarker}, {ID: "c"}},
		http.HandlerFunc(worker), func(transport *Transport) {
			for i, point := range []Point{inHandler, afterMarker} {
				require.Eventually(t, func() bool { return transport.Progress().Killing == point }, 2*time.Minute,
					time.Millisecond, "the next kill waits for the restart")
				require.Equal(t, point, transport.Restarted()[i])
			}
		})
	require.Equal(t, Seen{Sent: 5, Acknowledged: map[string]int{"a": 1, "b": 1, "c": 1},
		Unsure: map[string]int{"a": 1, "b": 1}, Killed: []Point{inHandler, afterMarker}}, seen)
}

func TestRefusedDeliveryKillsWhenRepeated(t *testing.T) {
	transport := NewTransport(nil)
	kill := Payment{ID: "a", KillAt: inHandler}
	require.True(t, transport.begin(kill))
	require.False(t, transport.begin(Payment{ID: "b", KillAt: inHandler}), "one at a time")
	require.True(t, transport.begin(Payment{ID: "c"}))
	require.Equal(t, kill, transport.end(kill, http.StatusInternalServerError), "it has not killed yet")
	require.Empty(t, transport.Progress().Killing)
	require.True(t, transport.begin(kill))
	require.Equal(t, Payment{ID: "a"}, transport.end(kill, 0), "it kills once")
	require.Equal(t, inHandler, transport.Progress().Killing)
	require.Equal(t, []Point{inHandler}, transport.Restarted())
	require.Empty(t, transport.Progress().Killing)
}

func TestKillIsCountedEvenIfTheWorkerRestartsFirst(t *testing.T) {
	transport := NewTransport(nil)
	first, second := Payment{ID: "a", KillAt: inHandler}, Payment{ID: "b", KillAt: afterMarker}
	require.True(t, transport.begin(first))
	require.Equal(t, []Point{inHandler}, transport.Restarted())
	require.True(t, transport.begin(second))
	require.Equal(t, Payment{ID: "a"}, transport.end(first, 0))
	require.Equal(t, afterMarker, transport.Progress().Killing, "the second is under way")
	require.Equal(t, Payment{ID: "b"}, transport.end(second, 0))
	require.Equal(t, []Point{inHandler, afterMarker}, transport.Restarted())
}
