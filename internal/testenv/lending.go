package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// Main is for a package's TestMain. It runs the tests, checks for leaked goroutines, and lets the
// package's tests reuse databases. Creating a database takes a tenth of a second. Dropping one
// takes up to a second, because PostgreSQL first writes its buffers to the disk. Emptying one takes
// a few milliseconds.
func Main(m *testing.M, options ...goleak.Option) {
	databases.keep()
	goleak.VerifyTestMain(m, append(options, goleak.Cleanup(func(code int) {
		if err := databases.dropAll(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))...)
}

// databases are the databases that this process has made.
var databases lending

// lending keeps empty databases for the next test, by the DSN of their server. Unless keep was
// called, it drops them as soon as no test uses any, because the process may end after each test.
type lending struct {
	mu    sync.Mutex
	kept  bool
	inUse int
	free  map[string][]string
}

func (l *lending) keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = true
}

// take returns the name of an empty database, if there is one.
func (l *lending) take(server string) (name string, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse++
	if free := l.free[server]; len(free) > 0 {
		last := len(free) - 1
		name, l.free[server] = free[last], free[:last]
		return name, true
	}
	return "", false
}

// giveBack returns a database that its test no longer uses. If empty is false, the database is
// dropped instead of reused.
func (l *lending) giveBack(server, name string, empty bool) error {
	l.mu.Lock()
	l.inUse--
	if empty {
		if l.free == nil {
			l.free = map[string][]string{}
		}
		l.free[server] = append(l.free[server], name)
	}
	end := l.inUse == 0 && !l.kept
	l.mu.Unlock()
	if !empty {
		return administer(server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	}
	if end {
		return l.dropAll()
	}
	return nil
}

// dropAll drops the databases that no test uses.
func (l *lending) dropAll() error {
	l.mu.Lock()
	free := l.free
	l.free = nil
	l.mu.Unlock()
	for server, names := range free {
		for _, name := range names {
			if err := administer(server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
				return err
			}
		}
	}
	return nil
}

// onDatabase returns the server's DSN with the name of a database.
func onDatabase(server, name string) (string, error) {
	address, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("%s must be a postgres:// URL: %w", PostgresVariable, err)
	}
	address.Path = "/" + name
	return address.String(), nil
}

// empty terminates the connections that killed processes left on a database, and makes the database
// like a new one. It reports false if it cannot, because settings, extensions and other objects
// outside of schemas were left.
func empty(dsn string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return false, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
		return false, err
	}
	var schemas string
	var more int
	err = db.QueryRowContext(ctx, `SELECT
		(SELECT string_agg(format('DROP SCHEMA %I CASCADE;', nspname), ' ') FROM pg_namespace WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'),
		(SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = current_database())
		+ (SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql') + (SELECT count(*) FROM pg_event_trigger)
		+ (SELECT count(*) FROM pg_largeobject_metadata) + (SELECT count(*) FROM pg_publication)
		+ (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())`).Scan(&schemas, &more)
	if err != nil || more > 0 {
		return false, err
	}
	_, err = db.ExecContext(ctx, schemas+
		`CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC`)
	return err == nil, err
}
