package sqltest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// Load fills the messages and statuses of an inbox on PostgreSQL with these statements, a million
// rows in seconds. Tables are unlogged and their pages filled completely, and indexes and the
// foreign key from statuses to messages are built afterwards. The tables are not analysed.
func Load(t testing.TB, db *gorm.DB, statements ...string) {
	t.Helper()
	exec := func(statement string) {
		t.Helper()
		require.NoError(t, db.Exec(statement).Error, statement)
	}
	var indexes []struct{ Indexname, Indexdef string }
	require.NoError(t, db.Raw(`SELECT indexname, indexdef FROM pg_indexes
		WHERE tablename IN ('inbox_messages', 'inbox_handler_statuses') AND indexname NOT LIKE '%_pkey'`).Scan(&indexes).Error)
	var reference string
	require.NoError(t,
		db.Raw(`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'inbox_handler_statuses_message_fk'`).Scan(&reference).Error)

	exec(`ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`)
	for _, index := range indexes {
		exec(`DROP INDEX ` + index.Indexname)
	}
	exec(`ALTER TABLE inbox_messages SET UNLOGGED`)
	exec(`ALTER TABLE inbox_handler_statuses SET UNLOGGED`)
	exec(`ALTER TABLE inbox_handler_statuses SET (fillfactor = 100)`)
	for _, statement := range statements {
		exec(statement)
	}
	for _, index := range indexes {
		exec(index.Indexdef)
	}
	exec(`ALTER TABLE inbox_handler_statuses ADD CONSTRAINT inbox_handler_statuses_message_fk ` + reference)
}
