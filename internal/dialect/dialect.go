// Package dialect describes a database for the code outside of the database's folder. The descriptions are in the
// databases' folders, and package dialects finds the one for a session.
package dialect

import (
	"context"
	"database/sql"
	"embed"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

// Dialect describes a database. All dialects are values that never change.
type Dialect struct {
	// Name is the dialect's name in GORM and in models.SQL.
	Name string
	// Title is the name that people know.
	Title string
	// Classify says what an error means. It reports false for an error that is not the database's.
	Classify func(error) (Class, bool)
	// Waits says where people find what a statement that takes too long waits for.
	Waits string
	// SingleWriter reports whether one open transaction that has written keeps all others from writing,
	// but none from reading. A silent worker may then be one that waits to write.
	SingleWriter bool
	// Migrations has a directory of that name with the numbered steps of the schema.
	Migrations embed.FS
	// BeginMigration begins a transaction that one process of those that migrate these tables is in, and
	// waits for that.
	BeginMigration func(ctx context.Context, conn *sql.Conn, lock string) error
	// EndMigration gives up what BeginMigration has taken beyond the transaction; nil where that is nothing.
	EndMigration func(ctx context.Context, conn *sql.Conn, lock string) error
	// Quote stands around names in the plain SQL that people run; "" is the standard's double quote.
	Quote string
	// CreateSchema creates a schema unless it exists; nil where there are none.
	CreateSchema func(ctx context.Context, conn *sql.Conn, schema string) error
	// ColumnsSQL lists the columns of the tables that exist, given by their names without and with schema
	// and prefix: the former name, the column, and whether the table is of a later schema of the search
	// path than that in which a new one would be. It cannot fail: that might abort the caller's
	// transaction.
	ColumnsSQL func(tables map[string]string, schema string) string
	// Columns are what ColumnsSQL lists of this schema besides the models' columns, by the tables' names without schema
	// and prefix. Tables without them are not the inbox's.
	Columns map[string][]string
	// PlaceSQL returns, for people, which database this is, and the schemas in which tables are found without
	// naming one; "" where there are no schemas.
	PlaceSQL string
	// InboxesSQL lists up to limit inboxes of the database: schema, prefix, and whether their names may be read.
	// It cannot fail for lack of rights.
	InboxesSQL func(limit int) string
	// Now is the current time of the database's clock, where it has one, and NoTime a time that is NULL.
	Now, NoTime string
	// Identity is the type of a column whose values the database assigns; "" where it assigns none to a
	// column that is not the primary key.
	Identity string
	// Returning says that an UPDATE of GORM's may return columns, and that its upsert may have a condition.
	Returning bool
	// Isolations are the levels that transactions can have, besides sql.LevelDefault.
	Isolations []sql.IsolationLevel
	// Stated is the level that a transaction states if its caller wants sql.LevelDefault, because the
	// role or the database may have any default.
	Stated sql.IsolationLevel
	// GapLocks says that statements at the server's default level lock what they do not find, too.
	GapLocks bool
	// WithoutJIT are statements after which no statement of the transaction is compiled to machine code.
	WithoutJIT []string
	// Pool returns a pool that takes the statements of all databases and runs them in this one's form; nil where that
	// is the same.
	Pool func(gorm.ConnPool) gorm.ConnPool
	// Syntax is how to find out what a statement does with transactions.
	Syntax *txcontrol.Syntax
	// RolledBack reports whether the failure of a statement has rolled back the whole transaction, so that further
	// statements would be committed one by one. It may run a statement to find out. It is nil where a failed statement
	// aborts the transaction, and the server itself refuses further statements.
	RolledBack func(failure error, run func(statement string) error) bool
	// CommitsByStatement is for a database where a refused commit leaves the transaction open and some
	// drivers do not roll it back.
	CommitsByStatement bool
}

// RefusedIsolation returns which levels transactions can have if level is none of them, and nothing otherwise.
func (d *Dialect) RefusedIsolation(level sql.IsolationLevel) (allowed string) {
	if level == sql.LevelDefault || slices.Contains(d.Isolations, level) {
		return ""
	}
	names := []string{sql.LevelDefault.String()}
	for _, level := range d.Isolations {
		names = append(names, level.String())
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Quoted returns a name for plain SQL.
func (d *Dialect) Quoted(name string) string {
	quoted := columns.Quote(name)
	if d.Quote == "" {
		return quoted
	}
	return strings.ReplaceAll(quoted, `"`, d.Quote)
}

// Runs returns a pool for statements of all databases.
func (d *Dialect) Runs(pool gorm.ConnPool) gorm.ConnPool {
	if d.Pool == nil {
		return pool
	}
	return d.Pool(pool)
}

// Session returns a session of db, or in its transaction, for statements of all databases. db itself stays as it is.
func (d *Dialect) Session(db *gorm.DB) *gorm.DB {
	if d.Pool == nil {
		return db
	}
	db = db.Session(&gorm.Session{NewDB: true, Context: db.Statement.Context}) // with a context it has its own statement
	db.Statement.ConnPool = d.Pool(db.Statement.ConnPool)
	return db
}

// Class is a set of properties of a database's error.
type Class uint16

// The classes of an error. Package store documents most of them where it asks.
const (
	Transient     Class = 1 << iota // the same call may succeed later
	OfStatement                     // though transient, the statement or its caller is the cause
	Lost                            // the connection ended
	Crash                           // because another process of the server crashed
	Busy                            // another connection had locked the file
	TimedOut                        // the statement took too long
	Unknown                         // a commit may have taken place in spite of it
	Refused                         // a commit has certainly not taken place
	Data                            // the data is at fault
	Duplicate                       // by a unique index
	Serialization                   // the whole transaction may succeed when it runs again
	Snapshot                        // which does not occur under READ COMMITTED
	ReadOnly                        // the session is read-only
)

// Has reports whether all of these are true.
func (c Class) Has(all Class) bool { return c&all == all }
