package models

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// Migrate brings the tables of naming to this module's version with the files that SQL returns, and
// gives them inboxName (contract 3.4). It is idempotent. Any number of processes may call it at
// once: one works, and the others wait for it within ctx. It also takes over tables made by the
// plain SQL or by AutoMigrate. It uses one transaction, so an error leaves nothing half done. A
// PostgreSQL schema that does not exist is created. Do not call it where the application's database
// user may not create tables: have another user run the SQL that SQL returns.
func Migrate(ctx context.Context, db *gorm.DB, naming Naming, inboxName string) error {
	migrations, err := migrationsOf(db, naming)
	if err != nil {
		return err
	}
	pool, err := db.Session(&gorm.Session{NewDB: true, Context: ctx}).DB()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	// Use a dedicated connection: database/sql's transactions cannot do BEGIN IMMEDIATE.
	conn, err := pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer conn.Close()

	begin := beginPostgres
	if db.Dialector.Name() == "sqlite" {
		begin = beginSQLite
	}
	if err := begin(ctx, conn, naming); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	err = apply(ctx, conn, db.Dialector.Name(), naming, migrations, inboxName)
	return errors.Join(err, end(ctx, conn, err == nil))
}

func apply(
	ctx context.Context, conn *sql.Conn, dialect string, naming Naming, migrations []Migration, inboxName string,
) error {
	found, err := look(ctx, conn, dialect, naming)
	if err == nil && found.version == 0 {
		err = found.refuse(naming)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if dialect == "postgres" && found.version == 0 && naming.Schema != "" {
		if err := createSchema(ctx, conn, naming); err != nil {
			return err
		}
	}
	for _, migration := range migrations {
		if migration.Version <= found.version {
			continue
		}
		for _, statement := range migration.Statements() {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				first, _, _ := strings.Cut(statement, "\n")
				return fmt.Errorf("migrate: %s: %s: %w", migration.Name, first, err)
			}
		}
	}
	if found, err = look(ctx, conn, dialect, naming); err == nil {
		err = found.check(migrations, naming)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return claimName(ctx, conn, naming, inboxName)
}

// refuse returns an error if tables without a version are not those that an interrupted migration, or AutoMigrate,
// leaves: they are the application's own, and would get the indexes of the inbox's.
func (f found) refuse(naming Naming) error {
	maps.DeleteFunc(f.columns, func(table string, _ []string) bool { return f.later[table] })
	if _, lacking := f.compare(naming); len(lacking) > 0 {
		return fmt.Errorf("%s: this is a table of the application or of another commit of this module: "+
			"set option TablePrefix, or drop it", strings.Join(lacking, "; "))
	}
	return nil
}

// createSchema checks for the schema first, because CREATE SCHEMA IF NOT EXISTS needs the privilege
// even if there is nothing to create.
func createSchema(ctx context.Context, conn *sql.Conn, naming Naming) error {
	_, found, err := one[int](ctx, conn, `SELECT 1 FROM pg_namespace WHERE nspname = $1`, naming.Schema)
	if err == nil && !found {
		_, err = conn.ExecContext(ctx, `CREATE SCHEMA `+columns.Quote(naming.Schema))
	}
	if err != nil {
		return fmt.Errorf("migrate: create schema %q: %w", naming.Schema, err)
	}
	return nil
}

// beginPostgres begins a transaction and waits for an advisory lock. The lock ends with the
// transaction, so nothing of it stays on a pooled connection, and the server ends the transaction if
// we vanish. With READ COMMITTED, the work of the previous holder is visible after the wait.
func beginPostgres(ctx context.Context, conn *sql.Conn, naming Naming) error {
	if _, err := conn.ExecContext(ctx, `BEGIN ISOLATION LEVEL READ COMMITTED`); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = '1min'`); err != nil {
		return errors.Join(err, end(ctx, conn, false))
	}
	key := fnv.New64a()
	key.Write([]byte("inbox migrate " + naming.Meta()))
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(key.Sum64())); err != nil {
		return errors.Join(err, end(ctx, conn, false))
	}
	return nil
}

// beginSQLite takes the write lock before it reads anything, so that no snapshot is outdated when
// it is written from. It retries on a busy database until ctx ends, for a minute at most, whatever
// the connection's busy_timeout is.
func beginSQLite(ctx context.Context, conn *sql.Conn, _ Naming) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
		if err == nil {
			return nil
		}
		text := strings.ToLower(err.Error())
		if !strings.Contains(text, "locked") && !strings.Contains(text, "busy") {
			return err
		}
		if !routine.Sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// end commits or rolls back, even if ctx has ended meanwhile: the connection returns to the pool
// and must not carry a transaction.
func end(ctx context.Context, conn *sql.Conn, commit bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	statement := `ROLLBACK`
	if commit {
		statement = `COMMIT`
	}
	_, err := conn.ExecContext(ctx, statement)
	switch {
	case err == nil:
		return nil
	case commit:
		_, _ = conn.ExecContext(ctx, `ROLLBACK`)
		return fmt.Errorf("migrate: commit: %w", err)
	default:
		// The server rolls back by itself when the connection closes.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		return nil
	}
}
