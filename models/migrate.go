package models

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
)

// Migrate brings the tables of naming to this module's version with the files that SQL returns, and gives them
// inboxName (contract 3.4). It is idempotent. Any number of processes may call it at once: one works, and the others
// wait for it within ctx. It also takes over tables made by the plain SQL or by AutoMigrate. It uses one transaction,
// so an error leaves nothing half done. A PostgreSQL schema that does not exist is created. Do not call it where the
// application's database user may not create tables: have another user run the SQL that SQL returns.
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

	d, err := dialects.Of(db)
	lock := "inbox migrate " + naming.Meta()
	if err == nil {
		defer release(ctx, conn, d, lock)
		err = d.BeginMigration(ctx, conn, lock)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("migrate: %w", err), end(ctx, conn, false))
	}
	err = apply(ctx, conn, d, naming, migrations, inboxName)
	return errors.Join(err, end(ctx, conn, err == nil))
}

// release gives up the migration's lock where it is the session's, or else closes the connection, which does so, too:
// in the pool it would keep the lock.
func release(ctx context.Context, conn *sql.Conn, d *dialect.Dialect, lock string) {
	if d.EndMigration == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if d.EndMigration(ctx, conn, lock) != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

func apply(
	ctx context.Context, conn *sql.Conn, d *dialect.Dialect, naming Naming, migrations []Migration, inboxName string,
) error {
	pool := d.Runs(conn)
	found, err := look(ctx, pool, d, naming)
	if err == nil && found.version == 0 {
		err = found.refuse(naming)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if found.version == 0 && naming.Schema != "" {
		if err := d.CreateSchema(ctx, conn, naming.Schema); err != nil {
			return fmt.Errorf("migrate: create schema %q: %w", naming.Schema, err)
		}
	}
	before := found.version
	for _, migration := range migrations {
		if migration.Version <= before {
			continue
		}
		for _, statement := range migration.Statements() {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				first, _, _ := strings.Cut(statement, "\n")
				return fmt.Errorf("migrate: %s: %s: %w", migration.Name, first, err)
			}
		}
	}
	if before < migrations[len(migrations)-1].Version {
		found, err = look(ctx, pool, d, naming)
	}
	if err == nil {
		err = found.check(migrations, naming)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return claimName(ctx, pool, naming, inboxName)
}

// refuse returns an error if tables without a version cannot come from an interrupted migration or from AutoMigrate.
// They are then the application's tables, and must not get the inbox's indexes.
func (f found) refuse(naming Naming) error {
	maps.DeleteFunc(f.columns, func(table string, _ []string) bool { return f.later[table] })
	if _, lacking := f.compare(naming); len(lacking) > 0 {
		return fmt.Errorf("%s: this is a table of the application or of another commit of this module: "+
			"set option TablePrefix, or drop it", strings.Join(lacking, "; "))
	}
	return nil
}

// end commits or rolls back, even if ctx has ended: the connection returns to the pool and must not carry a
// transaction.
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
