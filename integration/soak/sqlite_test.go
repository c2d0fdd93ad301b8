package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// The write lock has the process that is frozen because of it, and no other.
func TestWriterOfAFileIsTheProcessThatHasItsWriteLock(t *testing.T) {
	shared := &file{path: filepath.Join(t.TempDir(), "inbox.db")}
	require.Zero(t, shared.writer(), "there is no file")
	db, err := workload.OpenSQL(shared.DSN())
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, workload.CreateTables(t.Context(), db))
	require.Zero(t, shared.writer())
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), shared.writer())
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	require.Zero(t, shared.writer())
}
