// Package store declares what a store does: accepting, claiming, completing, failing, recovering and cleaning. It also
// has the store's errors and the functions that run a statement. The statements are in postgres, sqlite and base.
// Package stores chooses among them, and storetest is the suite that each dialect must pass.
//
// A store knows only SQL and row versions. Its callers decide what a failure means, when a worker is dead and how long
// to back off.
package store

import (
	"context"
	"database/sql"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Store is one inbox's tables in one database. It is safe for concurrent use.
//
// Every method wraps the driver's error with the name of the operation. Use IsTransient, IsData and IsUniqueViolation
// to classify an error.
type Store interface {
	Acceptor
	Notifier
	Claimer
	Handlers
	Lanes
	Completer
	Workers
	Recoverer
	Leases
	Cleaner
	Progress
	Markers
	Publisher
	Operators
	Layouts

	// KeepSchema makes all statements from now on name the schema in which the search path of pool's session finds the
	// tables. No later search path, such as one that a handler sets, then leads them to the tables of another inbox. On
	// SQLite it does nothing.
	KeepSchema(ctx context.Context, pool gorm.ConnPool) error
	// SingleWriter reports whether one open transaction that has written keeps all others from writing, but none from
	// reading, as on SQLite. A silent worker may then be one that waits to write.
	SingleWriter() bool
	// CheckSettings returns a start's warnings about the settings of the server or the connection. It returns an error
	// if an inbox cannot run with them, or with them and ordered handlers. It reads no table.
	CheckSettings(ctx context.Context, ordered bool) ([]Warning, error)
	// CheckIsolation returns a warning if transactions that state no isolation do not run at READ COMMITTED. Handlers'
	// transactions state theirs. The store's statements outside of transactions state READ COMMITTED from then on, as
	// its transactions always do. It returns an error if the database lets two transactions lock one row, or would
	// otherwise lose or misorder messages.
	CheckIsolation(ctx context.Context, handlers sql.IsolationLevel) ([]Warning, error)
	// AddAuditTx adds an operator's action to the audit in the transaction of that action (contract 11.3).
	AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error
}

// Warning is an entry of the log that names a wrong setting of the database, and the fix.
type Warning struct {
	// Notice means that nothing is wrong: the entry has the level info.
	Notice  bool
	Message string
	Fields  []zap.Field
}

// Acceptor stores incoming messages.
type Acceptor interface {
	// Accept persists messages, their statuses and rejected records in one transaction (contract 4.1-4.3). It returns
	// one result per message, in the order of batch.Messages. It retries deadlocks and serialization failures a few
	// times within ctx. After an error that is not IsData, claims for the batch's Claimer may have been committed.
	Accept(ctx context.Context, batch AcceptBatch) ([]Accepted, error)
	// AcceptTx does the same inside the caller's open transaction. It never retries and must not claim. After an error
	// the caller must roll the transaction back.
	AcceptTx(ctx context.Context, tx *gorm.DB, batch AcceptBatch) ([]Accepted, error)
	// LoadRejected returns a rejected message, or ErrRejectedGone if there is none.
	LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error)
	// AcceptRejected accepts a rejected record's messages and deletes its row in the same transaction. If the row no
	// longer exists it returns ErrRejectedGone. If a message is a conflict, the results say so. In both cases nothing
	// is stored and nothing is deleted.
	AcceptRejected(ctx context.Context, id string, batch AcceptBatch) ([]Accepted, error)
	// SetRejectedReason replaces the reason of a rejected message, sanitized for the column. It does nothing if the row
	// no longer exists. An audit row that is not nil is added in the same transaction, and a missing row is then
	// ErrRejectedGone.
	SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error
	// KeepGap stores a gap and reports whether it was unknown before. Gaps with the same channel, topic, partition and
	// offsets are the same gap (contract 7.5). Its Reason may be any text.
	KeepGap(ctx context.Context, gap models.Gap) (added bool, err error)
	// Clock returns the time by which requests expire, see Cleaner.
	Clock(ctx context.Context, now time.Time) (time.Time, error)
	// PartitionRequests returns up to 1,000 of the requests of a channel that were made after since.
	PartitionRequests(ctx context.Context, channel string, since time.Time) ([]models.PartitionRequest, error)
	// CarryOut deletes a request and stores its effect in one transaction: a rejected message or a gap, each as if it
	// were kept by itself, or neither. If another request has replaced it, or it is gone, it stores nothing and reports
	// false (contract 7.10).
	CarryOut(ctx context.Context, request models.PartitionRequest, rejected *models.RejectedMessage, gap *models.Gap) (
		done bool, err error)
}

// Notifier notifies other processes of statuses that are due.
type Notifier interface {
	// Notify notifies the Listeners of other processes that statuses of these handler keys are due. Without keys it
	// means statuses of any key. On SQLite it does nothing.
	Notify(ctx context.Context, handlerKeys ...string) error
	// NotifyTx makes the commit of the caller's transaction do what Notify does, for this process's Listener as well.
	// On SQLite it does nothing.
	NotifyTx(ctx context.Context, tx *gorm.DB, handlerKeys ...string) error
	// Listen opens a connection to receive those notifications. It returns once it has received its own test
	// notification. Behind a pooler that gives each transaction another session it returns ErrSharedSession, and leaves
	// no LISTEN in those sessions. It returns ErrNotReceived if ctx ends before, ErrCannotListen if the pool's driver is
	// not pgx, and ErrNoNotifications where there are none.
	Listen(ctx context.Context) (Listener, error)
}

// Claimer finds due statuses and claims them for a worker.
type Claimer interface {
	// Claim marks due statuses as processing and returns them with their messages, ordered by key and, within a key,
	// longest due first. A status is due from its next_attempt_at, else from its created_at. Retries and new work thus
	// alternate by age, and neither starves the other. Rows that another transaction has locked are skipped. With a
	// worker ID, nothing is claimed unless that worker's row exists and is not marked released.
	//
	// Of a key with Lanes, only the first row of each lane is claimed, and only while no other row of the lane is
	// claimed (contract 5.12). If a claim passes over more rows that come after others in their lanes than it may
	// claim, it marks them as waiting. No claim reads those again before AdvanceLanes releases them.
	Claim(ctx context.Context, req ClaimRequest) (Claimed, error)
	// NextWindow reads the next WindowRows statuses of a key after a place that are due or claimed. It returns those
	// that are not claimed and whose message is in none of some namespaces, one at least. End is the place of the last
	// one that it read, nil if there are fewer.
	NextWindow(ctx context.Context, handlerKey string, after *Place, leave []string, now time.Time) (Window, error)
	// NextDue returns the earliest due time (next_attempt_at, else created_at) after now among the unclaimed pending
	// statuses of these keys. Rows that wait in their lane do not count. It is zero if there is none.
	NextDue(ctx context.Context, keys []string, now time.Time) (due time.Time, err error)
}

// Locked is what happens to rows that another transaction has locked, for example a transactional handler that is still
// running. SQLite locks no rows.
type Locked int

const (
	// AwaitLocked waits for the end of the other transaction.
	AwaitLocked Locked = iota
	// SkipLocked skips such rows and reports them as not applied, so that recovery does not wait for a handler's
	// transaction.
	SkipLocked
)

// Handlers reads and sets the state of handler keys.
type Handlers interface {
	// Backlog counts the work under these keys, at most up to each key's Limit. With lanes each row costs a lookup of
	// its lane, so use smaller limits there.
	Backlog(ctx context.Context, keys []KeyLimit, now time.Time) ([]Backlog, error)
	// Paused returns the handler keys that operators have paused.
	Paused(ctx context.Context) ([]string, error)
	// SetPaused pauses or resumes a handler key.
	SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error
	// DeclareLegacyKeys stores the legacy keys of a program's handlers, by handler key, so that the accepts of programs
	// that know only those count the rows under the handler key (contract 4.2). declared has every handler that has
	// statuses. It must be committed before, or with, the first row under a new key: tx, if not nil, is the transaction
	// of that row. It writes only what differs, and reports whether anything did.
	DeclareLegacyKeys(ctx context.Context, tx *gorm.DB, declared map[string][]string, now time.Time) (changed bool,
		err error)
}

// Lanes keeps the rows of a lane in order.
type Lanes interface {
	// AdvanceLanes releases the first row of each lane if it is marked as waiting, so that it can be claimed. It
	// returns the handler keys of the first rows that became free or are due now, marked or not: wake these handlers.
	// NextDue finds the others when they become due.
	//
	// Call it after the commit of everything that ends a claim of a row with a lane, or that ends a pending or poisoned
	// row with one: completed, failed, snoozed, released, poisoned, discarded, superseded, deleted. A claim that marks
	// a row as waiting may not have seen that end, and the transaction that ended the row may not have seen the mark.
	// Both call AdvanceLanes after their own commit, so the later call sees both changes. Releasing a row never breaks
	// the order, because each claim checks the lane again.
	AdvanceLanes(ctx context.Context, requests []LaneRequest, now time.Time) (keys []string, err error)
	// ClaimNext does the same, but claims the first rows that are due and have the ClaimKey of their request, as Claim
	// does: only for a worker whose row exists and is not marked released. Otherwise it releases these rows like
	// others. The keys are More.
	ClaimNext(ctx context.Context, workerID string, requests []LaneRequest, now time.Time) (Claimed, error)
	// ClaimRuns claims the rows that follow claimed ones in their lanes, so that one call handles several messages of a
	// lane in their order. The claims of a run come in the order of its lane. A run ends before the first row that is
	// claimed, poisoned (unless the lane skips such rows), not due, of another handler key, once abandoned or
	// interrupted, or changed or locked by another transaction at this moment. A run is empty if its head has ended, its
	// claim was lost or a row before it is open: that row is next. All are empty if the worker's row does not exist or is
	// marked released.
	//
	// Only the head holds the lane. The rows after it are claimed like any others, and each change of them is fenced by
	// itself. No row after a claimed one is first in its lane. But once the head has ended, a row that an operator puts
	// before the others can be claimed: handle all of a run before its head ends.
	ClaimRuns(ctx context.Context, workerID string, runs []RunRequest, now time.Time) ([]Claim, error)
	// CheckLanes does what AdvanceLanes does for a page of at most limit lanes of a rule that have waiting rows. It makes
	// up for calls that never took place because a process died. next is nil at the end. Pass nil as after to begin.
	CheckLanes(ctx context.Context, rule LaneRule, after *Lane, limit int, now time.Time) (next *Lane, keys []string,
		err error)
	// WaitingLaneHandlers returns every Lane.Handler that has waiting rows, including those that no registered handler
	// has any more.
	WaitingLaneHandlers(ctx context.Context) ([]int64, error)
	// KeysWithSplitLanes returns the handler keys that have pending or poisoned rows in lanes of a name outside their
	// rule. The handler has dropped the key that gave the lanes their name. Later rows of the same ordering key are
	// therefore in other lanes and do not wait for them. It reads only the newest rows of each name. So every returned
	// key is right, but a key with few rows among many of another key may be missing.
	KeysWithSplitLanes(ctx context.Context, rules map[string]LaneRule) (handlerKeys []string, err error)
	// ReleaseWaiting lets up to limit waiting rows of these keys be claimed, even if rows before them in their lanes
	// are open. It is for handlers that are no longer ordered.
	ReleaseWaiting(ctx context.Context, handlerKeys []string, limit int) (released int64, err error)
}

// Completer ends claims. Its transitions (Complete, CompleteTx, Settle) are conditional on the version that the caller
// saw, and raise it by one. A row whose version has moved on stays unchanged and is reported as not applied (contract
// 3.2, 5.10).
type Completer interface {
	// Complete ends statuses. applied is aligned with the argument. A stale version of one row never keeps the others
	// from completing. locked decides whether to wait for locked rows or to skip them.
	Complete(ctx context.Context, completions []Completion, at time.Time, locked Locked) (applied []bool, err error)
	// CompleteTx ends statuses inside a handler's transaction.
	CompleteTx(ctx context.Context, tx *gorm.DB, completions []Completion, at time.Time) (applied []bool, err error)
	// CurrentTx reports, inside a handler's transaction, which of the statuses are still at their version and not
	// completed. It locks no row, so CompleteTx has the last word. With a single writer it makes the transaction that
	// writer, which might fail if done later.
	CurrentTx(ctx context.Context, tx *gorm.DB, completions []Completion) (current []bool, err error)
	// Settle gives claims back: failed, poisoned, snoozed or released. See Complete for locked.
	Settle(ctx context.Context, settlements []Settlement, locked Locked) (applied []bool, err error)
	// States reads statuses back by the message numbers and handler keys of refs, to find out the outcome of a write
	// whose response was lost. The result maps status IDs to states; statuses without a row are missing.
	States(ctx context.Context, refs []Ref) (map[string]State, error)
	// Siblings returns the statuses of these messages under these keys.
	Siblings(ctx context.Context, messageNumbers []int64, keys []string) ([]Sibling, error)
}

// Workers keeps the rows of the workers.
type Workers interface {
	// Heartbeat inserts or refreshes a worker's row. It returns ErrWorkerReleased if the row is marked released: that
	// worker was declared dead and must come back under a new ID (contract 5.9).
	Heartbeat(ctx context.Context, worker Worker, now time.Time) error
	// WorkerLives reports whether a worker's row exists and is not marked released. It only reads.
	WorkerLives(ctx context.Context, workerID string) (bool, error)
	// RecordDrain inserts or refreshes the row of a program that calls ProcessPending. In the result of Workers such a
	// row has Drains set. Nothing is claimed under its ID.
	RecordDrain(ctx context.Context, worker Worker, now time.Time) error
	// StopWorker marks a worker as stopped.
	StopWorker(ctx context.Context, workerID string, now time.Time) error
	// Workers returns all worker rows. Their silence is measured by the server's clock, and by now on
	// SQLite (contract 3.5).
	Workers(ctx context.Context, now time.Time) ([]WorkerState, error)
}

// Recoverer finds the claims of dead workers, and the handler keys of pending statuses.
type Recoverer interface {
	// MarkReleased marks a worker as dead. The worker can neither claim nor send heartbeats under this ID again. It
	// returns ErrWorkerBusy at once while a claim, or an accept that claims, is open.
	MarkReleased(ctx context.Context, workerID string, now time.Time) error
	// DeleteWorkers removes worker rows that are stopped or released.
	DeleteWorkers(ctx context.Context, workerIDs []string) (int64, error)
	// OpenClaims reads the next ClaimPage statuses of up to ClaimWalks walks and returns one page for each, with the
	// claimed ones among them. It reads no others.
	OpenClaims(ctx context.Context, walks []ClaimWalk) ([]OpenClaims, error)
	// EvictHolders ends the transactions that hold locks on these statuses, and the open accepts of these workers. Such
	// transactions belong to a worker that is gone while the server still waits for its connection. It ends only those
	// that wait for a client, and returns how many. The database's user may lack the right to do so. It does nothing on
	// SQLite, where a transaction dies with its process, and on MySQL, which shows holders to privileged users alone.
	EvictHolders(ctx context.Context, refs []Ref, workerIDs []string) (int, error)
	// PendingKeys returns the distinct handler keys of pending statuses.
	PendingKeys(ctx context.Context) ([]string, error)
}

// Leases are named locks that expire.
type Leases interface {
	// AcquireLease takes or renews the named lease for ttl and reports whether owner holds it now (contract 5.3).
	AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, now time.Time) (bool, error)
	// AcquireLeases is AcquireLease for any number of different names, in one transaction. It returns those that owner
	// holds now.
	AcquireLeases(ctx context.Context, names []string, owner string, ttl time.Duration, now time.Time) (held []string,
		err error)
	// LeaseOwner returns who holds the named lease, or who held it last if it has run out. It returns "" if there is
	// none. It only reads.
	LeaseOwner(ctx context.Context, name string) (owner string, err error)
	// LeaseOwners is LeaseOwner for any number of names. Those without an owner are left out.
	LeaseOwners(ctx context.Context, names []string) (owners map[string]string, err error)
	// ReleaseLease gives the lease up if owner holds it.
	ReleaseLease(ctx context.Context, name, owner string) error
	// ReleaseLeases is ReleaseLease for any number of names.
	ReleaseLeases(ctx context.Context, names []string, owner string) error
	// DeleteExpiredLeases removes leases that ended more than age ago.
	DeleteExpiredLeases(ctx context.Context, age time.Duration, now time.Time) (int64, error)
}

// Cleaner deletes old rows.
type Cleaner interface {
	// Cleanup walks one batch of messages received before req.Until, in the order of (received_at, number), from
	// req.After. It deletes statuses completed before their cutoff, and messages that have no status left (contract
	// 6.1, 6.4). Poisoned and pending statuses stay, and so does any message that an accept has locked. Messages with
	// nothing to delete are only read.
	Cleanup(ctx context.Context, req CleanupRequest) (CleanupResult, error)
	// Expired walks the same way and deletes nothing. It returns the messages of which Cleanup would delete something.
	// It takes no locks.
	Expired(ctx context.Context, req CleanupRequest) (ExpiredBatch, error)
	// LoadExpired reads the first of these messages, in their order, with the statuses that expire by req's cutoffs. It
	// reads as many as have content of maxBytes together, but at least one. taken is how many of the numbers that
	// covers. Messages that no longer have anything to delete are left out of loaded.
	LoadExpired(ctx context.Context, req CleanupRequest, messageNumbers []int64, maxBytes int64) (loaded []ExpiredMessage,
		taken int, err error)
	// DeleteExpired deletes the rows that LoadExpired loaded and nothing else: statuses that are still at their
	// version, and messages without remaining or new statuses (contract 6.3). Rows that an accept has locked stay.
	DeleteExpired(ctx context.Context, expired []ExpiredMessage) (CleanupResult, error)
	// Partitioned asks the database whether messages and statuses are in partitions of a time. Cleanup then forgets the
	// IDs of messages in an expired partition, so that they are accepted as new ones, and KeepPartitions drops their rows.
	Partitioned(ctx context.Context) (bool, error)
	// KeepPartitions drops partitions of which all messages are older than req.Before and none but a few are still
	// known, and begins a new one in time. Messages that are still known are moved in the same transaction, with their
	// statuses, and those with a status that is open again. Others wait for each of its two locks for half a second at
	// most, and it fails with ErrPartitionsBusy if it does not get them. A partition that cannot be dropped keeps no
	// other. It does nothing to tables without partitions.
	KeepPartitions(ctx context.Context, req PartitionsRequest) (PartitionsResult, error)
	// Clock returns the time by which ages are judged. It is the database's, because a cleaner whose clock is ahead
	// must not delete young rows (contract 3.5). On SQLite, and with a test's clock, it returns now.
	Clock(ctx context.Context, now time.Time) (time.Time, error)
	// DeleteAudit removes up to limit audit rows of actions before that time. It skips rows that another transaction
	// uses.
	DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error)
	// DeleteRejected removes up to limit messages that were rejected before that time, the earliest rejected first. It
	// skips rows that another transaction uses.
	DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error)
}

// Markers remembers the messages that inline handlers have processed.
type Markers interface {
	// AddMarkerTx adds a marker inside the caller's open transaction. It reports whether there was none of its key
	// (contract 8.2). If another transaction has added the same marker and not yet committed, it waits for that one, on
	// PostgreSQL for at most wait. After that time PostgreSQL returns ErrMarkerBusy, and the transaction must be rolled
	// back, at least to a savepoint before this call. On PostgreSQL a transaction with an isolation above READ
	// COMMITTED fails if the other one came after its snapshot (see IsSerialization). The caller's lock_timeout is
	// unchanged when this returns.
	AddMarkerTx(ctx context.Context, tx *gorm.DB, marker models.Marker, wait time.Duration) (added bool, err error)
	// HasMarker reports whether there is a marker of that key.
	HasMarker(ctx context.Context, messageID, handlerKey, namespace string) (bool, error)
	// DeleteMarkers removes up to limit markers that expired before the given time (contract 6.6), and none that have
	// not expired by the database's clock, see Cleaner.Clock. It skips rows that another transaction uses.
	DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error)
}

// Publisher finds the rows whose copies a dead-letter topic lacks, and remembers the published ones (contract 7.9).
type Publisher interface {
	// Unpublished returns up to limit poisoned statuses of a handler key that are not published yet, in the order of
	// their IDs, from after on ("" for the first).
	Unpublished(ctx context.Context, handlerKey, after string, limit int) ([]UnpublishedRef, error)
	// UnpublishedRejected does the same for the rejected messages of a channel.
	UnpublishedRejected(ctx context.Context, channel, after string, limit int) ([]UnpublishedRef, error)
	// LoadUnpublished returns a poisoned status with its message, or ErrGone if it is poisoned no more. A message with
	// more than maxBytes is returned without content and properties.
	LoadUnpublished(ctx context.Context, statusID string, maxBytes int) (Unpublished, error)
	// LoadUnpublishedRejected returns a rejected message, or ErrGone. One with more than maxBytes is returned without
	// value and headers.
	LoadUnpublishedRejected(ctx context.Context, id string, maxBytes int) (UnpublishedRejected, error)
	// MarkPublished remembers that a poisoned status is published. It changes nothing if the status has another version
	// by now: a status that is poisoned again is published again.
	MarkPublished(ctx context.Context, ref UnpublishedRef, at time.Time) error
	// MarkRejectedPublished remembers that a rejected message is published.
	MarkRejectedPublished(ctx context.Context, ref UnpublishedRef, at time.Time) error
}

// UnpublishedRef is a row that is not published yet. A rejected message has no version.
type UnpublishedRef struct {
	ID      string
	Version int64
}

// Unpublished is a poisoned status that is not published yet.
type Unpublished struct {
	// ErrorCount and AbandonedCount are the counts at its poisoning; LastError is "" if it has none.
	ErrorCount, AbandonedCount int
	LastError                  string
	// Message has only an ID if its row is gone.
	Message models.Message
	// Omitted reports that the message is incomplete.
	Omitted bool
}

// UnpublishedRejected is a rejected message that is not published yet.
type UnpublishedRejected struct {
	models.RejectedMessage
	Omitted bool
}

// Listener receives the notifications of other processes. It is not safe for concurrent use.
type Listener interface {
	// Next waits until other processes notify of statuses and returns the handler keys. No keys means any. If nothing
	// arrives for the duration of quiet, it checks that the connection lives, for quiet at most. After an error the
	// Listener cannot be used any more: close it.
	Next(ctx context.Context, quiet time.Duration) ([]string, error)
	// Close stops listening and ends the connection.
	Close()
}

// Options adjust a store.
type Options struct {
	// TestClock means that the batches' times come from a test's clock, which the database's clock does not bound. A
	// status is then created at AcceptBatch.Now. Otherwise it is created no later than the database's clock (contract
	// 3.5).
	TestClock bool
	// Portable makes a store on PostgreSQL send only what other engines with its protocol understand. Otherwise it does
	// so where the server is such an engine. Elsewhere it does nothing.
	Portable bool
}
