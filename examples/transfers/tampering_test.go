package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/internal/demotest"
)

// book books transfers in this process, without workers, kills or failures.
func book(t *testing.T, server string) (db *gorm.DB, judge func() *demo.Ledger) {
	t.Helper()
	env := demotest.Environment(t, command.Name, server)
	bank, err := env.Database(t.Context(), "bank")
	require.NoError(t, err)
	transfers := MakeTransfers(100, accounts, env.Random)
	for i := range transfers {
		transfers[i].Failures = 0
	}
	opening := OpeningBalance(len(transfers), accounts)
	require.NoError(t, OpenAccounts(t.Context(), bank.DB, accounts, opening))
	producer, err := NewProducer(t.Context(), bank.DB, env.Random)
	require.NoError(t, err)
	require.NoError(t, producer.Send(t.Context(), transfers))
	require.NoError(t, producer.Send(t.Context(), transfers)) // all of them again: known, so nothing changes

	file := env.File("calls.log")
	calls, err := demo.OpenLines(file)
	require.NoError(t, err)
	defer calls.Close()
	ib, err := NewInbox(bank.DB, &Bank{worker: "test", calls: calls}, 10, zap.NewNop())
	require.NoError(t, err)
	_, err = ib.ProcessPending(t.Context())
	require.NoError(t, err)
	return bank.DB, func() *demo.Ledger {
		result, err := ReadResult(t.Context(), bank.DB, file)
		require.NoError(t, err)
		return Balance(transfers, Replay(transfers, accounts, opening), result, 0)
	}
}

func TestTamperedTablesAreDetected(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		db, judge := book(t, server)
		require.Empty(t, judge().Problems)
		// Each is found, and undone before the next.
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
				done := db.Exec(statement)
				require.NoError(t, done.Error, tampering.what)
				require.Positive(t, done.RowsAffected, tampering.what)
			}
			ledger := judge()
			require.False(t, ledger.Balanced(), tampering.what)
			require.Equal(t, []int{tampering.lost, tampering.doubled, tampering.outOfOrder},
				demotest.Counts(ledger, "lost", "doubled", "out_of_order"), tampering.what)
			if tampering.undo == nil {
				continue
			}
			for _, statement := range tampering.undo {
				require.NoError(t, db.Exec(statement).Error, tampering.what)
			}
			require.Empty(t, judge().Problems, tampering.what)
		}
	})
}
