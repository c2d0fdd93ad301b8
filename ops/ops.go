// Package ops is the Go API to inspect and operate an inbox, for the CLI and the dashboard (contract 11.1-11.3). It
// works on the tables only, of any inbox that a *gorm.DB reaches, whether or not a process of it runs. For actions that
// only the running application can do, it calls a Live.
//
// Every query is bounded: lists are pages, counts are capped, and a search that would have to read too many rows stops
// and says so. Every action, and every read of a payload, has an Actor and leaves an audit row in the same transaction.
// If that row cannot be written, nothing is done.
package ops

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// Ops reads one inbox's tables and acts on them. It is safe for concurrent use and starts nothing. All methods except
// RetryMatching, DiscardMatching, RescheduleMatching, ReAcceptMatching, ReadAgain, Backfill and Cleanup end within a
// few statement timeouts, and ReAccept after the handlers that it runs, or with its context. All errors can be
// distinguished by the Err values of this package.
type Ops struct {
	*access
	statusSearch
	statusActions
	messageViews
	rejections
	processes
	auditLog
	workerRequests
	db       *gorm.DB
	replica  *replica  // reads the option Replica; nil without one
	underWay *sync.Map // from the ID of each request that this process carries out to its context.CancelCauseFunc
}

// The subjects of Ops. Each has its methods in a few files.
type (
	statusSearch  struct{ *access }      // lists and counts of statuses
	processes     struct{ *access }      // workers, handlers, consumers, leases
	rejections    struct{ *access }      // rejected messages and gaps
	auditLog      struct{ *access }      // the audit
	statusActions struct{ statusSearch } // changes of statuses, one or many
	messageViews  struct {               // whole messages
		statusSearch
		processes
		*access
	}
)

// New returns an Ops on db, which the caller closes. Each function of configure may change the options, which start as
// their defaults. New reads nothing; CheckSchema does. A nil db, one inside a transaction, another database than
// PostgreSQL, MySQL, MariaDB or SQLite, and a bad option are errors.
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
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	st, err := stores.New(db, opts.Naming, store.Options{TestClock: clock.IsTest(opts.Clock), Portable: opts.PortableSQL})
	if err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	db = db.Session(&gorm.Session{NewDB: true})
	connections := opts.Connections
	if connections == 0 {
		opts.Connections = fewConnections(db)
	}
	if opts.Cleanup == nil && opts.Live != nil {
		opts.Cleanup = opts.Live.Cleanup
	}
	a := &access{opts: opts, redactor: redaction.New(opts.Redact), store: st,
		sealer: sealing.New(opts.Sealer, opts.StatementTimeout), inUse: make(chan struct{}, opts.Connections),
		auditIDs: &auditIDs{}, denials: &denials{}}
	a.singles = store.NewSingles(db).Following(st).Within(a.connected)
	search, processes := statusSearch{a}, processes{a}
	o := &Ops{access: a, statusSearch: search, statusActions: statusActions{search},
		messageViews: messageViews{search, processes, a}, rejections: rejections{a}, processes: processes,
		auditLog: auditLog{a}, workerRequests: workerRequests{messageViews{search, processes, a}}, db: db,
		underWay: new(sync.Map)}
	if opts.Replica != nil {
		if o.replica, err = o.readingFrom(opts.Replica, connections); err != nil {
			return nil, fmt.Errorf("ops: option Replica: %w", err)
		}
	}
	return o, nil
}

// fewConnections is the default of Connections.
func fewConnections(db *gorm.DB) int {
	const few = 4
	pool, err := db.DB()
	if err != nil { // wrapped by the user: its size is not known
		return few
	}
	limit := pool.Stats().MaxOpenConnections
	if limit == 0 {
		return few
	}
	return min(max(limit/4, 1), few)
}

// CheckSchema returns an error that says what to do if the tables are not there, or too old for this program (contract
// 3.4). It only reads.
func (o *Ops) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.opts.StatementTimeout)
	defer cancel()
	return models.CheckTables(ctx, o.db, o.opts.Naming)
}

// Options configure an Ops. The functions that New and Inbox.Ops get may change them.
type Options struct {
	// Naming says where the tables live. Inbox.Ops sets it. Default: the connection's schema and the prefix "inbox_".
	Naming models.Naming
	// PortableSQL is the inbox's option of that name, which Inbox.Ops sets. Do not set it on PostgreSQL itself. Default
	// off: what the server says of itself decides.
	PortableSQL bool
	// StatementTimeout bounds each transaction of an action and each statement of a query. Must be more than 0. Default
	// 10 s; Inbox.Ops has the inbox's timeout.
	StatementTimeout time.Duration
	// Connections bounds how many of the pool's connections this Ops uses at once. Further calls wait for one until
	// their context ends. Handlers need the rest of the pool: don't set it near the pool's size. Replay, ReAccept and
	// Cleanup also use the application's own connections. Default 0: a quarter of the pool's MaxOpenConns, between 1
	// and 4, and 4 for a pool without a limit.
	Connections int
	// Replica is a read replica of the database, which the caller closes. Ops.Reader reads it. Other methods never do: an
	// action, and what it depends on, has the primary. Up to Connections of its pool are used at once; by default a
	// quarter of its own MaxOpenConns. The replica need not answer when New is called. Don't set it for its own sake:
	// lists are bounded, and the primary's answer is never late. Default nil, none (contract 11.7).
	Replica *gorm.DB
	// AllowReplay allows Replay. Who may replay a message may make the application do anything that a message can:
	// leave it off where operators are not trusted with that. The inbox's own option Ops decides about the replays that
	// programs with the tables alone request (RequestReplay). Default off (contract 11.1).
	AllowReplay bool
	// OpenSealed allows views to open sealed contents with Sealer, before Redact. Leave it off where the operators, or
	// those who may sign in to the dashboard with ShowPayloads, may not see what is encrypted. Default off: views show
	// that a content is sealed, and with which key (contract 15).
	OpenSealed bool
	// Sealer opens sealed contents, for Replay and for views with OpenSealed. Inbox.Ops has the inbox's. Default nil: the
	// contents of sealed messages can neither be shown nor replayed.
	Sealer handler.Sealer
	// Redact replaces each value before anybody sees it or searches in it. It changes neither the stored rows nor the
	// input of Replay and ReAccept. Failure groups are made of errors as they are stored, without the parts that
	// redact.Common hides. In Inbox.Ops it gets the result of inbox.Options.Redact, and cannot replace that hook.
	// Message IDs, types, sources, handler keys and topics are shown as they are: keep secrets out of them. Default
	// nil, no hook (contract 11.4, 11.6).
	Redact redact.Hook
	// Cleanup replaces the running application's cleanup. It is for programs beside the application that know its
	// retentions. Don't set it in the application, whose own cleanup obeys the retentions of single handlers and
	// archives. Concurrent calls of Ops.Cleanup call it concurrently. Default nil: the application's, and without one
	// Ops.Cleanup returns ErrNeedsApplication.
	Cleanup func(ctx context.Context) (handler.Deleted, error)
	// Live is the running application. Inbox.Ops sets it. Default nil, none.
	Live Live
	// Clock replaces the clock that ages, due times and the times of audit rows are computed with, for tests. It does
	// not judge the silence of workers: a server's clock does (contract 3.5). Default nil, the system's.
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

// These are the errors that callers can distinguish. Each is wrapped with details.
var (
	// ErrNotFound means that nothing has that ID or handler key, or no longer. An action finds a status by its ID only
	// until it is completed.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous means that several namespaces have a message with that ID, see MessageRef.
	ErrAmbiguous = errors.New("in several namespaces")
	// ErrStale means that the status has another version than the caller saw, or is no longer open, or changed during
	// the action, or that the partition is not halted at that offset. Read it again.
	ErrStale = errors.New("changed meanwhile")
	// ErrNotPoisoned means that only a poisoned or failing status can be retried.
	ErrNotPoisoned = errors.New("not poisoned")
	// ErrNotPending means that only an open status that is neither processing nor poisoned can be rescheduled.
	ErrNotPending = errors.New("not pending")
	// ErrNotCompleted means that only a completed or discarded status can be run again.
	ErrNotCompleted = errors.New("neither completed nor discarded")
	// ErrNotClaimed means that only the claim of a status that is being processed can be released.
	ErrNotClaimed = errors.New("not being processed")
	// ErrNotPaused means that only a paused handler key can be resumed, and only a paused ordered handler backfilled.
	ErrNotPaused = errors.New("not paused")
	// ErrPaused means that a rejected message of an Inline or Direct channel does not run again while one of its
	// handlers is paused.
	ErrPaused = errors.New("paused")
	// ErrNotSkippable means that a partition is not halted because of one record, so that skipping a record would not
	// help, or would lose others.
	ErrNotSkippable = errors.New("not halted by one record")
	// ErrStillHalted means that a request for a halted partition is not carried out yet, or that the partition has halted
	// there again.
	ErrStillHalted = errors.New("still halted")
	// ErrStillDeclared means that cleanup cannot forget a topic, because workers consume it.
	ErrStillDeclared = errors.New("workers declare it")
	// ErrProcessing means that a message cannot be deleted, a status neither retried, discarded nor rescheduled, and a
	// rejected message not run again, while its handler runs; or that this process reads the channel again already.
	ErrProcessing = errors.New("being processed")
	// ErrNotYet means that a request to a worker has not ended yet, and ErrRequestFailed that it has failed.
	ErrNotYet        = errors.New("not carried out yet")
	ErrRequestFailed = errors.New("failed")
	// ErrBadInput means that an argument is missing, malformed or out of range.
	ErrBadInput = errors.New("bad input")
	// ErrNeedsApplication means that only the running application can do this, because it knows the channels and
	// handlers. Use Inbox.Ops in its process, or its dashboard.
	ErrNeedsApplication = errors.New("only the running application can do this")
	// ErrReplayOff means that Replay needs the option AllowReplay.
	ErrReplayOff = errors.New("replay is off")
	// ErrNotAudited means that the audit row could not be written, so nothing was done or shown.
	ErrNotAudited = store.ErrNotAudited
)

// Can reports whether this Ops supports an action, regardless of the actor and the target. It returns nil, or the error
// that the action's method always returns: ErrNeedsApplication or, with the application, ErrReplayOff. All actions but
// Backfill, Replay, ReAccept, ReAcceptMatching, ReadAgain and Cleanup need only the tables, and these can be requested.
// Can is for user interfaces, so that they offer only actions that work; the methods check for themselves (contract
// 11.1).
func (o *access) Can(action Action) error {
	able := true
	switch action {
	case ActionReplay:
		able = o.opts.Live != nil
		if able && !o.opts.AllowReplay {
			return fmt.Errorf("%s: %w: it needs the option AllowReplay", action, ErrReplayOff)
		}
	case ActionReAccept, ActionReadAgain, ActionBackfill:
		able = o.opts.Live != nil
	case ActionCleanup:
		able = o.opts.Cleanup != nil
	}
	if !able {
		return fmt.Errorf("%s: %w: act through Inbox.Ops in its process, or through its dashboard", action,
			ErrNeedsApplication)
	}
	return nil
}

// Live has the actions that only a running application can do, because it knows the channels and handlers. Inbox.Ops
// gets one from *inbox.Inbox. Without it Backfill, Replay, ReAccept, ReAcceptMatching, ReadAgain and Cleanup (but see
// Options.Cleanup) fail with ErrNeedsApplication. Implementations are safe for concurrent use.
type Live interface {
	// AcceptTx accepts a message in an open transaction on the inbox's database. The caller calls wake after the
	// commit.
	AcceptTx(ctx context.Context, tx *gorm.DB, m handler.RawMessage) (result Accepted, wake func(), err error)
	// AcceptRejected accepts the content of a rejected message, deletes its row and adds the audit row, all in one
	// transaction. If the record is still bad, it stores the new reason with the audit row. A record of an Inline or
	// Direct channel is not stored: its handlers run while the caller waits, after begun has returned nil.
	AcceptRejected(ctx context.Context, id string, begun func(context.Context) error, audit models.Audit) (
		[]Accepted, error)
	// ReadAgain reads records of a channel's topic again and accepts them.
	ReadAgain(ctx context.Context, r envelope.ReadAgain) (envelope.ReadAgainResult, error)
	// Cleanup is Inbox.Cleanup.
	Cleanup(ctx context.Context) (handler.Deleted, error)
	// Subscription returns the handler that has this key, as its current or a legacy one, and what it subscribes to. It
	// returns ErrNotFound if no handler of this process has it.
	Subscription(key string) (Subscription, error)
	// Ready prepares the tables for rows of this process's handlers, as its start or first accept does.
	Ready(ctx context.Context) error
	// Running finds this process's call of a handler key for a message, in the attempt of that number if it is not 0. It
	// returns how long the call has run and how to cancel its context. The call's failure then names who has cancelled it.
	// Cancel is nil if there is no such call. Once the call has ended, cancel does nothing.
	Running(handlerKey, messageID string, attempt int) (ranFor time.Duration, cancel func(by string))
	// Wake notifies this process's processor that handlers have due statuses.
	Wake(handlerKeys ...string)
	// Ended returns, by handler key, the attempts that ended in this process within about the last hour, and since when
	// they are counted; zero if the process does not run.
	Ended() (since time.Time, of map[string]Ended)
	// TakePaused makes this process apply the current pauses now and not with its next heartbeat.
	TakePaused(ctx context.Context) error
}

// Subscription is a handler and what it subscribes to.
type Subscription struct {
	Handler *handler.Handler
	Channel string
	Type    string
	// Namespace is the namespace of the channel's message IDs, and Shared means that other channels have the same.
	Namespace string
	Shared    bool
	// Retention is the handler's, or else the inbox's; 0 is forever.
	Retention time.Duration
	// Stored is false for a channel that is Inline or Direct and so has no statuses.
	Stored bool
}

// Ended counts attempts that have ended.
type Ended struct {
	Completed int64
	// Failed includes the attempts that poisoned.
	Failed   int64
	Poisoned int64
}

// Accepted is the result for a message that an operator accepted.
type Accepted struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers is the number of statuses added or, of a rejected message that ran again, of the handlers that ran:
	// others had processed it before.
	Handlers int
}

// known reports whether there was nothing left to do.
func (a Accepted) known() bool {
	return a.Outcome == handler.OutcomeDuplicate || a.Outcome == handler.OutcomeProcessed && a.Handlers == 0
}
