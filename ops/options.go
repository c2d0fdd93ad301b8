package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// Options configure an Ops. The functions that New and Inbox.Ops get may change them.
type Options struct {
	// Naming says where the tables live. Inbox.Ops sets it. Default: the connection's schema and the
	// prefix "inbox_".
	Naming models.Naming
	// StatementTimeout bounds each transaction of an action and each statement of a query. Must be
	// more than 0. Default 10 s; that of Inbox.Ops is the inbox's own.
	StatementTimeout time.Duration
	// Connections bounds how many of the pool's connections this Ops uses at once. Further calls wait
	// for one until their context ends. Handlers need the rest of the pool: don't set it near the
	// pool's size. Replay, ReAccept and Cleanup also use the application's own connections. Default 0:
	// a quarter of the pool's MaxOpenConns, between 1 and 4, and 4 for a pool without a limit.
	Connections int
	// AllowReplay allows Replay. Who may replay a message may make the application do anything that a
	// message can: leave it off where operators are not trusted with that. Default off (contract 11.1).
	AllowReplay bool
	// Redact replaces each value before anybody sees it or searches in it. It does not change what is
	// stored, nor what Replay and ReAccept work with. Failure groups are made of errors as they are
	// stored, without what redact.Common hides. In Inbox.Ops it gets what inbox.Options.Redact has
	// left, and cannot replace that hook. Message IDs, types, sources, handler keys and topics are
	// shown as they are: keep secrets out of them. Default nil, no hook (contract 11.4, 11.6).
	Redact redact.Hook
	// Cleanup replaces the running application's cleanup. It is for programs beside the application
	// that know its retentions. Don't set it in the application, whose own cleanup obeys the
	// retentions of single handlers and archives. Concurrent calls of Ops.Cleanup call it concurrently.
	// Default nil: the application's, and without one Ops.Cleanup returns ErrNeedsApplication.
	Cleanup func(ctx context.Context) (handler.Deleted, error)
	// Live is the running application. Inbox.Ops sets it. Default nil, none.
	Live Live
	// Clock replaces the clock that ages, due times and the times of audit rows are computed with, for
	// tests. On PostgreSQL the database's clock judges the silence of workers whatever this is
	// (contract 3.5). Default nil, the system's.
	Clock clock.Clock
}

func defaults() Options { return Options{StatementTimeout: 10 * time.Second} }

func (o Options) check() error {
	switch {
	case o.StatementTimeout <= 0:
		return fmt.Errorf("option StatementTimeout = %s: must be more than 0", o.StatementTimeout)
	case o.Connections < 0:
		return fmt.Errorf("option Connections = %d: must be 0 (a quarter of the pool) or more", o.Connections)
	}
	return nil
}
