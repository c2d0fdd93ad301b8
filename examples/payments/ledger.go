package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/idempotent"
)

// Result is everything that is left when all has ended. Nothing in it comes from a counter.
type Result struct {
	Accounts []Account
	Entries  []Entry
	Markers  []string // IDs of the payments that the store says were processed
	Calls    []string // a payment's ID for each call of the handler
}

// ReadResult reads the database, the store and the file of the handler's calls.
func ReadResult(
	ctx context.Context, db *gorm.DB, store idempotent.Store, payments []Payment, calls string,
) (r Result, err error) {
	if err := demo.Read(ctx, db, &r.Accounts, &r.Entries); err != nil {
		return r, err
	}
	for _, p := range payments {
		processed, err := store.Processed(ctx, idempotent.Key{MessageID: p.ID, HandlerKey: applyPayment})
		if err != nil {
			return r, fmt.Errorf("read markers: %w", err)
		}
		if processed {
			r.Markers = append(r.Markers, p.ID)
		}
	}
	r.Calls, err = demo.ReadLines(calls)
	return r, err
}

// Balance compares the result with the payments and with what the transport has seen. The program's doc
// comment says what each figure means. With redis, effects may happen again where the transport saw why.
func Balance(payments []Payment, result Result, seen Seen, redis bool) *demo.Ledger {
	l, sent := new(demo.Ledger), map[string]Payment{}
	for _, p := range payments {
		sent[p.ID] = p
	}
	balances, times, found, reruns := map[int]int64{}, map[string]int{}, []string{}, 0
	for _, e := range result.Entries {
		balances[e.Account] += e.Cents
		if p, known := sent[e.PaymentID]; known && (e.Account != p.Account || e.Cents != p.Cents) {
			l.Problem("%s: %d cents entered for account %d, should be %d for %d", p.ID, e.Cents, e.Account, p.Cents, p.Account)
		}
		times[e.PaymentID]++
		// One more for each delivery that ended while the handler may have run without storing its marker.
		if again := times[e.PaymentID] - 1; redis && again > 0 && again <= seen.Unsure[e.PaymentID] {
			reruns++
			continue
		}
		found = append(found, e.PaymentID)
	}
	lost, doubled := demo.Once(l, "entries", sent, found)
	l.Expect("accounts", len(result.Accounts), accounts)
	for _, a := range result.Accounts {
		if a.Balance != balances[a.ID] { // a transaction was half committed
			l.Problem("account %d: a balance of %d cents, its entries say %d", a.ID, a.Balance, balances[a.ID])
		}
	}
	demo.AtLeastOnce(l, "markers", sent, result.Markers)
	demo.AtLeastOnce(l, "acknowledgements", sent, slices.Collect(maps.Keys(seen.Acknowledged)))
	again := demo.AtLeastOnce(l, "calls", sent, result.Calls)

	l.Figure("payments", len(payments))
	l.Figure("applied", len(payments)-len(lost))
	l.Zero("lost", len(lost))
	l.Zero("doubled", doubled)
	l.Figure("duplicates", seen.Sent-len(payments))
	l.Figure("kills", len(seen.Killed))
	l.Figure("calls_again", again)
	if redis {
		l.Figure("reruns", reruns)
	}
	return l
}
