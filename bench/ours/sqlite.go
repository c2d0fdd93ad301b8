package ours

import (
	"context"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	_ "modernc.org/sqlite" // the driver "sqlite"; GORM's brings "sqlite3"

	"github.com/gorm-inbox/inbox"
)

// The SQLite drivers, without and with a C compiler.
const (
	Modernc = "sqlite"
	Mattn   = "sqlite3"
)

// parameters are the recommended, durable setup in the syntax of each driver.
var parameters = map[string]string{
	Modernc: "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_txlock=immediate",
	Mattn:   "?_journal_mode=WAL&_busy_timeout=5000&_synchronous=FULL&_foreign_keys=1&_txlock=immediate",
}

// SQLite returns a dialector for a database file.
func SQLite(driver, path string) gorm.Dialector {
	return sqlite.Dialector{DriverName: driver, DSN: "file:" + path + parameters[driver]}
}

// OpenSQLite is like Open, with one handler on a SQLite file.
func OpenSQLite(ctx context.Context, driver, path string, options ...inbox.Option) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.openOn(ctx, SQLite(driver, path), []inbox.ChannelOption{inbox.On(Type, ib.handlers(1)...)}, options...)
}
