package main

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
	"github.com/gorm-inbox/inbox/models"
)

const accounts = 10

// perfect makes the books of workers that did everything right.
func perfect(n int) (transfers []Transfer, opening int64, b Books) {
	transfers = MakeTransfers(n, accounts, rand.New(rand.NewPCG(1, 1)))
	opening = OpeningBalance(n, accounts)
	replay := NewReplay(transfers, accounts, opening)
	for id := 1; id <= accounts; id++ {
		b.Accounts = append(b.Accounts, replay.Accounts[id])
	}
	for _, t := range transfers {
		b.Messages, b.Calls = append(b.Messages, t.ID), append(b.Calls, t.ID)
		b.Statuses = append(b.Statuses, Status{MessageID: t.ID, HandlerKey: applyTransfer, Completed: true,
			ErrorCount: t.Failures, Outcome: models.OutcomeProcessed})
		b.Journal = append(b.Journal, JournalEntry{TransferID: t.ID, Account: t.From, Position: t.Number,
			Refused: replay.Refused[t.ID]})
		if !replay.Refused[t.ID] {
			b.Postings = append(b.Postings, Posting{TransferID: t.ID, Account: t.From, Cents: -t.Cents},
				Posting{TransferID: t.ID, Account: t.To, Cents: t.Cents})
		}
	}
	return transfers, opening, b
}

func status(ledger *Ledger) int { return command.Verdict(ledger, nil, io.Discard, io.Discard) }

func TestPerfectBooksBalance(t *testing.T) {
	transfers, opening, books := perfect(500)
	ledger := Balance(transfers, accounts, opening, books, 3)
	require.Empty(t, ledger.Problems)
	require.Equal(t, scratch.Balanced, status(ledger))
	require.Positive(t, ledger.Refused)
	require.Positive(t, ledger.Retried)
	var out bytes.Buffer
	require.Equal(t, scratch.Unbalanced, command.Verdict(ledger, errors.New("worker-1 stopped with exit status 1"), &out,
		io.Discard))
	require.Equal(t, "expected: 500\neffects: 500\nlost: 0\ndoubled: 0\nout_of_order: 0\nkills: 3\nreruns: 0\n",
		out.String())
}

// sameAccount finds the second journal entry of the first one's account.
func sameAccount(b *Books) int {
	for i, entry := range b.Journal[1:] {
		if entry.Account == b.Journal[0].Account {
			return i + 1
		}
	}
	panic("one entry only")
}

func swap(b *Books, i, j int) { b.Journal[i], b.Journal[j] = b.Journal[j], b.Journal[i] }

func TestBrokenBooksAreNoticed(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(b *Books)
		says   string
		counts [3]int // lost, doubled, out of order
	}{
		"a message is missing": {func(b *Books) { b.Messages = b.Messages[1:] }, "0 messages", [3]int{}},
		"a message is there twice": {func(b *Books) {
			b.Messages = append(b.Messages, b.Messages[0])
		}, "2 messages", [3]int{}},
		"a message nobody made": {func(b *Books) {
			b.Messages = append(b.Messages, "x")
		}, `messages of a transfer "x"`, [3]int{}},
		"a status is missing": {func(b *Books) { b.Statuses = b.Statuses[1:] }, "0 statuses", [3]int{}},
		"a status is there twice": {func(b *Books) {
			b.Statuses = append(b.Statuses, b.Statuses[0])
		}, "2 statuses", [3]int{}},
		"a status of another handler": {func(b *Books) { b.Statuses[0].HandlerKey = "x" }, `handler "x"`, [3]int{}},
		"a status is pending":         {func(b *Books) { b.Statuses[0].Completed = false }, "not completed", [3]int{}},
		"a status is still claimed":   {func(b *Books) { b.Statuses[0].Claimed = true }, "still claimed", [3]int{}},
		"a status was discarded": {func(b *Books) {
			b.Statuses[0].Outcome = models.OutcomeDiscarded
		}, "not completed", [3]int{}},
		"a transfer is not booked": {func(b *Books) { b.Journal = b.Journal[1:] }, "lost: 1", [3]int{1, 0, 0}},
		"a transfer is booked twice": {func(b *Books) {
			b.Journal = append(b.Journal, b.Journal[0])
		}, "doubled: 1", [3]int{0, 1, 0}},
		"two are booked in disorder": {func(b *Books) { swap(b, 0, sameAccount(b)) }, "out of order: 1", [3]int{0, 0, 1}},
		"a transfer nobody made": {func(b *Books) {
			b.Journal[0].TransferID = "x"
		}, `a transfer "x" that nobody made`, [3]int{1, 0, 0}},
		"a transfer at a wrong place": {func(b *Books) { b.Journal[0].Position = 9 }, "booked as number 9", [3]int{}},
		"a transfer on a wrong lane": {func(b *Books) {
			b.Journal[0].Account++
		}, "booked as number 1 of account", [3]int{}},
		"a transfer refused for none": {func(b *Books) {
			b.Journal[0].Refused = true
		}, "refused is true, should be false", [3]int{}},
		"a posting is missing": {func(b *Books) { b.Postings = b.Postings[1:] }, "has 0 postings", [3]int{}},
		"a posting is there twice": {func(b *Books) {
			b.Postings = append(b.Postings, b.Postings[0])
		}, "has 2 postings", [3]int{}},
		"a wrong amount is posted": {func(b *Books) { b.Postings[0].Cents-- }, "that it does not say", [3]int{}},
		"money comes from nowhere": {func(b *Books) {
			b.Postings[1].Cents++
		}, "1 cents more than at the start", [3]int{}},
		"a posting of nobody's": {func(b *Books) {
			b.Postings = append(b.Postings, Posting{TransferID: "x"})
		}, "transfer x: a posting", [3]int{}},
		"an account has too much":      {func(b *Books) { b.Accounts[0].Available++ }, "account 1: ", [3]int{}},
		"an account missed a transfer": {func(b *Books) { b.Accounts[0].Transfers-- }, "account 1: ", [3]int{}},
		"an account is overdrawn":      {func(b *Books) { b.Accounts[0].Available = -1 }, "overdrawn by 1 cents", [3]int{}},
		"an account is missing": {func(b *Books) {
			b.Accounts = b.Accounts[1:]
		}, "accounts: 9, should be 10", [3]int{}},
		"an account nobody opened": {func(b *Books) { b.Accounts[0].ID = 99 }, "account 99: nobody opened it", [3]int{}},
		"a booking without a call": {func(b *Books) { b.Calls = b.Calls[1:] }, "never called", [3]int{}},
		"a call for nobody's transfer": {func(b *Books) {
			b.Calls = append(b.Calls, "x")
		}, `a call for a transfer "x"`, [3]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			transfers, opening, books := perfect(500)
			broken.breaks(&books)
			ledger := Balance(transfers, accounts, opening, books, 0)
			require.Equal(t, scratch.Unbalanced, status(ledger))
			require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
			require.Equal(t, broken.counts, [3]int{ledger.Lost, ledger.Doubled, ledger.OutOfOrder})
		})
	}
}

func TestRepeatedCallsAreShownAndForgiven(t *testing.T) {
	transfers, opening, books := perfect(100)
	books.Calls = append(books.Calls, books.Calls[0], books.Calls[0])
	ledger := Balance(transfers, accounts, opening, books, 1)
	require.Equal(t, 2, ledger.Reruns)
	require.Equal(t, scratch.Balanced, status(ledger))
}

func TestManyProblemsArePrintedShort(t *testing.T) {
	transfers, opening, books := perfect(100)
	books.Messages = nil
	ledger := Balance(transfers, accounts, opening, books, 0)
	scratchtest.RequireProblemsShort(t, ledger.Problems, ledger.Print, "lost: 0")
}

// Refusals are what makes the end depend on the order: with two transfers of
// an account exchanged, another one is refused.
func TestReplayDependsOnTheOrder(t *testing.T) {
	transfers := []Transfer{{ID: "a", From: 1, To: 2, Cents: 70, Number: 1},
		{ID: "b", From: 1, To: 2, Cents: 60, Number: 2}}
	require.Equal(t, map[string]bool{"b": true}, NewReplay(transfers, 2, 100).Refused)
	require.Equal(t, map[int]int64{1: 30, 2: 170}, NewReplay(transfers, 2, 100).Balances)
	transfers[0], transfers[1] = transfers[1], transfers[0]
	require.Equal(t, map[string]bool{"a": true}, NewReplay(transfers, 2, 100).Refused)
}
