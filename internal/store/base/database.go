// Package base has the common parts of the stores of all dialects: the methods of which only the statements differ, how
// table names get into a statement, the algorithm of accepting, and the scanning of rows. Only the dialects use it.
package base

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/session"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
	"github.com/gorm-inbox/inbox/models"
)

// Database is what both dialects run their statements on.
type Database struct {
	DB        *gorm.DB
	naming    models.Naming
	latest    string
	names     *atomic.Pointer[names]
	Isolation *sql.TxOptions // of transactions; nil on SQLite
	Singles   store.Singles
}

// names puts the tables' names, and the words of a dialect's profile, into statements.
type names struct {
	*strings.Replacer
	schema string
	words  []string // each followed by its text
	texts  sync.Map // statement with placeholders, alone or with a bound → without them
}

// NewDatabase checks the arguments of a new store. It does not access the database.
func NewDatabase(db *gorm.DB, naming models.Naming, isolation *sql.TxOptions, options store.Options) (Database, error) {
	of, err := dialects.Of(db)
	if err == nil {
		_, err = models.SQL(of.Name, naming)
	}
	if err != nil {
		return Database{}, fmt.Errorf("store: %w", err)
	}
	if inTransaction(db) {
		return Database{}, errors.New("store: the database session is inside a transaction")
	}
	if err := session.Check(db); err != nil {
		return Database{}, fmt.Errorf("store: %w", err)
	}
	latest := of.Now
	if options.TestClock {
		latest = of.NoTime
	}
	db = db.Session(&gorm.Session{NewDB: true}) // no inherited clauses, no dry run
	db = of.Session(db)
	d := Database{DB: db, naming: naming, latest: latest, names: new(atomic.Pointer[names]), Singles: store.NewSingles(db),
		Isolation: isolation}
	d.names.Store(d.namesIn(naming.Schema, nil))
	return d, nil
}

// Within returns the database with all statements in a transaction that is open.
func (d Database) Within(tx *gorm.DB) Database {
	if of, err := dialects.Of(tx); err == nil {
		tx = of.Session(tx)
	}
	d.DB, d.Singles = tx, store.NewSingles(tx)
	return d
}

// namesIn returns the names of the tables in a schema, or as the search path finds them if schema is empty.
func (d Database) namesIn(schema string, words []string) *names {
	naming := d.naming
	naming.Schema = schema
	also := func(name string) string {
		return columns.Quote(strings.TrimSuffix(naming.Messages(), "messages") + name)
	}
	tables := []string{
		"{plain messages}", columns.Quote(naming.Messages()),
		"{plain statuses}", columns.Quote(naming.HandlerStatuses()),
		"{parted messages}", also("parted_messages"),
		"{parted statuses}", also("parted_handler_statuses"),
		"{message ids}", also("message_ids"),
		"{lane holders}", also("lane_holders"),
		"{rejected}", columns.Quote(naming.RejectedMessages()),
		"{gaps}", columns.Quote(naming.Gaps()),
		"{requests}", columns.Quote(naming.PartitionRequests()),
		"{worker requests}", columns.Quote(naming.Requests()),
		"{partitions}", columns.Quote(naming.Partitions()),
		"{locks}", columns.Quote(naming.Locks()),
		"{workers}", columns.Quote(naming.Workers()),
		"{worker locks}", also("worker_locks"),
		"{handlers}", columns.Quote(naming.Handlers()),
		"{markers}", columns.Quote(naming.Markers()),
		"{audit}", columns.Quote(naming.Audit()),
		"{meta}", columns.Quote(naming.Meta()),
		// Each table has its own channel, under any schema or search path.
		"{channel}", "('inbox_' || '" + columns.Quote(naming.HandlerStatuses()) + "'::regclass::oid)",
		"{latest}", d.latest,
	}
	// The first of two words that are alike counts.
	all := append(append(slices.Clone(words), layoutWords...), tables...)
	filled := strings.NewReplacer(all...)
	for i := 1; i < len(all); i += 2 { // the text of a word may have words, which name tables
		all[i] = filled.Replace(filled.Replace(all[i]))
	}
	return &names{schema: schema, words: words, Replacer: strings.NewReplacer(all...)}
}

// layoutWords are parts of statements in the plain layout, which SetWords may replace. {ids} has the ID, namespace and
// number of each message that accepts know.
var layoutWords = []string{"{messages}", "{plain messages}", "{statuses}", "{plain statuses}", "{ids}", "{plain messages}",
	"{of known ID}", ""}

// SetWords makes all later statements have these texts in place of words in braces. Each word is followed by its text.
func (d Database) SetWords(words ...string) {
	for {
		n := d.names.Load()
		if d.names.CompareAndSwap(n, d.namesIn(n.schema, words)) {
			return
		}
	}
}

// KeepSchema makes all later statements name the schema that query returns: where the search path of pool's session
// finds the tables. If query returns several schemas, or one whose name Naming does not allow, statements go on without
// a schema.
func (d Database) KeepSchema(ctx context.Context, pool gorm.ConnPool, query string) error {
	if d.naming.Schema != "" {
		return nil
	}
	schemas, err := store.Query(ctx, pool, d.namesIn("", nil).Replace(query), store.Value[string])
	if err != nil || len(schemas) != 1 || (models.Naming{Schema: schemas[0]}).Validate() != nil {
		return Doing("find the tables' schema", err)
	}
	for {
		n := d.names.Load()
		if d.names.CompareAndSwap(n, d.namesIn(schemas[0], n.words)) {
			return nil
		}
	}
}

// Text returns a statement with the tables' names filled in, from a cache after the first call.
func (d Database) Text(statement string) string {
	n := d.names.Load()
	if text, ok := n.texts.Load(statement); ok {
		return text.(string)
	}
	text := n.Replace(statement)
	n.texts.Store(statement, text)
	return text
}

// TextWithin is Text with a number of rows for {most}.
func (d Database) TextWithin(statement string, limit int) string {
	type bounded struct {
		statement string
		limit     int
	}
	key, n := bounded{statement, limit}, d.names.Load()
	if text, ok := n.texts.Load(key); ok {
		return text.(string)
	}
	text := strings.ReplaceAll(n.Replace(statement), "{most}", strconv.Itoa(limit))
	n.texts.Store(key, text)
	return text
}

// Pool returns a pool that runs statements outside of transactions.
func (d Database) Pool(ctx context.Context) gorm.ConnPool {
	return d.Singles.Pool(ctx)
}

// Transaction commits work's writes, unless work fails or panics. MayBeCommitted classifies its errors.
func (d Database) Transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	worked := false
	err := pgxtx.Session(d.DB.WithContext(ctx), pgxtx.ByDeadline).Transaction(func(tx *gorm.DB) error {
		err := work(tx.Statement.ConnPool)
		worked = err == nil
		return err
	}, d.Isolation)
	store.RenewSessions(d.DB, err)
	if err = store.WithContextError(ctx, err); err != nil && worked {
		return store.FailedCommit(err)
	}
	return err
}

// Joined returns the pool of the caller's transaction, or ErrNoTransaction. It refuses what session.Check refuses.
func Joined(tx *gorm.DB) (gorm.ConnPool, error) {
	if tx == nil || !inTransaction(tx) {
		return nil, store.ErrNoTransaction
	}
	of, err := dialects.Of(tx)
	if err != nil {
		return nil, err
	}
	return of.Runs(tx.Statement.ConnPool), session.Check(tx)
}

func inTransaction(db *gorm.DB) bool {
	_, ok := db.Statement.ConnPool.(gorm.TxCommitter)
	return ok
}

// Doing prefixes an error with the operation's name.
func Doing(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}
