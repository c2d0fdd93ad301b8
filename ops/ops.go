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
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Ops reads one inbox's tables and acts on them. It is safe for concurrent use and starts nothing.
// All methods except RetryMatching, DiscardMatching and Cleanup end within a few statement
// timeouts. All errors can be distinguished by the Err values of this package.
type Ops struct {
	settings
	db      *gorm.DB
	store   store.Store
	singles store.Singles
	sqlite  bool
	names   *strings.Replacer
	texts   sync.Map // statement → with the names filled in
	// inUse has room for as many connections as are used at once.
	inUse    chan struct{}
	auditIDs auditIDs
	denials  denials
}

// New returns an Ops on db, which the caller closes. It reads nothing; CheckSchema does. A nil db,
// one inside a transaction, a dialect other than PostgreSQL or SQLite, and a bad option are errors.
func New(db *gorm.DB, options ...Option) (*Ops, error) { return newOps(db, options) }

// Option adjusts an Ops.
type Option func(*settings)

type settings struct {
	naming           models.Naming
	clock            clock.Clock
	statementTimeout time.Duration
	connections      int
	connectionsSet   bool
	redactor         redaction.Redactor
	allowReplay      bool
	live             Live
	cleanup          func(context.Context) (handler.Deleted, error) // nil if there is nobody who can
}

// Naming says where the tables live. Default: the connection's schema and the
// prefix "inbox_". Not needed for Inbox.Ops, which knows.
func Naming(n models.Naming) Option { return func(s *settings) { s.naming = n } }

// Clock is what ages, due times and the times of audit rows are told by.
// Default: the machine's clock. It is for tests: workers' silence is judged by
// the database's clock on PostgreSQL whatever this is (contract 3.5).
func Clock(c clock.Clock) Option { return func(s *settings) { s.clock = c } }

// StatementTimeout bounds each transaction of an action and each look of a
// query. Default 10 s, allowed > 0.
func StatementTimeout(d time.Duration) Option {
	return func(s *settings) { s.statementTimeout = d }
}

// Connections bounds how many of the pool's connections this Ops uses at once;
// what comes meanwhile waits, until its context ends. Default a quarter of the
// pool's MaxOpenConns, between 1 and 4, and 4 for a pool without a limit. Allowed
// are 1 and more. Handlers need the rest of the pool: don't set it near the pool's
// size. Replay, ReAccept and Cleanup use the application's own connections, too.
func Connections(n int) Option {
	return func(s *settings) { s.connections, s.connectionsSet = n, true }
}

// AllowReplay allows Replay. Default off: who may replay a message may make the
// application do anything that a message can. Leave it off where operators are
// not trusted with that (contract 11.1).
func AllowReplay() Option { return func(s *settings) { s.allowReplay = true } }
