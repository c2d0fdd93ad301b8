package main

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/models"
)

const accounts = 10

// perfect returns transfers, and the result of workers that did everything right.
func perfect(n int) (transfers []Transfer, r Result) {
	transfers = MakeTransfers(n, accounts, rand.New(rand.NewPCG(1, 1)))
	r = Replay(transfers, accounts, OpeningBalance(n, accounts))
	for _, t := range transfers {
		r.Calls = append(r.Calls, t.ID)
	}
	return transfers, r
}

func judge(transfers []Transfer, result Result, kills int) *demo.Ledger {
	return Balance(transfers, Replay(transfers, accounts, OpeningBalance(len(transfers), accounts)), result, kills)
}

func TestPerfectResultBalances(t *testing.T) {
	transfers, result := perfect(500)
	ledger := judge(transfers, result, 3)
	require.Empty(t, ledger.Problems)
	var out bytes.Buffer
	ledger.Print(&out)
	require.Equal(t, "expected: 500\neffects: 500\nlost: 0\ndoubled: 0\nout_of_order: 0\nkills: 3\nreruns: 0\n",
		out.String())
}

func TestReplayRefusesSomeAndKeepsTheTotal(t *testing.T) {
	_, r := perfect(500)
	refused, total := 0, int64(0)
	for _, entry := range r.Journal {
		if entry.Refused {
			refused++
		}
	}
	for _, p := range r.Postings {
		total += p.Cents
	}
	for _, a := range r.Accounts {
		require.GreaterOrEqual(t, a.Available, int64(0), "overdrawn")
	}
	require.Positive(t, refused)
	require.Less(t, refused, 500)
	require.Zero(t, total)
}

// sameAccount finds the second journal entry of the first one's account.
func sameAccount(r *Result) int {
	for i, entry := range r.Journal[1:] {
		if entry.Account == r.Journal[0].Account {
			return i + 1
		}
	}
	panic("one entry only")
}

func swap(r *Result, i, j int) { r.Journal[i], r.Journal[j] = r.Journal[j], r.Journal[i] }

func TestBrokenResultsAreDetected(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(r *Result)
		says   string
		counts []int // lost, doubled, out of order
	}{
		"a message is missing": {func(r *Result) { r.Messages = r.Messages[1:] }, "messages: 0", []int{0, 0, 0}},
		"a message is there twice": {func(r *Result) {
			r.Messages = append(r.Messages, r.Messages[0])
		}, "messages: 2", []int{0, 0, 0}},
		"a message of no transfer": {func(r *Result) {
			r.Messages = append(r.Messages, demo.Message{ID: "x"})
		}, `messages of unknown "x"`, []int{0, 0, 0}},
		"a status is missing": {func(r *Result) { r.Statuses = r.Statuses[1:] }, "statuses: 0", []int{0, 0, 0}},
		"a status is there twice": {func(r *Result) {
			r.Statuses = append(r.Statuses, r.Statuses[0])
		}, "statuses: 2", []int{0, 0, 0}},
		"a status of another handler": {func(r *Result) { r.Statuses[0].HandlerKey = "x" }, `x: completed"`, []int{0, 0, 0}},
		"a status is pending":         {func(r *Result) { r.Statuses[0].Completed = false }, ": pending", []int{0, 0, 0}},
		"a status is still claimed":   {func(r *Result) { r.Statuses[0].Claimed = true }, "still claimed", []int{0, 0, 0}},
		"a status was discarded": {func(r *Result) {
			r.Statuses[0].Outcome = models.OutcomeDiscarded
		}, ": discarded", []int{0, 0, 0}},
		"a transfer is not booked": {func(r *Result) { r.Journal = r.Journal[1:] }, "lost: 1", []int{1, 0, 0}},
		"a transfer is booked twice": {func(r *Result) {
			r.Journal = append(r.Journal, r.Journal[0])
		}, "doubled: 1", []int{0, 1, 0}},
		"two are booked out of order": {func(r *Result) { swap(r, 0, sameAccount(r)) }, "out_of_order: 1", []int{0, 0, 1}},
		"an unknown transfer is booked": {func(r *Result) {
			r.Journal[0].TransferID = "x"
		}, `journal entries of unknown "x"`, []int{1, 0, 0}},
		"a transfer at a wrong place": {func(r *Result) { r.Journal[0].Position = 9 }, "number 9 of account", []int{0, 0, 0}},
		"a transfer on a wrong lane": {func(r *Result) {
			r.Journal[0].Account++
		}, `bookings of unknown "transfer-000001`, []int{0, 0, 0}},
		"a transfer is refused wrongly": {func(r *Result) {
			r.Journal[0].Refused = true
		}, "refused: true", []int{0, 0, 0}},
		"a posting is missing": {func(r *Result) { r.Postings = r.Postings[1:] }, "postings: 0", []int{0, 0, 0}},
		"a posting is there twice": {func(r *Result) {
			r.Postings = append(r.Postings, r.Postings[0])
		}, "postings: 2", []int{0, 0, 0}},
		"a wrong amount is posted": {func(r *Result) { r.Postings[0].Cents-- }, `postings of unknown "transfer-000001`, []int{0, 0, 0}},
		"the total grows": {func(r *Result) {
			r.Postings[1].Cents++
		}, `postings of unknown "transfer-000001`, []int{0, 0, 0}},
		"a posting of no transfer": {func(r *Result) {
			r.Postings = append(r.Postings, Posting{TransferID: "x"})
		}, `postings of unknown "x`, []int{0, 0, 0}},
		"an account has too much":      {func(r *Result) { r.Accounts[0].Available++ }, "account 1: ", []int{0, 0, 0}},
		"an account missed a transfer": {func(r *Result) { r.Accounts[0].Transfers-- }, "account 1: ", []int{0, 0, 0}},
		"an account is overdrawn":      {func(r *Result) { r.Accounts[0].Available = -1 }, "account 1: -1 cents", []int{0, 0, 0}},
		"an account is missing": {func(r *Result) {
			r.Accounts = r.Accounts[1:]
		}, "accounts: 0", []int{0, 0, 0}},
		"an account that was never opened": {func(r *Result) { r.Accounts[0].ID = 99 }, `accounts of unknown "account 99`, []int{0, 0, 0}},
		"a booking without a call":         {func(r *Result) { r.Calls = r.Calls[1:] }, "no calls", []int{0, 0, 0}},
		"a call for no transfer": {func(r *Result) {
			r.Calls = append(r.Calls, "x")
		}, `calls of unknown "x"`, []int{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			transfers, result := perfect(500)
			broken.breaks(&result)
			ledger := judge(transfers, result, 0)
			require.Contains(t, strings.Join(ledger.Problems, "\n"), broken.says)
			require.Equal(t, broken.counts, demotest.Counts(ledger, "lost", "doubled", "out_of_order"))
		})
	}
}

func TestRepeatedCallsAreCountedAndAllowed(t *testing.T) {
	transfers, result := perfect(100)
	result.Calls = append(result.Calls, result.Calls[0], result.Calls[0])
	ledger := judge(transfers, result, 1)
	require.Equal(t, 2, ledger.Count("reruns"))
	require.True(t, ledger.Balanced())
}

// Refusals make the result depend on the order: with two transfers of an account exchanged, another one
// is refused.
func TestReplayDependsOnTheOrder(t *testing.T) {
	transfers := []Transfer{{ID: "a", From: 1, To: 2, Cents: 70, Number: 1},
		{ID: "b", From: 1, To: 2, Cents: 60, Number: 2}}
	paid := func(r Result) (all []string) {
		for _, p := range r.Postings {
			all = append(all, p.String())
		}
		return all
	}
	require.Equal(t, []string{"a: -70 cents for account 1", "a: 70 cents for account 2"}, paid(Replay(transfers, 2, 100)))
	require.Equal(t, Account{ID: 1, Available: 30, Transfers: 2}, Replay(transfers, 2, 100).Accounts[0])
	transfers[0], transfers[1] = transfers[1], transfers[0]
	require.Equal(t, []string{"b: -60 cents for account 1", "b: 60 cents for account 2"}, paid(Replay(transfers, 2, 100)))
}
