package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/fx"
	// GORM's own dialect of SQLite, gorm.io/driver/sqlite, compiles SQLite's C code although the pure Go driver is used:
	// a quarter of the first build. This one is the same dialect over modernc.org/sqlite alone.
	"github.com/libtnb/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the driver "sqlite", pure Go: no C compiler needed
)

// sqliteParameters make SQLite durable (FULL), let readers run beside the one writer (WAL), and have
// a transaction wait for the write lock when it begins (immediate) instead of failing later.
const sqliteParameters = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
	"&_pragma=foreign_keys(1)&_txlock=immediate"

// sqlitePrefix distinguishes a SQLite DSN from one of PostgreSQL.
const sqlitePrefix = "file:"

// connections is the size of the pool that a run reads its databases with.
const connections = 15

// Database is a SQLite file, a schema or database of PostgreSQL, or a database of MySQL or MariaDB.
type Database struct {
	DSN string // for Open in other processes
	DB  *gorm.DB
}

// server is how a run gets a place of its own on a server.
type server struct {
	noun         string
	create, drop string
	dsn          func(server, name string) (string, error)
}

func (e *Environment) server() server {
	switch {
	case OnMySQL(e.Server):
		return server{"MySQL database", "CREATE DATABASE %s", "DROP DATABASE %s", withDatabase}
	case e.Apart:
		return server{"PostgreSQL database", "CREATE DATABASE %s", "DROP DATABASE %s WITH (FORCE)", withDatabase}
	}
	return server{"PostgreSQL schema", "CREATE SCHEMA %s", "DROP SCHEMA %s CASCADE", withSearchPath}
}

// Database creates an empty database, which Close removes.
func (e *Environment) Database(ctx context.Context, name string) (*Database, error) {
	d := &Database{DSN: sqliteDSN(e.File(name + ".db"))}
	if e.Server != "" {
		of, created := e.server(), e.Name+"_"+name+"_"+e.Run
		var err error
		if d.DSN, err = of.dsn(e.Server, created); err != nil {
			return nil, err
		}
		if err := execute(ctx, e.Server, fmt.Sprintf(of.create, created)); err != nil {
			return nil, err
		}
		e.created = append(e.created, created)
		e.Cleanup(func(ctx context.Context, keep bool) error {
			if keep {
				return nil
			}
			return execute(ctx, e.Server, fmt.Sprintf(of.drop, created))
		})
	}
	var err error
	if d.DB, err = Open(d.DSN, connections); err != nil {
		return nil, err
	}
	e.Cleanup(func(context.Context, bool) error { return Close(d.DB) })
	return d, nil
}

// withDatabase names another database in a DSN.
func withDatabase(dsn, name string) (string, error) {
	if !OnMySQL(dsn) {
		return withPostgresDatabase(dsn, name)
	}
	config, err := driver.ParseDSN(dsn)
	if err != nil {
		return "", errors.New("the MySQL DSN is invalid") // the DSN may hold a password
	}
	config.DBName = name
	return config.FormatDSN(), nil
}

func withPostgresDatabase(dsn, name string) (string, error) {
	return changed(dsn, " dbname="+name, func(address *url.URL) { address.Path = "/" + name })
}

// withSearchPath makes connections see the schema's tables only.
func withSearchPath(dsn, schema string) (string, error) {
	return changed(dsn, " search_path="+schema, func(address *url.URL) {
		query := address.Query()
		query.Set("search_path", schema)
		address.RawQuery = query.Encode()
	})
}

// changed returns a DSN of PostgreSQL with a change: a URL, or settings, of which the last one of a name counts.
func changed(dsn, setting string, change func(address *url.URL)) (string, error) {
	if !strings.Contains(dsn, "://") {
		return dsn + setting, nil
	}
	address, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the PostgreSQL DSN is not a URL") // the DSN may hold a password
	}
	change(address)
	return address.String(), nil
}

func execute(ctx context.Context, dsn, statement string) error {
	db, err := Open(dsn, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return errors.Join(db.WithContext(ctx).Exec(statement).Error, Close(db))
}

// sqliteDSN returns the DSN of a SQLite file. Several processes may have it open at once.
func sqliteDSN(file string) string {
	path := url.URL{Path: filepath.ToSlash(file)} // escaped: # or ? would end it
	return sqlitePrefix + path.EscapedPath() + sqliteParameters
}

// OnSQLite reports whether a DSN names a SQLite file.
func OnSQLite(dsn string) bool { return strings.HasPrefix(dsn, sqlitePrefix) }

// OnMySQL reports whether a DSN names a MySQL or MariaDB.
func OnMySQL(dsn string) bool {
	_, err := driver.ParseDSN(dsn)
	return err == nil && !OnSQLite(dsn)
}

// Open opens a pool of at most that many connections, which stay open, on the DSN of a Database.
// GORM logs nothing: it returns all its errors. Close closes the pool.
func Open(dsn string, connections int) (*gorm.DB, error) {
	dialector := postgres.Open(dsn)
	switch {
	case OnMySQL(dsn):
		config, err := driver.ParseDSN(dsn)
		if err != nil {
			return nil, fmt.Errorf("open database: %w", err)
		}
		// Times are read and written as UTC. Without interpolation each statement with arguments takes two round trips.
		config.ParseTime, config.Loc, config.InterpolateParams = true, time.UTC, true
		dialector = mysql.Open(config.FormatDSN())
	case OnSQLite(dsn):
		pool, err := sql.Open("sqlite", dsn) // sqlite.Open would add parameters to the DSN
		if err != nil {
			return nil, fmt.Errorf("open database: %w", err)
		}
		dialector = sqlite.New(sqlite.Config{Conn: pool})
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	return db, nil
}

// OpenIn opens the database of an Fx application, which closes it when it has stopped, and creates the
// application's own tables. The pool is large enough for an inbox's default Concurrency of 10.
func OpenIn(lc fx.Lifecycle, dsn string, tables ...any) (*gorm.DB, error) {
	db, err := Open(dsn, 20)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(func() error { return Close(db) }))
	if err := db.AutoMigrate(tables...); err != nil {
		return nil, fmt.Errorf("create the application's tables: %w", err)
	}
	return db, nil
}

// Close closes a database's pool.
func Close(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}
