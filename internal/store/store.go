// Package store says what a store does: accepting, claiming, completing, failing,
// recovering and cleaning, with its errors and what runs a statement. The statements are
// in postgres, sqlite and base, of which dialects chooses; storetest is the suite that
// each dialect must pass.
//
// A store knows SQL and row versions, nothing else: what a failure means, when a worker
// is dead or how long to back off is decided by its callers.
package store

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Store is one inbox's tables in one database. It is safe for concurrent use.
//
// Every method wraps what the driver said with the name of the operation.
// Use IsTransient, IsData and IsUniqueViolation to classify an error.
type Store interface {
	Acceptor
	Announcer
	Claimer
	Handlers
	Lanes
	Completer
	Workers
	Recoverer
	Leases
	Cleaner
	Markers

	// SingleWriter reports whether one open transaction that has written keeps
	// all others from writing anything, and none from reading, as on SQLite: a
	// silent worker there may be one that waits to write.
	SingleWriter() bool
	// DefaultIsolation asks PostgreSQL which isolation transactions have that do
	// not state theirs; other is false if that is READ COMMITTED, and on SQLite.
	// If it is true, statements of the store's outside of transactions state READ
	// COMMITTED from now on, as its transactions always do.
	DefaultIsolation(ctx context.Context) (found DefaultIsolation, other bool, err error)
	// AddAuditTx adds an operator's action to the audit in the transaction of
	// that action (contract 11.3).
	AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error
}

// Acceptor stores what comes in.
type Acceptor interface {
	// Accept persists messages, their statuses and rejected records in one
	// transaction (contract 4.1-4.3) and says, in the order of
	// batch.Messages, what became of each. Deadlocks and serialization
	// failures are retried a few times within ctx. After an error that IsData
	// does not tell, claims for the batch's Claimer may have been committed.
	Accept(ctx context.Context, batch AcceptBatch) ([]Accepted, error)
	// AcceptTx does the same inside the caller's open transaction; it never
	// retries, must not claim, and after an error the transaction must be rolled back.
	AcceptTx(ctx context.Context, tx *gorm.DB, batch AcceptBatch) ([]Accepted, error)
	// LoadRejected reads a rejected message; ErrRejectedGone if there is none.
	LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error)
	// AcceptRejected is Accept of what a rejected message holds, and deletes
	// its row in the same transaction. If the row is not there any more it is
	// ErrRejectedGone, and if a message is a conflict the results say so: in
	// both cases nothing is stored and nothing deleted.
	AcceptRejected(ctx context.Context, id string, batch AcceptBatch) ([]Accepted, error)
	// SetRejectedReason replaces the reason of a rejected message, made fit
	// for the column; nothing if the row is not there any more. An audit row
	// that is not nil is added in the same transaction, and if the row is gone it
	// is ErrRejectedGone.
	SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error
	// KeepGap stores a gap and reports whether it was not known before: one of
	// the same channel, topic, partition and offsets is the same (contract
	// 7.5). Its Reason may be any text.
	KeepGap(ctx context.Context, gap models.Gap) (added bool, err error)
}

// Announcer notifies other processes of statuses that are due.
type Announcer interface {
	// Notify announces that statuses of these handler keys are due, or of any
	// without keys, to the Listeners of other processes, as accepts do with the
	// statuses they add without a claim: when they commit, once for all, and
	// AcceptTx to this process as well. Nothing unless the store was made with
	// Options.Announces.
	Notify(ctx context.Context, handlerKeys ...string) error
	// Listen connects to hear that, and returns once it has heard itself.
	// ErrSharedSession behind a pooler that gives each transaction another
	// session, where it leaves nothing behind; ErrNotHeard if ctx ends before;
	// ErrCannotListen if the pool's driver is not pgx, and on SQLite.
	Listen(ctx context.Context) (Listener, error)
	// CanListen is Listen's ErrCannotListen without a Listener.
	CanListen(ctx context.Context) error
}

// Claimer finds what is due and makes it a worker's.
type Claimer interface {
	// Claim marks due statuses as processing and returns them with their
	// messages, ordered by key and, within one, oldest due first. A status is
	// due from its next_attempt_at, else from its created_at: retries and new
	// work take turns by age, neither starves the other. Rows that another
	// transaction has locked are skipped. With a worker ID, nothing is claimed
	// unless that worker's row exists and is not marked released.
	//
	// Of a key with Lanes, only the first row of each lane is claimed, and only
	// while no other row of the lane is (contract 5.12). Where a claim passes
	// over more rows behind others than it may claim, it marks them as waiting:
	// no claim meets them again before AdvanceLanes lets them go.
	Claim(ctx context.Context, req ClaimRequest) (Claimed, error)
	// NextDue returns the earliest due time (next_attempt_at, else created_at)
	// after now among unclaimed pending statuses of these keys that are not
	// waiting behind others; ok is false if there is none.
	NextDue(ctx context.Context, keys []string, now time.Time) (due time.Time, ok bool, err error)
}

// Locked is what becomes of rows that another transaction has locked, such as that of a
// transactional handler which is still running. SQLite locks no rows.
type Locked int

const (
	// AwaitLocked waits for the other transaction's end.
	AwaitLocked Locked = iota
	// SkipLocked passes over them: they are reported as not applied, so that recovery does
	// not wait for a handler's transaction.
	SkipLocked
)

// Handlers is what is known of handler keys.
type Handlers interface {
	// Backlog tells what there is to do under these keys, none of which is
	// looked at beyond its Limit: with lanes each row costs a look into its lane,
	// so ask for fewer.
	Backlog(ctx context.Context, keys []KeyLimit, now time.Time) ([]Backlog, error)
	// Paused returns the handler keys operators have paused.
	Paused(ctx context.Context) ([]string, error)
	// SetPaused pauses or resumes a handler key.
	SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error
}

// Lanes keeps the rows of a lane in their order.
type Lanes interface {
	// AdvanceLanes lets the first row of each lane be claimed if it is marked
	// as waiting, and returns the handler keys of those that became free or
	// are due now, marked or not: wake these handlers. NextDue tells of the
	// others, when their time comes.
	//
	// Call it after the commit of everything that ends a claim of a row with a
	// lane, or a pending or poisoned row with one: completed, failed, snoozed,
	// released, poisoned, discarded, superseded, deleted. A claim that marks a
	// row as waiting may not have seen that end, and whoever ended it may not
	// have seen the mark; as both look after their own commit, the one who
	// looks second sees the other's. Letting a row go never breaks the order:
	// each claim judges anew.
	AdvanceLanes(ctx context.Context, turns []LaneTurn, now time.Time) (keys []string, err error)
	// CheckLanes does so for a page of the lanes of a rule that have waiting
	// rows, at most limit, for looks that never took place because a process
	// died before. next is nil at the end; after is nil to begin.
	CheckLanes(ctx context.Context, rule LaneRule, after *Lane, limit int, now time.Time) (next *Lane, keys []string,
		err error)
	// WaitingLaneHandlers returns every Lane.Handler that has waiting rows,
	// also those that no registered handler goes by any more.
	WaitingLaneHandlers(ctx context.Context) ([]int64, error)
	// StrayLanes returns those of these handler keys that have pending or
	// poisoned rows in lanes of a name outside their rule: the handler has
	// dropped the key that named them, so later rows of the same ordering key
	// are in other lanes and do not wait for them. It looks at the newest rows
	// of each name, not at all: what it returns is so, but a key with few rows
	// among many of another key may be missing.
	StrayLanes(ctx context.Context, rules map[string]LaneRule) (handlerKeys []string, err error)
	// ReleaseWaiting lets up to limit waiting rows of these keys be claimed,
	// whatever is before them: for handlers that are not ordered any more.
	ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (released int64, err error)
}

// Completer ends claims. Its transitions (Complete, CompleteTx, Settle) are
// conditional on the version the caller saw and raise it by one; a row whose version has
// moved on is left alone and reported as not applied (contract 3.2, 5.10).
type Completer interface {
	// Complete ends statuses; applied is aligned with the argument. One row's
	// stale version never keeps the others from completing. Rows that are locked are
	// waited for or passed over, as locked says.
	Complete(ctx context.Context, completions []Completion, at time.Time, locked Locked) (applied []bool, err error)
	// CompleteTx ends statuses inside a handler's transaction.
	CompleteTx(ctx context.Context, tx *gorm.DB, completions []Completion, at time.Time) (applied []bool, err error)
	// CurrentTx tells, inside a handler's transaction, which of the statuses are
	// still at their version and not completed. It locks no row, so CompleteTx
	// has the last word; where there is a single writer it makes the transaction
	// that writer, which later could fail.
	CurrentTx(ctx context.Context, tx *gorm.DB, completions []Completion) (current []bool, err error)
	// Settle gives claims back: failed, poisoned, snoozed or released. See Complete for
	// locked.
	Settle(ctx context.Context, settlements []Settlement, locked Locked) (applied []bool, err error)
	// States reads statuses back, to find out what became of a write whose
	// answer was lost. IDs without a row are missing in the result.
	States(ctx context.Context, statusIDs []string) (map[string]State, error)
	// Siblings returns the statuses of the messages of these numbers under these
	// keys.
	Siblings(ctx context.Context, messageNumbers []int64, keys []string) ([]Sibling, error)
}

// Workers says which workers live.
type Workers interface {
	// Heartbeat inserts or refreshes a worker's row. It returns
	// ErrWorkerReleased if the row is marked released: that worker is taken
	// for dead and must come back under a new ID (contract 5.9).
	Heartbeat(ctx context.Context, worker Worker, now time.Time) error
	// WorkerLives reports whether a worker's row is there and not marked
	// released. It only reads.
	WorkerLives(ctx context.Context, workerID string) (bool, error)
	// RecordDrain inserts or refreshes the row of a program that processes by
	// hand. Workers tells its row by Drains. Nothing is claimed under its ID.
	RecordDrain(ctx context.Context, worker Worker, now time.Time) error
	// StopWorker marks a worker as stopped.
	StopWorker(ctx context.Context, workerID string, now time.Time) error
	// Workers lists all worker rows, silence judged by the database's clock
	// on PostgreSQL and by now on SQLite (contract 3.5).
	Workers(ctx context.Context, now time.Time) ([]WorkerState, error)
}

// Recoverer finds what dead workers have left, and statuses without a handler.
type Recoverer interface {
	// MarkReleased marks a worker as dead with its claims released: it can
	// neither claim nor heartbeat under this ID again. It returns
	// ErrWorkerBusy, at once, while a transaction holds a lock on its row.
	MarkReleased(ctx context.Context, workerID string, now time.Time) error
	// DeleteWorkers removes worker rows that are stopped or released and have
	// no claims left.
	DeleteWorkers(ctx context.Context, workerIDs []string) (int64, error)
	// ClaimsOf returns up to limit statuses that workerID has claimed. It
	// reads every pending status: for sweeps, not for loops.
	ClaimsOf(ctx context.Context, workerID string, limit int) ([]Ref, error)
	// OldestClaimsOf returns what workerID has claimed among the window statuses
	// due longest of each handler key: it reads no others.
	OldestClaimsOf(ctx context.Context, workerID string, handlerKeys []string, window int) ([]Ref, error)
	// EvictWorker ends the transactions that hold locks on statuses workerID
	// has claimed, or on its own row: those of transactional handlers and of
	// accepts whose worker is gone while the server still waits for its
	// connection. It ends only those that wait for a client. It returns how many it
	// ended; the database's user may be forbidden to. Nothing on SQLite, where
	// a transaction dies with its process.
	EvictWorker(ctx context.Context, workerID string) (int, error)
	// StuckClaims returns up to limit claims without a worker whose
	// processing started at or before the given time (contract 5.14).
	StuckClaims(ctx context.Context, before time.Time, limit int) ([]Ref, error)
	// PendingKeys returns the distinct handler keys of pending statuses.
	PendingKeys(ctx context.Context) ([]string, error)
	// PendingOf returns up to limit unclaimed pending statuses of one key,
	// waiting ones last.
	PendingOf(ctx context.Context, handlerKey string, limit int) ([]Ref, error)
}

// Leases are locks by name that end by themselves.
type Leases interface {
	// AcquireLease takes or renews the named lease for ttl and reports
	// whether owner holds it now (contract 5.3).
	AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, now time.Time) (bool, error)
	// LeaseOwner returns whose the named lease is, or was last if it has run
	// out; "" if there is none. It only reads.
	LeaseOwner(ctx context.Context, name string) (owner string, err error)
	// ReleaseLease gives the lease up if owner holds it.
	ReleaseLease(ctx context.Context, name, owner string) error
	// DeleteExpiredLeases removes leases that ended more than age ago.
	DeleteExpiredLeases(ctx context.Context, age time.Duration, now time.Time) (int64, error)
}

// Cleaner deletes what is old.
type Cleaner interface {
	// Cleanup walks one batch of messages received before req.Until, in order
	// of (received_at, number) from req.After: statuses completed before their
	// cutoff are deleted, and messages without any status left (contract 6.1,
	// 6.4). Poisoned and pending statuses stay, and so does any message that
	// an accept has locked. Messages with nothing to delete are only read.
	Cleanup(ctx context.Context, req CleanupRequest) (CleanupResult, error)
	// Expired walks the same way and deletes nothing: it tells which messages
	// Cleanup would take something of. It takes no locks.
	Expired(ctx context.Context, req CleanupRequest) (ExpiredBatch, error)
	// LoadExpired reads the first of these messages, in their order, with the
	// statuses that go by req's cutoffs: as many as have content of maxBytes
	// together, but at least one. taken says how many of the numbers that are; those that
	// have nothing to delete any more are left out of what was loaded.
	LoadExpired(ctx context.Context, req CleanupRequest, messageNumbers []int64, maxBytes int64) (loaded []ExpiredMessage,
		taken int, err error)
	// DeleteExpired deletes what LoadExpired loaded and nothing else: statuses
	// that are still at their version, and messages of which nothing stays and
	// which have gained no status since (contract 6.3). What an accept has
	// locked stays.
	DeleteExpired(ctx context.Context, expired []ExpiredMessage) (CleanupResult, error)
	// DeleteAudit removes up to limit audit rows of actions before that time: rows in use
	// by another transaction are passed over.
	DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error)
	// DeleteRejected removes rejected messages that were rejected before that
	// time, of the limit ones stored first: rows in use by another transaction are
	// passed over.
	DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error)
}

// Markers remembers what inline handlers have processed.
type Markers interface {
	// AddMarkerTx adds a marker inside the caller's open transaction and reports
	// whether there was none of its key (contract 8.2). For one that another
	// transaction has added and not yet committed it waits, at most as long as
	// wait on PostgreSQL, where ErrMarkerBusy then says so and the transaction
	// must be rolled back, to a savepoint before it at least. On PostgreSQL a
	// transaction of an isolation above READ COMMITTED fails, see
	// IsSerialization, if the other came after its snapshot. The caller's own
	// lock_timeout is what it was when this returns.
	AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, wait time.Duration) (added bool, err error)
	// HasMarker reports whether there is a marker of that key.
	HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error)
	// DeleteMarkers removes up to limit markers that expired before the given
	// time (contract 6.6): rows in use by another transaction are passed over.
	DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error)
}

// Listener hears the announcements of other processes. It is not safe for concurrent use.
type Listener interface {
	// Next waits until other processes announce statuses, and returns the handler
	// keys; none means any. When nothing is heard for as long as quiet, it looks
	// whether the connection lives, for quiet at most. After an error the Listener
	// is of no use: close it.
	Next(ctx context.Context, quiet time.Duration) ([]string, error)
	// Close stops listening and ends the connection.
	Close()
}

// Options adjust a store.
type Options struct {
	// Announces: accepts tell the Listeners of other processes. PostgreSQL only.
	Announces bool
	// TestClock: the batches' times are those of a test's clock, which the database's
	// clock does not bound. A status is then created at AcceptBatch.Now. Otherwise it is
	// created no later than the database's clock (contract 3.5).
	TestClock bool
}
