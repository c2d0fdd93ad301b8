// Package ops is what operators see of an inbox and do with it: one Go API for the CLI and the
// dashboard (contract 11.1-11.3). It works on the tables only, of any inbox that a *gorm.DB
// reaches, whether or not a process of it runs. What only the running application can do, it asks
// of a Live.
//
// Every query is bounded: lists are pages, counts are capped, and a search that would have to read
// too many rows stops and says so. Every action, and every read of a payload, has an Actor and
// leaves an audit row in the same transaction. If that row cannot be written, nothing is done.
package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/models"
)

// Ops reads one inbox's tables and acts on them. It is safe for concurrent use and starts nothing.
// All methods except RetryMatching, DiscardMatching and Cleanup end within a few statement
// timeouts. All errors can be distinguished by the Err values of this package.
type Ops struct {
	opts     Options
	clock    clock.Clock
	live     Live // nil if there is none
	redactor redaction.Redactor
	db       *gorm.DB
	store    store.Store
	singles  store.Singles
	sqlite   bool
	names    *strings.Replacer
	texts    sync.Map // statement → with the names filled in
	// inUse has room for as many connections as are used at once.
	inUse    chan struct{}
	auditIDs auditIDs
	denials  denials
}

// New returns an Ops on db, which the caller closes. Each function of configure may change the options, which start as
// their defaults. New reads nothing; CheckSchema does. A nil db, one inside a transaction, a dialect other than
// PostgreSQL or SQLite, and a bad option are errors.
func New(db *gorm.DB, configure ...func(o *Options)) (*Ops, error) {
	if db == nil {
		return nil, errors.New("ops: no database")
	}
	opts := defaults()
	for _, set := range configure {
		if set != nil {
			set(&opts)
		}
	}
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	dialect := db.Dialector.Name()
	// On PostgreSQL it always notifies: it cannot know whether a worker listens.
	st, err := dialects.New(db, opts.Naming, store.Options{Announces: dialect == "postgres"})
	if err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	db = db.Session(&gorm.Session{NewDB: true})
	if opts.Connections == 0 {
		opts.Connections = fewConnections(db)
	}
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Cleanup == nil && opts.Live != nil {
		opts.Cleanup = opts.Live.Cleanup
	}
	return &Ops{opts: opts, clock: opts.Clock, live: opts.Live, redactor: redaction.New(opts.Redact),
		db: db, store: st, singles: store.NewSingles(db), sqlite: dialect == "sqlite",
		names: texts(dialect, opts), inUse: make(chan struct{}, opts.Connections)}, nil
}

// fewConnections is the default of Connections.
func fewConnections(db *gorm.DB) int {
	const most = 4
	pool, err := db.DB()
	if err != nil { // wrapped by the user: its size is not known
		return most
	}
	limit := pool.Stats().MaxOpenConnections
	if limit == 0 {
		return most
	}
	return min(max(limit/4, 1), most)
}

// CheckSchema returns an error that says what to do if the tables are not there,
// or too old for this program (contract 3.4). It only reads.
func (o *Ops) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.StatementTimeout)
	defer cancel()
	return models.CheckTables(ctx, o.db, o.opts.Naming)
}
