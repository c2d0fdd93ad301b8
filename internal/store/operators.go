package store

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Operators are the queries and actions of package ops. Their pool comes from Act or from Singles. Lists read a bounded
// number of rows, in the order of an index. Actions return what they have changed, because a concurrent one may have
// been first.
type Operators interface {
	// Act runs work in a transaction, and again if the database rolls it back because of a deadlock. It commits unless
	// work fails.
	Act(ctx context.Context, work func(tx *gorm.DB) error) error
	// ExactTimes reports whether lists compare times exactly. On SQLite they compare texts: one that users wrote may be
	// up to a second off.
	ExactTimes() bool
	// InboxName returns the name of the inbox; "" before it has one.
	InboxName(ctx context.Context, pool gorm.ConnPool) (string, error)

	StatusLists
	StatusActions
	MessageViews
	RejectedViews
	AuditViews
	Backfiller
	ConsumerViews
	WorkerRequests
}

// WorkerRequests are what operators request of living workers.
type WorkerRequests interface {
	AddRequest(ctx context.Context, pool gorm.ConnPool, request models.Request) error
	// OpenRequests returns up to limit requests of these kinds that no worker has taken, after a time and an ID, the
	// earliest first. A long argument is empty, see RequestArgument.
	OpenRequests(ctx context.Context, pool gorm.ConnPool, kinds []string, after time.Time, id string, limit int) (
		[]models.Request, error)
	// TakeRequest reports whether this call has taken the request: a request is taken once, and only if it was made after
	// since.
	TakeRequest(ctx context.Context, pool gorm.ConnPool, id, takenBy string, since, now time.Time) (bool, error)
	// RequestArgument returns the argument of a request; empty if it has ended.
	RequestArgument(ctx context.Context, pool gorm.ConnPool, id string) (string, error)
	// EndRequest stores what came of a request, a result or a problem, and deletes its argument.
	EndRequest(ctx context.Context, pool gorm.ConnPool, id, result, problem string, now time.Time) error
	// LoadRequest returns a request, without a long argument; nil if there is none.
	LoadRequest(ctx context.Context, pool gorm.ConnPool, id string) (*models.Request, error)
	// DeleteRequests removes up to limit requests that were made before that time.
	DeleteRequests(ctx context.Context, before time.Time, limit int) (int64, error)
}

// StatusLists finds and counts statuses.
type StatusLists interface {
	// ScanStatuses reads a part of a list. It returns the matching rows and, for each handler key or for all messages,
	// a row that closes it.
	ScanStatuses(ctx context.Context, pool gorm.ConnPool, scan StatusScan) ([]StatusHit, error)
	// CountStatuses reads the same rows, of a stage by handler key, and returns how many it read and how many match.
	CountStatuses(ctx context.Context, pool gorm.ConnPool, scan StatusScan) (looked, matching int, err error)
	// KeysIn returns up to limit handler keys that have rows of a stage by handler key.
	KeysIn(ctx context.Context, pool gorm.ConnPool, stage Stage, limit int) ([]string, error)
	// OpenStatuses returns the open ones of these statuses.
	OpenStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) ([]StatusRow, error)
	// StatusesAmong returns the given statuses that belong to the given messages.
	StatusesAmong(ctx context.Context, pool gorm.ConnPool, ids []string, messageNumbers []int64) ([]StatusRow, error)
	// StatusesOf returns up to limit statuses of a message, with their attempts.
	StatusesOf(ctx context.Context, pool gorm.ConnPool, messageNumber int64, limit int) ([]StatusRow, error)
	// CountOpen counts the open statuses of handler keys, see OpenCounts: of each key up to limit of each kind. It
	// reads the rows that are due by soon, which include the processing ones. living are the IDs of the living workers.
	CountOpen(ctx context.Context, pool gorm.ConnPool, keys []string, limit int, now, soon time.Time, living []string) (
		[]OpenCounts, error)
	// Claims returns a handler key's claimed statuses, those claimed longest ago first, up to limit of the depth statuses
	// that are due first by soon.
	Claims(ctx context.Context, pool gorm.ConnPool, handlerKey string, depth, limit int, soon time.Time) (
		[]StatusRow, error)
	// ParkedLanes returns the lanes of a handler key with statuses after poisoned ones, the longest first. These wait
	// unless the handler skips poisoned ones. It reads up to poisoned poisoned statuses, and divides waiting among their
	// lanes.
	ParkedLanes(ctx context.Context, pool gorm.ConnPool, handlerKey string, poisoned, waiting int64) (
		[]ParkedLane, error)
	// RecentStatuses reads a handler key's statuses of the latest messages.
	RecentStatuses(ctx context.Context, pool gorm.ConnPool, scan RecentScan) (Recent, error)
	// CountPoisoned counts up to limit poisoned statuses of a handler key.
	CountPoisoned(ctx context.Context, pool gorm.ConnPool, handlerKey string, limit int64) (int64, error)
	// FailureGroups returns up to perKey groups of each handler key after one of its groups.
	FailureGroups(ctx context.Context, pool gorm.ConnPool, after []FailureGroup, perKey int) ([]FoundGroup, error)
	// CountGroups counts the newest statuses of each group before an ID, up to a depth of each.
	CountGroups(ctx context.Context, pool gorm.ConnPool, scan GroupScan) ([]GroupCount, error)
	// LaneAhead counts up to limit open statuses of a lane before a place, poisoned ones or others.
	LaneAhead(ctx context.Context, pool gorm.ConnPool, lane Lane, poisoned bool, before LanePlace, limit int) (
		int64, error)
	// LaneHead returns the first open status of a lane among poisoned ones or others; nil if there is none.
	LaneHead(ctx context.Context, pool gorm.ConnPool, lane Lane, poisoned bool) (*LaneHead, error)
	// SequenceOf returns the place of an open status in its lane; nil if it is not open.
	SequenceOf(ctx context.Context, pool gorm.ConnPool, statusID string) (*int64, error)
}

// Stage is an index that a list of statuses follows.
type Stage string

const (
	StagePoisoned Stage = "poisoned" // by ID
	StageDue      Stage = "due"      // by due time: pending, processing, failing
	StageWaiting  Stage = "waiting"  // by ID: pending in lanes, after others
	StageGroup    Stage = "group"    // by ID: a failure group
	StageReceived Stage = "received" // by received_at: any state
	StageMessage  Stage = "message"  // one message's
)

// Keyed reports whether the handler key comes first in the stage's index.
func (s Stage) Keyed() bool { return s != StageReceived && s != StageMessage }

// ListPlace is a place in a list: after the row that it names. Cursors have it as JSON.
type ListPlace struct {
	// At and ID are the time by which the list is sorted, as ListTime returns it, and the row.
	At string `json:"t,omitempty"`
	ID string `json:"i,omitempty"`
	// Number and Key are, in a list by messages, the message and its last status.
	Number int64  `json:"n,omitempty"`
	Key    string `json:"k,omitempty"`
}

// ListTime is a time as ListPlace has it. It sorts as the index does.
func ListTime(t time.Time) string { return SQLiteTime(t) }

// StatusScan is a part of a list of statuses.
type StatusScan struct {
	Stage       Stage
	HandlerKeys []string // all if empty, where the stage is not Keyed
	After       ListPlace
	Depth       int // rows to read of each handler key, or messages; a list by due time reads up to twice as many
	Limit       int // rows to return
	PerMessage  int // statuses to read of each message

	// States has a bit for each state that matches, from the lowest on: pending, processing, completed, poisoned,
	// discarded, superseded and failing. A failing status is pending, too.
	States      int
	Fingerprint string // "" matches all, as for the following
	Type        string
	ErrorText   string    // a part of the last error, in lower case
	From, To    time.Time // when the message was received: not before From, and before To
	MessageID   string    // for StageMessage
	Namespace   string    // likewise

	// ReadsErrors returns the last errors, too. ReadsMessage returns the message's columns, ComparesMessage also reads
	// them for Type, From and To. Nothing is read that is not needed.
	ReadsErrors, ReadsMessage, ComparesMessage bool
}

// StatusHit is a status in a list, or closes a part of it.
type StatusHit struct {
	Place      ListPlace
	ID         string
	HandlerKey string
	Version    int64
	MessageID  string
	// These are only set if the scan reads them.
	Type       string
	ReceivedAt time.Time
	LastError  string
	// Closes marks the last row that was read of its handler key, or of all messages, which is no match. Depth is how
	// many rows were read; of messages, Statuses is how many these have.
	Closes          bool
	Depth, Statuses int
}

// StatusRow is a status with the columns of its message.
type StatusRow struct {
	models.HandlerStatus
	Lane       *Lane
	Attempts   *string // as JSON; nil unless they are read
	Namespace  string
	Type       string
	Source     string
	ReceivedAt time.Time
}

// OpenCounts are the open statuses of a handler key, as far as they were read.
type OpenCounts struct {
	HandlerKey              string
	Open, Waiting, Poisoned int64 // Open without the other two
	// Looked, Processing and Due are of the rows that were read, in the order in which they are due.
	Looked, Processing, Due int64
	Orphaned                int64 // Processing by workers that do not live
	OldestDue               time.Time
	InLanes                 bool // whether any of those due is in a lane
}

// ParkedLane is a lane with statuses after a poisoned one. Capped means that Waiting may be more.
type ParkedLane struct {
	Lane
	Poisoned, Waiting int64
	Capped            bool
}

// RecentScan reads up to Depth messages that were received between From and To, the latest first.
type RecentScan struct {
	HandlerKey string
	From, To   time.Time
	Depth      int
}

// Recent has a handler key's statuses of the messages that a RecentScan has read.
type Recent struct {
	Messages int
	Earliest time.Time // when the earliest of the messages was received
	Statuses []models.HandlerStatus
}

// FailureGroup names a failure group, and the ID before which its statuses are counted.
type FailureGroup struct{ HandlerKey, Fingerprint, Before string }

// FoundGroup is a group with its number among those found of its handler key, from 1.
type FoundGroup struct {
	HandlerKey, Fingerprint string
	Number                  int
}

// GroupScan counts failures by group.
type GroupScan struct {
	Groups []FailureGroup
	Depth  int // rows to read of each group
	States int // as in StatusScan
	// Type, From and To are compared with the message unless ComparesMessage is false. Rough is From for times that
	// were not written in the store's form.
	Type            string
	From, To, Rough time.Time
	ComparesMessage bool
}

// GroupCount is the count of a group.
type GroupCount struct {
	Looked, Poisoned, Failing int64
	FirstSeen, LastSeen       time.Time
	Lowest                    string    // the oldest ID that was read
	Sample                    StatusRow // the newest status
}

// LanePlace is a place in a lane: the order of acceptance, and the status's ID.
type LanePlace struct {
	Sequence int64
	StatusID string
}

// LaneHead is the first status of a lane.
type LaneHead struct {
	LanePlace
	MessageID, Namespace string
	Poisoned, Processing bool
}

// StatusActions change statuses and messages, and pause handlers.
type StatusActions interface {
	// RetryStatuses makes the poisoned and failing ones of these statuses due that are at their versions. A version of
	// 0 is any.
	RetryStatuses(ctx context.Context, pool gorm.ConnPool, refs []VersionedID, now time.Time) ([]ChangedStatus, error)
	// DiscardStatuses ends the given statuses that are open, not processing, and at their versions.
	DiscardStatuses(ctx context.Context, pool gorm.ConnPool, refs []VersionedID, now time.Time) ([]ChangedStatus, error)
	// RescheduleStatuses makes the given statuses due at a time, or now if that is past, that are open, neither processing
	// nor poisoned, and at their versions.
	RescheduleStatuses(ctx context.Context, pool gorm.ConnPool, refs []VersionedID, at, now time.Time) (
		[]ChangedStatus, error)
	// RerunStatus makes a processed or discarded status due that is at a version. The caller has locked its message. It
	// returns nil if there is none.
	RerunStatus(ctx context.Context, pool gorm.ConnPool, messageNumber int64, handlerKey string, version int64,
		now time.Time) (*ChangedStatus, error)
	// ReleaseClaim makes a claimed status due that is at a version, and counts it as abandoned. It returns nil if there is
	// none.
	ReleaseClaim(ctx context.Context, pool gorm.ConnPool, ref VersionedID, now time.Time) (*ChangedStatus, error)
	// OpenState returns an open status with the columns that say why an action left it; nil if it is not open.
	OpenState(ctx context.Context, pool gorm.ConnPool, statusID string) (*models.HandlerStatus, error)
	// PauseKey and ResumeKey pause a handler key, or no longer. They return whether they have changed it.
	PauseKey(ctx context.Context, pool gorm.ConnPool, handlerKey string, now time.Time) (changed bool, err error)
	ResumeKey(ctx context.Context, pool gorm.ConnPool, handlerKey string, now time.Time) (changed bool, err error)
	// PausedKeys returns up to limit paused handler keys. locked keeps others from resuming them until the transaction
	// ends.
	PausedKeys(ctx context.Context, pool gorm.ConnPool, limit int, locked bool) ([]string, error)
	// DeleteMessage deletes a message and its statuses. It returns the message without its content, nil if it is gone,
	// and the statuses. If any is processing, left is how many: then the transaction is to be rolled back.
	DeleteMessage(ctx context.Context, pool gorm.ConnPool, number int64) (
		deleted *models.Message, statuses []ChangedStatus, left int64, err error)
}

// VersionedID is a status at a version.
type VersionedID struct {
	ID      string
	Version int64
}

// ChangedStatus is a status that an action has ended, deleted or made due.
type ChangedStatus struct {
	ID, MessageID, HandlerKey string
	Lane                      *Lane
}

// MessageViews read messages and their markers.
type MessageViews interface {
	// Namesakes returns the numbers and namespaces of up to ten messages with an ID, in a namespace or, if that is "",
	// in all.
	Namesakes(ctx context.Context, pool gorm.ConnPool, id, namespace string) ([]models.Message, error)
	// LoadMessage returns a message; nil if there is none.
	LoadMessage(ctx context.Context, pool gorm.ConnPool, number int64) (*models.Message, error)
	// PreviewMessage returns the beginning of a message; nil if there is none.
	PreviewMessage(ctx context.Context, pool gorm.ConnPool, number int64, cuts PreviewCuts) (*MessagePreview, error)
	// MarkersOf returns up to limit markers of a message ID; "" is any handler key or namespace.
	MarkersOf(ctx context.Context, pool gorm.ConnPool, messageID, handlerKey, namespace string, limit int) (
		[]models.Marker, error)
}

// PreviewCuts limit the bytes of a preview. Content and Key are read whole up to a length, and of a longer one so many
// bytes. A negative length reads nothing.
type PreviewCuts struct {
	ContentWhole, ContentHead int
	KeyWhole, KeyHead         int
	Properties                int // longer ones are left out
}

// Beginning is a value of which a preview has read Bytes; nil if it has read none.
type Beginning struct {
	Bytes  []byte
	Size   int64
	IsNull bool
}

// MessagePreview is a message of which Payload and Key were read as far as requested. Its SerializedProperties are left
// out if PropertiesCut is true.
type MessagePreview struct {
	models.Message
	Payload, Key   Beginning
	PropertiesSize int64
	PropertiesCut  bool
}

// RejectedPreview is a rejected message of which Payload and RecordKey were read as far as requested. Its Headers are
// left out if HeadersCut is true.
type RejectedPreview struct {
	models.RejectedMessage
	Payload, RecordKey Beginning
	HeadersSize        int64
	HeadersCut         bool
}

// RejectedViews read rejected messages and gaps, and change rejected messages.
type RejectedViews interface {
	// ScanRejected reads a part of the list of rejected messages. It returns those that match, and a row that closes
	// it.
	ScanRejected(ctx context.Context, pool gorm.ConnPool, scan RejectedScan) ([]RejectedHit, error)
	// RejectedRecord returns a rejected message; nil if there is none.
	RejectedRecord(ctx context.Context, pool gorm.ConnPool, id string) (*models.RejectedMessage, error)
	// PreviewRejected returns the beginning of a rejected message; nil if there is none.
	PreviewRejected(ctx context.Context, pool gorm.ConnPool, id string, cuts PreviewCuts) (*RejectedPreview, error)
	// DropRejected deletes a rejected message and returns its coordinates; nil if there is none.
	DropRejected(ctx context.Context, pool gorm.ConnPool, id string) (*models.RejectedMessage, error)
	// RequestReAccept stores a request in a rejected message, and TakeReAccept deletes it. They return false if there
	// is none.
	RequestReAccept(ctx context.Context, pool gorm.ConnPool, id, actor string, now time.Time) (bool, error)
	TakeReAccept(ctx context.Context, pool gorm.ConnPool, id string, requestedAt time.Time) (bool, error)
	// RequestedReAccepts returns up to limit requests after a place, the earliest first.
	RequestedReAccepts(ctx context.Context, pool gorm.ConnPool, after time.Time, id string, limit int) (
		[]ReAcceptRequest, error)
	// CountRejected and CountGaps count up to limit rows.
	CountRejected(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error)
	CountGaps(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error)
	// GapsBefore returns up to limit gaps before an ID, the latest first.
	GapsBefore(ctx context.Context, pool gorm.ConnPool, id string, limit int) ([]models.Gap, error)
}

// RejectedScan is a part of the list of rejected messages.
type RejectedScan struct {
	Earliest       bool // the earliest first, and not the latest
	After          ListPlace
	Depth, Limit   int    // as in StatusScan
	Channel, Topic string // "" matches all
	Partition      int32  // a negative one matches all
	Reason         string // a part of the reason, in lower case
	From, To       time.Time
}

// RejectedHit is a rejected message without its record, or the last one that was read.
type RejectedHit struct {
	models.RejectedMessage
	At     string // RejectedAt as ListTime returns it
	Size   int64  // of key and value
	Closes bool
	Looked int // how many were read
}

// ReAcceptRequest is a request to accept a rejected message again.
type ReAcceptRequest struct {
	ID, Channel, Actor string
	RequestedAt        time.Time
}

// AuditViews read the audit.
type AuditViews interface {
	// ScanAudit reads a part of the audit, the latest first. It returns the rows that match, without their details, and
	// a row that closes it.
	ScanAudit(ctx context.Context, pool gorm.ConnPool, scan AuditScan) ([]AuditHit, error)
	// AuditDetails returns the details of the given rows that exist.
	AuditDetails(ctx context.Context, pool gorm.ConnPool, ids []string) (map[string]string, error)
}

// AuditScan is a part of the audit: its rows with an ID from FromID on and before BeforeID.
type AuditScan struct {
	FromID, BeforeID      string
	Depth, Limit          int    // as in StatusScan
	Actor, Action, Target string // "" matches all; Target is a part of a row's
	From, To              time.Time
}

// AuditHit is a row of the audit, or the last one that was read.
type AuditHit struct {
	models.Audit
	Closes bool
	Looked int // how many were read
}

// Backfiller adds statuses to stored messages.
type Backfiller interface {
	// ScanUnhandled reads up to scan.Limit messages in the order in which they were received.
	ScanUnhandled(ctx context.Context, pool gorm.ConnPool, scan UnhandledScan) ([]UnhandledMessage, error)
	// SameHandler returns these keys of a handler, and those of which programs have declared one of them a legacy key.
	SameHandler(ctx context.Context, pool gorm.ConnPool, keys []string) ([]string, error)
	// ClockIn is Clock on this pool, such as a transaction's.
	ClockIn(ctx context.Context, pool gorm.ConnPool, now time.Time) (time.Time, error)
	// LockMessages locks messages as accepts do, and returns those that exist.
	LockMessages(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]int64, error)
	// AddStatuses adds statuses of a handler key to messages that have none under any of its keys, in their lanes, due
	// now or at their times. It returns their IDs.
	AddStatuses(ctx context.Context, pool gorm.ConnPool, key string, keys []string, statuses []AddedStatus,
		now time.Time) ([]string, error)
}

// UnhandledScan finds messages that lack a handler's status.
type UnhandledScan struct {
	After           ListPlace
	To              time.Time // received before
	Limit           int
	Keys            []string // of the handler
	Namespace, Type string
	AnyType         bool // whatever the type is
	ReadsProperties int  // how many bytes of the properties are read; 0 for none
}

// UnhandledMessage is a message that was read. Lacks means that it matches and has no status of the handler.
type UnhandledMessage struct {
	Place      ListPlace
	ID         string
	ReceivedAt time.Time
	Lacks      bool
	Properties string // their beginning
}

// AddedStatus is a status to add.
type AddedStatus struct {
	ID, MessageID string
	MessageNumber int64
	Lane          *Lane
	NotBefore     time.Time // as in NewStatus
}

// ConsumerViews read the stored rows of workers, consumers and leases, and operators' requests to consumers.
type ConsumerViews interface {
	// StoredConsumers returns the consumers that up to limit workers have stored, as JSON, by worker ID.
	StoredConsumers(ctx context.Context, pool gorm.ConnPool, limit int) ([]WorkerConsumers, error)
	// StoredSettings returns the settings that up to limit workers have stored, the latest started first.
	StoredSettings(ctx context.Context, pool gorm.ConnPool, limit int) ([]WorkerSettings, error)
	// AllPartitionRequests returns up to limit requests that were made after since.
	AllPartitionRequests(ctx context.Context, pool gorm.ConnPool, since time.Time, limit int) (
		[]models.PartitionRequest, error)
	// RequestPartition stores a request, which replaces an earlier one, and deletes those made before expired.
	RequestPartition(ctx context.Context, pool gorm.ConnPool, request models.PartitionRequest, expired time.Time) error
	// TopicProgress returns how far up to limit topics are read, the one furthest behind first.
	TopicProgress(ctx context.Context, pool gorm.ConnPool, limit int) ([]TopicProgress, error)
	// ForgetTopic deletes the partitions of a topic that no worker has declared since a time. known is how many there
	// are of it if it has deleted none.
	ForgetTopic(ctx context.Context, pool gorm.ConnPool, channel, groupID, topic string, declaredBefore time.Time) (
		forgotten, known int64, err error)
	// AllLeases returns up to limit leases, sorted by name, and for how long each is still held.
	AllLeases(ctx context.Context, pool gorm.ConnPool, now time.Time, limit int) ([]HeldLease, error)
	// LastHeartbeat returns the latest heartbeat of all workers, stopped ones included.
	LastHeartbeat(ctx context.Context, pool gorm.ConnPool, now time.Time) (LastHeartbeat, error)
}

// LastHeartbeat is the latest heartbeat of an inbox's workers. At is zero if there is none. Now is the time by the
// clock that heartbeats have.
type LastHeartbeat struct {
	Inbox   string
	At, Now time.Time
}

// WorkerSettings are the settings that a worker has stored, as JSON.
type WorkerSettings struct{ WorkerID, Settings string }

// WorkerConsumers are the consumers that a worker has stored, as JSON.
type WorkerConsumers struct{ WorkerID, Consumers string }

// TopicProgress is how far a topic is read in a group.
type TopicProgress struct {
	Channel, GroupID, Topic string
	Inline                  bool
	// Partitions counts the known ones. Unread counts those never read to their end, and the list of partitions itself
	// while it is not known.
	Partitions, Unread int
	CaughtUpAt         time.Time // of the partition furthest behind among those that were read to their end
	DeclaredAt         time.Time // of the partition declared longest ago
	UndeclaredFor      time.Duration
}

// HeldLease is a lease. ExpiresIn is negative if it has expired.
type HeldLease struct {
	Name, OwnerID string
	ExpiresIn     time.Duration
}
