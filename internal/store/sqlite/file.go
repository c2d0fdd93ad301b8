package sqlite

import (
	"context"
	"errors"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

const fileSQL = `SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'`

// foreignKeysSQL reads a setting of the connection, which the DSN sets for all connections of a pool.
const foreignKeysSQL = `PRAGMA foreign_keys`

// CheckSettings refuses a database without a file: each connection would see its own database, and with a shared cache
// connections fail at random, because busy_timeout does not apply to its table locks. It warns if deleting a message by
// hand would keep its statuses.
func (s *Store) CheckSettings(ctx context.Context) ([]store.Warning, error) {
	files, err := store.Query(ctx, s.Pool(ctx), fileSQL, store.Value[string])
	if err != nil {
		return nil, base.Doing("read the path of the SQLite database", err)
	}
	if len(files) == 1 && files[0] == "" {
		return nil, errors.New("the SQLite database is in memory, where connections lock each other out or see a database each: use a file in WAL mode, with a DSN like " +
			"file:inbox.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate (in tests fxtest.OpenDB), " +
			"for github.com/mattn/go-sqlite3 file:inbox.db?_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate")
	}
	obeyed, err := store.Query(ctx, s.Pool(ctx), foreignKeysSQL, store.Value[bool])
	if err != nil {
		return nil, base.Doing("ask whether foreign keys are obeyed", err)
	}
	if len(obeyed) == 1 && obeyed[0] {
		return nil, nil
	}
	return []store.Warning{{Message: "inbox: SQLite's foreign keys are off: a message deleted by hand leaves its statuses behind, which can never run; " +
		"add _pragma=foreign_keys(1) to the DSN, or _foreign_keys=1 for github.com/mattn/go-sqlite3"}}, nil
}
