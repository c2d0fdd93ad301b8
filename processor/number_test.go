package processor_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Contract 4.1: accepted messages run. SQLite leaves foreign keys off by default, so deleting a
// message by hand leaves its pending status. That status must not get in the way of a later
// message.
func TestDeletedMessageNumberIsNotReused(t *testing.T) {
	db := testenv.OpenSQLite(t, "file:"+filepath.Join(t.TempDir(), "inbox.db")+
		"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=foreign_keys(0)"+
		"&_journal_mode=WAL&_foreign_keys=0&_txlock=immediate")
	ran := make(chan string, 10)
	ib := inboxtest.New(t, db, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("a",
		func(_ context.Context, m inboxtest.Bytes) error {
			ran <- m.ID
			return nil
		})))
	inboxtest.Accept(t, ib, "old")
	inboxtest.Exec(t, db, "DELETE FROM inbox_messages WHERE id = 'old'")
	accepted, err := ib.Accept(t.Context(), inboxtest.Message("new"))
	require.NoError(t, err)
	require.Len(t, accepted, 1)
	numbers := map[string]int64{}
	for _, s := range inboxtest.Statuses(t, ib) {
		numbers[s.MessageID] = s.MessageNumber
	}
	require.Greater(t, numbers["new"], numbers["old"])

	inboxtest.Start(t, ib)
	require.Equal(t, "new", inboxtest.Receive(t, ran, "the message accepted last"))
	require.NoError(t, ib.Stop(t.Context()))
	require.Empty(t, ran, "nothing runs without its message")
}
