package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

// transportOf sends payments, and ends with the test.
func transportOf(t *testing.T, payments []Payment, kills ...order) *Transport {
	t.Helper()
	transport, err := NewTransport(payments, kills)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, transport.Close()) })
	return transport
}

// consume consumes with one consumer until all are acknowledged or it dies; kill
// must end its goroutine, as it would end the process.
func consume(t *testing.T, transport *Transport, total int, handle handleFunc, kill func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var consuming sync.WaitGroup
	consuming.Go(func() {
		if err := Consume(ctx, transport.Address(), handle, kill); err != nil {
			t.Error(err)
		}
	})
	require.Eventually(t, func() bool { return transport.Seen().Total == total }, 2*time.Minute, time.Millisecond)
	cancel()
	consuming.Wait()
}

func TestWhatIsRefusedComesAgain(t *testing.T) {
	payments := []Payment{{ID: "a"}, {ID: "b"}}
	transport := transportOf(t, payments)
	calls := map[string]int{}
	consume(t, transport, 2, func(_ context.Context, p Payment) error {
		calls[p.ID]++
		switch {
		case p.ID == "a" && calls["a"] == 1:
			return errors.New("not\nnow")
		case p.ID == "a" && calls["a"] == 2:
			return idempotent.ErrLost
		}
		return nil
	}, nil)
	require.Equal(t, map[string]int{"a": 3, "b": 1}, calls)
	seen := transport.Seen()
	require.Equal(t, map[string]int{"a": 1, "b": 1}, seen.Acknowledged)
	require.Equal(t, 1, seen.Refused)
	require.Equal(t, map[string]int{"a": 1}, seen.Unsure, "a lost claim may have had its effects")
	require.Equal(t, 4, seen.Sent)
}

func TestWhatADyingConsumerHadComesAgain(t *testing.T) {
	payments := []Payment{{ID: "a"}, {ID: "b"}}
	transport := transportOf(t, payments, order{after: 1, at: beforeBody}, order{after: 1, at: afterAll})
	handled := map[string]int{}
	handle := func(_ context.Context, p Payment) error {
		handled[p.ID]++
		return nil
	}
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		died := make(chan struct{})
		var consuming sync.WaitGroup
		consuming.Go(func() {
			// Panics stand for deaths: the connection ends.
			defer func() { _ = recover() }()
			_ = Consume(ctx, transport.Address(), handle, func() { close(died); panic("dead") })
		})
		if i < 2 {
			<-died
			consuming.Wait()
			require.Eventually(t, func() bool { return len(transport.Seen().Killed) == i+1 }, 2*time.Minute, time.Millisecond)
			require.True(t, transport.Seen().Killing)
			transport.Buried()
			require.False(t, transport.Seen().Killing)
		} else {
			require.Eventually(t, func() bool { return transport.Seen().Total == 2 }, 2*time.Minute, time.Millisecond)
		}
		cancel()
		consuming.Wait()
	}
	seen := transport.Seen()
	require.Equal(t, []Point{beforeBody, afterAll}, seen.Killed)
	require.Equal(t, map[string]int{"a": 2}, seen.Unsure)
	require.Equal(t, map[string]int{"a": 2, "b": 1}, handled, "handled before the second death, and after it")
}

func TestKillsInTheHandlerAreForPaymentsThatMayReachIt(t *testing.T) {
	transport := transportOf(t, nil, order{after: 1, at: inBody})
	transport.state.Sent, transport.state.Acknowledged["a"], transport.out["d"] = 5, 1, 1
	require.Empty(t, transport.sendOut(Payment{ID: "a"}), "has been handled")
	require.Empty(t, transport.sendOut(Payment{ID: "d"}), "a copy of it is out")
	require.Equal(t, inBody, transport.sendOut(Payment{ID: "b"}))
	require.Empty(t, transport.sendOut(Payment{ID: "c"}), "one at a time")
	transport.queue = []Payment{{ID: "b"}, {ID: "e"}}
	next, ok := transport.take()
	require.True(t, ok)
	require.Equal(t, "e", next.Payment.ID, "no copy of a payment that is to kill is sent out")
	transport.settle(Delivery{Payment{ID: "b"}, inBody}, refused)
	require.Equal(t, inBody, transport.sendOut(Payment{ID: "f"}), "b was refused")
	transport.settle(Delivery{Payment{ID: "f"}, inBody}, dying)
	require.True(t, transport.pending, "until the process has ended")
}
