package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	modernc "modernc.org/sqlite" // the "sqlite" driver, in Go
)

// The driver of MySQL would print a line for each lost connection, besides its error.
func init() { _ = driver.SetLogger(&driver.NopLogger{}) }

// isMySQL reports whether a DSN names a MySQL or MariaDB.
func isMySQL(dsn string) bool {
	_, err := driver.ParseDSN(dsn)
	return err == nil
}

// isSQLite reports whether a DSN names a SQLite file.
func isSQLite(dsn string) bool { return strings.HasPrefix(dsn, "file:") }

// OpenSQL opens a pool for the test's own statements.
func OpenSQL(dsn string) (*sql.DB, error) {
	switch {
	case isSQLite(dsn):
		return sql.Open("sqlite", dsn+"&_time_format=sqlite") // which compares with the inbox's times as text
	case isMySQL(dsn):
		return sql.Open("mysql", dsn)
	}
	return sql.Open("pgx", dsn)
}

// Open opens a session whose pool is large enough for a worker.
func Open(dsn string) (*gorm.DB, error) {
	dialector := postgres.Open(dsn)
	switch {
	case isSQLite(dsn):
		dialector = sqlite.Dialector{DriverName: "sqlite", DSN: dsn}
	case isMySQL(dsn):
		dialector = mysql.Open(dsn)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(); err != nil { // GORM's own would leave the pool open
		return nil, errors.Join(err, pool.Close())
	}
	pool.SetMaxOpenConns(40)
	pool.SetMaxIdleConns(20)
	return db, nil
}

// OnMySQL reports whether a pool is one of MySQL or MariaDB.
func OnMySQL(db *sql.DB) bool {
	_, found := db.Driver().(*driver.MySQLDriver)
	return found
}

// OnSQLite reports whether a pool is one of SQLite.
func OnSQLite(db *sql.DB) bool {
	_, found := db.Driver().(*modernc.Driver)
	return found
}

// product names the statements of a pool's server.
func product(db *sql.DB) string {
	switch {
	case OnSQLite(db):
		return "sqlite"
	case OnMySQL(db):
		return "mysql"
	}
	return "postgres"
}

var parameter = regexp.MustCompile(`\$(\d+)`)

// Text returns a statement whose parameters $1, $2 and so on stand in this order, as the pool's server takes it.
func Text(db *sql.DB, statement string) string {
	switch product(db) {
	case "sqlite":
		return parameter.ReplaceAllString(statement, "?$1")
	case "mysql":
		return strings.ReplaceAll(parameter.ReplaceAllString(statement, "?"), `"`, "`")
	}
	return statement
}

// list returns n parameters, the first of which has the number from.
func list(from, n int) string {
	parameters := make([]string, n)
	for i := range parameters {
		parameters[i] = fmt.Sprintf("$%d", from+i)
	}
	return strings.Join(parameters, ", ")
}

// each runs a query and calls scan for each of its rows.
func each(ctx context.Context, db *sql.DB, scan func(*sql.Rows) error, query string, arguments ...any) error {
	rows, err := db.QueryContext(ctx, Text(db, query), arguments...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// schema has the tables that handlers write to. There is no constraint that could hide a second
// effect. The column at of steps is in the order of the inserts.
var schema = map[string][]string{
	"postgres": {`
CREATE TABLE IF NOT EXISTS effects (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`, `
CREATE TABLE IF NOT EXISTS runs (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, step text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`, `
CREATE TABLE IF NOT EXISTS steps (at bigserial PRIMARY KEY, handler text NOT NULL, lane text NOT NULL, n integer NOT NULL, pid integer NOT NULL)`,
	},
	"mysql": {`
CREATE TABLE IF NOT EXISTS effects (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))`, `
CREATE TABLE IF NOT EXISTS runs (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, step text NOT NULL, at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))`, `
CREATE TABLE IF NOT EXISTS steps (at bigint AUTO_INCREMENT PRIMARY KEY, handler text NOT NULL, lane text NOT NULL, n integer NOT NULL, pid integer NOT NULL)`,
	},
	"sqlite": {`
CREATE TABLE IF NOT EXISTS effects (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, at text NOT NULL DEFAULT (strftime('%F %H:%M:%f+00:00')))`, `
CREATE TABLE IF NOT EXISTS runs (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, step text NOT NULL, at text NOT NULL DEFAULT (strftime('%F %H:%M:%f+00:00')))`, `
CREATE TABLE IF NOT EXISTS steps (at integer PRIMARY KEY AUTOINCREMENT, handler text NOT NULL, lane text NOT NULL, n integer NOT NULL, pid integer NOT NULL)`,
	},
}

// CreateTables makes the tables that handlers write to.
func CreateTables(ctx context.Context, db *sql.DB) error {
	for _, table := range schema[product(db)] {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return fmt.Errorf("create the handlers' tables: %w", err)
		}
	}
	return nil
}

// history keeps what cleanup deletes, in the transaction that deletes it. The ledger reads the views, so it also finds
// what was deleted too early and stored anew.
var history = map[string][]string{
	"postgres": {`
CREATE TABLE deleted_messages (LIKE inbox_messages)`, `
CREATE INDEX ON deleted_messages (id)`, `
CREATE TABLE deleted_statuses (LIKE inbox_handler_statuses)`, `
CREATE FUNCTION keep_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s SELECT ($1).*', TG_ARGV[0]) USING OLD;
	RETURN NULL;
END $$`, `
CREATE TRIGGER keep_deleted AFTER DELETE ON inbox_messages
	FOR EACH ROW EXECUTE FUNCTION keep_deleted('deleted_messages')`, `
CREATE TRIGGER keep_deleted AFTER DELETE ON inbox_handler_statuses
	FOR EACH ROW EXECUTE FUNCTION keep_deleted('deleted_statuses')`,
	},
	// The tables have the columns without keys and rules. A foreign key that deletes statuses runs no triggers, so the
	// message's keeps them.
	"mysql": {`
CREATE TABLE deleted_messages AS SELECT * FROM inbox_messages WHERE false`, `
CREATE INDEX by_id ON deleted_messages (id(200))`, `
CREATE TABLE deleted_statuses AS SELECT * FROM inbox_handler_statuses WHERE false`, `
CREATE TRIGGER keep_deleted_messages BEFORE DELETE ON inbox_messages FOR EACH ROW BEGIN
	INSERT INTO deleted_messages SELECT * FROM inbox_messages WHERE number = OLD.number;
	INSERT INTO deleted_statuses SELECT * FROM inbox_handler_statuses WHERE message_number = OLD.number;
END`, `
CREATE TRIGGER keep_deleted_statuses BEFORE DELETE ON inbox_handler_statuses FOR EACH ROW
	INSERT INTO deleted_statuses (%s) VALUES (%s)`,
	},
	// A foreign key that deletes statuses runs their trigger.
	"sqlite": {`
CREATE TABLE deleted_messages AS SELECT * FROM inbox_messages WHERE false`, `
CREATE INDEX deleted_by_id ON deleted_messages (id)`, `
CREATE TABLE deleted_statuses AS SELECT * FROM inbox_handler_statuses WHERE false`, `
CREATE TRIGGER keep_deleted_messages BEFORE DELETE ON inbox_messages BEGIN
	INSERT INTO deleted_messages SELECT * FROM inbox_messages WHERE number = OLD.number;
END`, `
CREATE TRIGGER keep_deleted_statuses BEFORE DELETE ON inbox_handler_statuses BEGIN
	INSERT INTO deleted_statuses SELECT * FROM inbox_handler_statuses
		WHERE message_number = OLD.message_number AND handler_key = OLD.handler_key;
END`,
	},
}

// ofPartitions keeps all rows as they are, because no trigger sees what goes with a partition. What a partition's end
// has moved is inserted once more.
var ofPartitions = []string{`
CREATE TABLE known_messages (LIKE inbox_messages, PRIMARY KEY (number))`, `
CREATE INDEX ON known_messages (id)`, `
CREATE TABLE known_statuses (LIKE inbox_handler_statuses, PRIMARY KEY (message_number, handler_key))`, `
CREATE FUNCTION know_message() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO known_messages SELECT (NEW).* ON CONFLICT DO NOTHING;
	RETURN NULL;
END $$`, `
CREATE FUNCTION know_status() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	DELETE FROM known_statuses WHERE message_number = NEW.message_number AND handler_key = NEW.handler_key;
	INSERT INTO known_statuses SELECT (NEW).*;
	RETURN NULL;
END $$`, `
CREATE TRIGGER know_message AFTER INSERT ON inbox_parted_messages FOR EACH ROW EXECUTE FUNCTION know_message()`, `
CREATE TRIGGER know_status AFTER INSERT OR UPDATE ON inbox_parted_handler_statuses FOR EACH ROW EXECUTE FUNCTION know_status()`, `
CREATE VIEW deleted_messages AS SELECT * FROM known_messages k
	WHERE NOT EXISTS (SELECT FROM inbox_messages m WHERE m.number = k.number)`, `
CREATE VIEW deleted_statuses AS SELECT * FROM known_statuses k
	WHERE NOT EXISTS (SELECT FROM inbox_handler_statuses s WHERE s.message_number = k.message_number AND s.handler_key = k.handler_key)`}

var views = []string{`
CREATE VIEW all_messages AS SELECT * FROM inbox_messages UNION ALL SELECT * FROM deleted_messages`, `
CREATE VIEW all_statuses AS SELECT * FROM inbox_handler_statuses UNION ALL SELECT * FROM deleted_statuses`, `
CREATE VIEW job_messages AS SELECT * FROM all_messages WHERE type = '` + JobType + `'`, `
CREATE VIEW job_statuses AS SELECT * FROM all_statuses WHERE handler_key IN ('` + EffectKey + `', '` + RunKey + `')`}

// KeepDeleted prepares the inbox's tables, which exist, for the ledger.
func KeepDeleted(ctx context.Context, db *sql.DB) error {
	return keep(ctx, db, history[product(db)])
}

// KeepDropped is KeepDeleted for partitioned tables on PostgreSQL.
func KeepDropped(ctx context.Context, db *sql.DB) error { return keep(ctx, db, ofPartitions) }

func keep(ctx context.Context, db *sql.DB, history []string) error {
	statements := slices.Concat(history, views)
	var columns, old []string
	if OnMySQL(db) {
		err := each(ctx, db, func(rows *sql.Rows) error {
			var name string
			err := rows.Scan(&name)
			columns, old = append(columns, "`"+name+"`"), append(old, "OLD.`"+name+"`")
			return err
		}, `SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'inbox_handler_statuses'
			ORDER BY ordinal_position`)
		if err != nil {
			return fmt.Errorf("keep what cleanup deletes: %w", err)
		}
	}
	for _, statement := range statements {
		if strings.Contains(statement, "(%s)") {
			statement = fmt.Sprintf(statement, strings.Join(columns, ", "), strings.Join(old, ", "))
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("keep what cleanup deletes: %w", err)
		}
	}
	return nil
}

// askTimeout limits one query of the watch of offsets.
const askTimeout = 5 * time.Second
