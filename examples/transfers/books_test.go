package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
)

// bookHere books transfers in this process, without workers, kills or failures,
// in tables of a place.
func bookHere(t *testing.T, server string) (place *scratch.Place, judge func() *Ledger) {
	t.Helper()
	scratchtest.Temporary(t)
	place, err := program.Place(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, place.Close(t.Context(), true)) })
	transfers := MakeTransfers(100, accounts, rand.New(rand.NewPCG(4, 4)))
	for i := range transfers {
		transfers[i].Failures = 0
	}
	opening := OpeningBalance(len(transfers), accounts)
	require.NoError(t, OpenAccounts(t.Context(), place.DB, accounts, opening))
	producer, err := NewProducer(t.Context(), place.DB, rand.New(rand.NewPCG(4, 4)))
	require.NoError(t, err)
	require.NoError(t, producer.Send(t.Context(), transfers))
	require.NoError(t, producer.Send(t.Context(), transfers)) // all of them again: known, so nothing changes

	calls, err := scratch.OpenCalls(place.File(callsFile))
	require.NoError(t, err)
	defer calls.Close()
	ib, err := NewInbox(place.DB, &Bank{worker: "test", calls: calls}, 10, zap.NewNop())
	require.NoError(t, err)
	_, err = ib.ProcessPending(t.Context())
	require.NoError(t, err)
	return place, func() *Ledger {
		books, err := ReadBooks(t.Context(), place)
		require.NoError(t, err)
		return Balance(transfers, accounts, opening, books, 0)
	}
}

func TestTamperedTablesAreNoticed(t *testing.T) {
	scratchtest.OnBoth(t, func(t *testing.T, server string) {
		place, judge := bookHere(t, server)
		require.Empty(t, judge().Problems)
		// Each is found and taken back before the next.
		for _, tampering := range []struct {
			what                      string
			do, undo                  []string
			lost, doubled, outOfOrder int
		}{
			{
				what: "a booking is lost",
				do:   []string{"UPDATE journal_entries SET transfer_id = 'gone' WHERE transfer_id = 'transfer-000005'"},
				undo: []string{"UPDATE journal_entries SET transfer_id = 'transfer-000005' WHERE transfer_id = 'gone'"},
				lost: 1,
			},
			{
				what: "a booking is doubled",
				do: []string{"INSERT INTO journal_entries (transfer_id, account, position, refused, worker) " +
					"SELECT transfer_id, account, position, refused, 'twice' FROM journal_entries WHERE transfer_id = 'transfer-000005'"},
				undo:    []string{"DELETE FROM journal_entries WHERE worker = 'twice'"},
				doubled: 1,
			},
			{
				what:       "an account's first booking moves to its end",
				do:         []string{"UPDATE journal_entries SET id = id + 1000000 WHERE account = 1 AND position = 1"},
				undo:       []string{"UPDATE journal_entries SET id = id - 1000000 WHERE id > 1000000"},
				outOfOrder: 1,
			},
			{
				what: "a posting is gone",
				do:   []string{"UPDATE postings SET account = -account WHERE transfer_id = 'transfer-000001'"},
				undo: []string{"UPDATE postings SET account = -account WHERE transfer_id = 'transfer-000001'"},
			},
			{
				what: "a status is pending again",
				do:   []string{"UPDATE inbox_handler_statuses SET completed_at = NULL, outcome = '' WHERE message_id = 'transfer-000007'"},
			},
		} {
			for _, statement := range tampering.do {
				done := place.DB.Exec(statement)
				require.NoError(t, done.Error, tampering.what)
				require.Positive(t, done.RowsAffected, tampering.what)
			}
			ledger := judge()
			require.Equal(t, scratch.Unbalanced, status(ledger), tampering.what)
			require.Equal(t, [3]int{tampering.lost, tampering.doubled, tampering.outOfOrder},
				[3]int{ledger.Lost, ledger.Doubled, ledger.OutOfOrder}, tampering.what)
			if tampering.undo == nil {
				continue
			}
			for _, statement := range tampering.undo {
				require.NoError(t, place.DB.Exec(statement).Error, tampering.what)
			}
			require.Empty(t, judge().Problems, tampering.what)
		}
	})
}
