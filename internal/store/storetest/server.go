package storetest

import (
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// Server are the means of a database server that tests of concurrency use besides the store.
type Server interface {
	// Waiting returns how many sessions wait for a lock, or are stopped by Hold.
	Waiting(db *gorm.DB) (int, error)
	// Hold stops each statement of an event until release is called. The statement has then written and not committed.
	// It is safe to call release twice.
	Hold(db *gorm.DB, event Event) (release func() error, err error)
	// Lock locks the rows of a table that fulfill a condition, as FOR UPDATE does.
	Lock(tx *gorm.DB, table, where string) error
	// LockWorker takes the lock that claims of a worker share: shared, or for the transaction alone.
	LockWorker(tx *gorm.DB, workerID string, shared bool) error
	// Survive has the server end the other transaction where this one is in a deadlock.
	Survive(tx *gorm.DB) error
	// Terminate ends the session of a transaction.
	Terminate(db, tx *gorm.DB) error
	// Evicts reports whether EvictHolders finds sessions. Elsewhere it ends none.
	Evicts() bool
	// DropTrigger returns the statement that drops a trigger of a table.
	DropTrigger(name, table string) string
	// CreatesInPartitions reports whether GORM can create messages in partitions.
	CreatesInPartitions() bool
}

// Event is what statements do to a table.
type Event struct {
	Statement string // INSERT or UPDATE
	Table     string
	// Sets is a column that becomes true in a row, empty for any statement.
	Sets string
}

// postgres implements Server. With the portable profile claims share the worker's row, and EvictHolders finds nothing.
type postgres struct{ portable bool }

func onPostgres(*gorm.DB) Server { return postgres{} }

func (postgres) Waiting(db *gorm.DB) (waiting int, err error) {
	return waiting, db.Raw(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting).Error
}

// Hold has a trigger wait for an advisory lock.
func (postgres) Hold(db *gorm.DB, event Event) (release func() error, err error) {
	each := `FOR EACH STATEMENT`
	if event.Sets != "" {
		each = fmt.Sprintf(`FOR EACH ROW WHEN (NEW.%[1]s AND NOT OLD.%[1]s)`, event.Sets)
	}
	gate := db.Begin()
	err = gate.Error
	for _, statement := range []string{
		`CREATE OR REPLACE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$`,
		fmt.Sprintf(`CREATE OR REPLACE TRIGGER hold AFTER %s ON %s %s EXECUTE FUNCTION hold()`, event.Statement, event.Table,
			each),
	} {
		if err == nil {
			err = db.Exec(statement).Error
		}
	}
	if err == nil {
		err = gate.Exec(`SELECT pg_advisory_xact_lock(42)`).Error
	}
	if err != nil {
		return nil, errors.Join(err, gate.Rollback().Error)
	}
	return func() error { return gate.Rollback().Error }, nil
}

func (postgres) Lock(tx *gorm.DB, table, where string) error {
	return tx.Exec(`SELECT 1 FROM ` + table + ` WHERE ` + where + ` FOR UPDATE`).Error
}

func (p postgres) LockWorker(tx *gorm.DB, workerID string, shared bool) error {
	switch {
	case p.portable && shared:
		return tx.Exec(`SELECT 1 FROM inbox_workers WHERE id = ?::uuid FOR KEY SHARE`, workerID).Error
	case p.portable:
		return tx.Exec(`SELECT 1 FROM inbox_workers WHERE id = ?::uuid FOR UPDATE`, workerID).Error
	case shared:
		return tx.Exec(`SELECT pg_advisory_xact_lock_shared(hashtextextended(?, 0))`, workerID).Error
	}
	return tx.Exec(`SELECT pg_advisory_xact_lock(hashtextextended(?, 0))`, workerID).Error
}

// Survive never detects deadlocks on this side.
func (postgres) Survive(tx *gorm.DB) error { return tx.Exec(`SET LOCAL deadlock_timeout = '1h'`).Error }

func (p postgres) Evicts() bool { return !p.portable }

func (postgres) DropTrigger(name, table string) string {
	return fmt.Sprintf("DROP TRIGGER %s ON %s", name, table)
}

func (postgres) CreatesInPartitions() bool { return true }

func (postgres) Terminate(db, tx *gorm.DB) error {
	var pid int
	if err := tx.Raw(`SELECT pg_backend_pid()`).Scan(&pid).Error; err != nil {
		return err
	}
	return db.Exec(`SELECT pg_terminate_backend(?)`, pid).Error
}
