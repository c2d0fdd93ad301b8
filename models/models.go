// Package models has the row types of an inbox's tables, their names and their migrations. The types are ordinary GORM
// models without hooks. db.Model(&models.HandlerStatus{}) works with the default table names, and Naming, which
// Inbox.Tables returns, directs a statement to any other names (contract 3). GORM's writes of a status obey its
// Version.
package models

import "time"

// Outcome is how a completed status ended. It is empty while the status is not completed.
type Outcome string

const (
	// OutcomeProcessed means that the handler returned nil.
	OutcomeProcessed Outcome = "processed"
	// OutcomeDiscarded means that an operator ended the status (contract 11.1).
	OutcomeDiscarded Outcome = "discarded"
	// OutcomeSuperseded means that the same handler's row under another of its keys ran instead (contract 4.2).
	OutcomeSuperseded Outcome = "superseded"
)

// Message is one accepted message (contract 3.1). ID and Namespace together identify it. The namespace is the name of
// its channel, or the name under which the channel shares its IDs (contract 4.4). The database assigns Number when it
// accepts the message, ascending and with gaps. Statuses refer to Number because IDs are arbitrary, and inserts into an
// index on them would be spread over the whole index.
type Message struct {
	ID                   string        `gorm:"column:id;primaryKey;not null;type:varchar(200)"`
	Namespace            string        `gorm:"column:namespace;primaryKey;not null;type:varchar(200)"`
	Number               MessageNumber `gorm:"column:number;<-:create;not null;uniqueIndex:inbox_messages_number;index:inbox_messages_received_at,priority:2"`
	TransportName        string        `gorm:"column:transport_name;type:varchar(50);not null"`
	Type                 string        `gorm:"column:type;type:varchar(255);not null"`
	Source               string        `gorm:"column:source;type:varchar(1024);not null"`
	Content              []byte        `gorm:"column:content;not null"`
	ContentType          string        `gorm:"column:content_type;type:varchar(255);not null"`
	SerializedProperties string        `gorm:"column:serialized_properties;type:text;not null"`
	OrderingKey          []byte        `gorm:"column:ordering_key"`
	ReceivedAt           time.Time     `gorm:"column:received_at;not null;index:inbox_messages_received_at,priority:1"`
}

// HandlerStatus is one handler's progress on one message (contract 3.2). The primary key (message_number, handler_key)
// is the deduplication. Version guards every transition.
//
// ID names the status in operations. Find a status by its message, not by its ID: the index on IDs has no completed
// statuses, and only statements with its condition use it. GORM's FindInBatches needs a primary key of one column and
// refuses statuses; First and Last sort them by ID, the first column. Use Order and Limit.
//
// MessageID is only to be read and has no index. Find a message's statuses by its number, as in
//
//	db.Joins("JOIN inbox_messages m ON m.number = message_number").Where("m.id = ? AND m.namespace = ?", id, channel)
//
// Claims walk the index "due": the pending rows of one handler key, longest due first. Claiming itself changes no
// indexed column, so PostgreSQL makes it a heap-only update. For that reason no index may contain
// processing_started_at, worker_id or version. The order of the columns keeps rows and PostgreSQL's log short, as its
// migration explains.
//
// Fingerprint names the failure group of LastError and is written with it, nil if there is none (contract 11.2).
//
// PublishedAt is when a dead-letter topic got a copy of the poisoned message, nil if it has not, or since the status
// was retried (contract 7.9).
//
// LaneHandler and LaneKey identify the row's lane (contract 5.12): they are hashes of the handler's oldest key and of
// the ordering key, nil for a row without a lane. IsWaiting marks a row that comes after another one of its lane: no
// claim reads it until the first row of its lane ends. HoldsLane is true while the row is claimed in its lane. A unique
// index allows one such row per lane.
//
// MessageBytes is the size of the message's content and properties. Claims add these sizes up, and so end before they
// hold too much (contract 5.2); 0 counts for nothing.
//
// PoisonedAt is when it was last poisoned, nil after a retry. Attempts is a JSON array of the latest attempts that
// failed and the latest retries by operators, nil if there are none (contract 5.5). Only these write both columns:
// claims and completions touch neither.
type HandlerStatus struct {
	ID                  string     `gorm:"column:id;not null;type:uuid;uniqueIndex:inbox_handler_statuses_open,where:CASE WHEN completed_at IS NULL THEN true ELSE false END;index:inbox_handler_statuses_due,priority:3;index:inbox_handler_statuses_poisoned,priority:2;index:inbox_handler_statuses_unpublished,priority:2;index:inbox_handler_statuses_failures,priority:3;index:inbox_handler_statuses_lane,priority:5;index:inbox_handler_statuses_waiting,priority:2"`
	MessageNumber       int64      `gorm:"column:message_number;primaryKey;autoIncrement:false;not null"`
	Sequence            Sequence   `gorm:"column:sequence;not null;index:inbox_handler_statuses_lane,priority:4"`
	CreatedAt           time.Time  `gorm:"column:created_at;not null;autoCreateTime:false"`
	ErrorCount          int        `gorm:"column:error_count;type:integer;not null;default:0"`
	AbandonedCount      int        `gorm:"column:abandoned_count;type:integer;not null;default:0"`
	InterruptedCount    int        `gorm:"column:interrupted_count;type:integer;not null;default:0"`
	RequeuedCount       int        `gorm:"column:requeued_count;type:integer;not null;default:0"`
	MessageBytes        int        `gorm:"column:message_bytes;type:integer;not null;default:0"`
	MessageID           string     `gorm:"column:message_id;type:varchar(200);not null"`
	HandlerKey          string     `gorm:"column:handler_key;primaryKey;type:varchar(200);not null;index:inbox_handler_statuses_due,priority:1,where:completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting;index:inbox_handler_statuses_poisoned,priority:1,where:is_poisoned AND completed_at IS NULL;index:inbox_handler_statuses_unpublished,priority:1,where:is_poisoned AND completed_at IS NULL AND published_at IS NULL;index:inbox_handler_statuses_failures,priority:1,where:completed_at IS NULL AND fingerprint IS NOT NULL AND (is_poisoned OR error_count + abandoned_count + interrupted_count > 0);index:inbox_handler_statuses_waiting,priority:1,where:is_waiting"`
	IsPoisoned          bool       `gorm:"column:is_poisoned;not null;default:false;index:inbox_handler_statuses_lane,priority:3"`
	IsWaiting           bool       `gorm:"column:is_waiting;not null;default:false"`
	HoldsLane           bool       `gorm:"column:holds_lane;not null;default:false"`
	Outcome             Outcome    `gorm:"column:outcome;type:varchar(20);not null;default:('')"`
	Version             Version    `gorm:"column:version;<-:create;not null;default:1"`
	ProcessingStartedAt *time.Time `gorm:"column:processing_started_at"`
	CompletedAt         *time.Time `gorm:"column:completed_at"`
	NextAttemptAt       *time.Time `gorm:"column:next_attempt_at;index:inbox_handler_statuses_due,priority:2,expression:COALESCE(next_attempt_at\\,created_at)"`
	PublishedAt         *time.Time `gorm:"column:published_at"`
	PoisonedAt          *time.Time `gorm:"column:poisoned_at"`
	WorkerID            *string    `gorm:"column:worker_id;type:uuid"`
	LaneHandler         *int64     `gorm:"column:lane_handler;index:inbox_handler_statuses_lane,priority:1,where:completed_at IS NULL AND lane_key IS NOT NULL;uniqueIndex:inbox_handler_statuses_lane_holder,priority:1,where:holds_lane;index:inbox_handler_statuses_waiting_lane,priority:1,where:CASE WHEN is_waiting THEN true ELSE false END"`
	LaneKey             *int64     `gorm:"column:lane_key;index:inbox_handler_statuses_lane,priority:2;uniqueIndex:inbox_handler_statuses_lane_holder,priority:2;index:inbox_handler_statuses_waiting_lane,priority:2"`
	LastError           *string    `gorm:"column:last_error;type:varchar(2000)"`
	Fingerprint         *string    `gorm:"column:fingerprint;type:varchar(16);index:inbox_handler_statuses_failures,priority:2"`
	Attempts            *string    `gorm:"column:attempts;type:text"`

	// Message is the message of the status, loaded by Preload("Message") from the messages table beside the statuses
	// table. GORM never writes it together with its status.
	Message *Message `gorm:"<-:false;foreignKey:MessageNumber;references:Number;constraint:inbox_handler_statuses_message_fk,OnDelete:CASCADE"`
}

// RejectedMessage is a record that could not become a message, kept raw (contract 3.3, 7.4).
type RejectedMessage struct {
	ID         string    `gorm:"column:id;primaryKey;not null;type:uuid;index:inbox_rejected_messages_rejected_at,priority:2;index:inbox_rejected_messages_unpublished,priority:2;index:inbox_rejected_messages_requested,priority:2"`
	Channel    string    `gorm:"column:channel;type:varchar(200);not null;uniqueIndex:inbox_rejected_messages_coordinates,priority:1;index:inbox_rejected_messages_unpublished,priority:1,where:published_at IS NULL"`
	Topic      string    `gorm:"column:topic;type:varchar(255);not null;uniqueIndex:inbox_rejected_messages_coordinates,priority:2"`
	Partition  int32     `gorm:"column:partition;not null;uniqueIndex:inbox_rejected_messages_coordinates,priority:3"`
	Offset     int64     `gorm:"column:record_offset;not null;uniqueIndex:inbox_rejected_messages_coordinates,priority:4"`
	Timestamp  time.Time `gorm:"column:record_timestamp;not null;uniqueIndex:inbox_rejected_messages_coordinates,priority:5"`
	Key        []byte    `gorm:"column:key"`
	Value      []byte    `gorm:"column:value"`
	Headers    string    `gorm:"column:headers;type:text;not null"`
	Reason     string    `gorm:"column:reason;type:varchar(2000);not null"`
	RejectedAt time.Time `gorm:"column:rejected_at;not null;index:inbox_rejected_messages_rejected_at,priority:1"`
	// PublishedAt is when a dead-letter topic got a copy, nil if it has not (contract 7.9).
	PublishedAt *time.Time `gorm:"column:published_at"`
	// RequestedBy is who requested at RequestedAt that a process accepts the record again. Both are nil unless a
	// request waits (contract 11.1).
	RequestedBy *string    `gorm:"column:requested_by;type:varchar(200)"`
	RequestedAt *time.Time `gorm:"column:requested_at;index:inbox_rejected_messages_requested,priority:1,where:requested_at IS NOT NULL"`
}

// Gap is a place where a consumer continued although the records that it should have read next no longer exist
// (contract 7.5).
type Gap struct {
	ID        string `gorm:"column:id;primaryKey;not null;type:uuid"`
	Channel   string `gorm:"column:channel;type:varchar(200);not null;uniqueIndex:inbox_gaps_coordinates,priority:1"`
	Topic     string `gorm:"column:topic;type:varchar(255);not null;uniqueIndex:inbox_gaps_coordinates,priority:2"`
	Partition int32  `gorm:"column:partition;not null;uniqueIndex:inbox_gaps_coordinates,priority:3"`
	// FromOffset should have been read next. ToOffset is the first offset that is read: above FromOffset if records
	// were removed, below it if the log began again.
	FromOffset int64     `gorm:"column:from_offset;not null;uniqueIndex:inbox_gaps_coordinates,priority:4"`
	ToOffset   int64     `gorm:"column:to_offset;not null;uniqueIndex:inbox_gaps_coordinates,priority:5"`
	Reason     string    `gorm:"column:reason;type:varchar(2000);not null"`
	FoundAt    time.Time `gorm:"column:found_at;not null"`
}

// PartitionRequest is an operator's decision about a halted partition, until the consumer that has the partition
// carries it out (contract 7.10). A partition has one row at most.
type PartitionRequest struct {
	Channel   string `gorm:"column:channel;primaryKey;not null;type:varchar(200)"`
	Topic     string `gorm:"column:topic;primaryKey;not null;type:varchar(255)"`
	Partition int32  `gorm:"column:partition;primaryKey;autoIncrement:false;not null"`
	// ID distinguishes a request from a later one that replaces it.
	ID string `gorm:"column:id;type:uuid;not null"`
	// Offset is the one before which the partition is halted. For a halt elsewhere the request is not meant.
	Offset int64 `gorm:"column:record_offset;not null"`
	// Decision is "resume", "skip", or "continue": to resume after a gap.
	Decision    string    `gorm:"column:decision;type:varchar(20);not null"`
	Actor       string    `gorm:"column:actor;type:varchar(200);not null"`
	RequestedAt time.Time `gorm:"column:requested_at;not null"`
}

// Request is what an operator requests of a living worker that can do it, and what came of it (contract 11.1).
type Request struct {
	ID string `gorm:"column:id;primaryKey;not null;type:uuid;index:inbox_requests_requested_at,priority:2"`
	// Kind is "cancel", "backfill", "cleanup", "replay" or "read_again".
	Kind string `gorm:"column:kind;type:varchar(20);not null"`
	// Target says which workers can do it: those that have this handler key or, for a replay or reading again, this
	// channel. It is empty for a cleanup.
	Target string `gorm:"column:target;type:varchar(200);not null"`
	// Argument is JSON, which may have a whole payload. It is empty once the request has ended.
	Argument    string    `gorm:"column:argument;type:text;not null"`
	Actor       string    `gorm:"column:actor;type:varchar(200);not null"`
	RequestedAt time.Time `gorm:"column:requested_at;not null;index:inbox_requests_requested_at,priority:1"`
	// TakenBy is the process that carries it out, since TakenAt. A request is taken once, and within an hour.
	TakenBy string     `gorm:"column:taken_by;type:varchar(300);not null"`
	TakenAt *time.Time `gorm:"column:taken_at"`
	EndedAt *time.Time `gorm:"column:ended_at"`
	// Result is JSON, and Problem why it failed. Both are empty until EndedAt.
	Result  string `gorm:"column:result;type:text;not null"`
	Problem string `gorm:"column:problem;type:varchar(2000);not null"`
}

// Partition is how far a partition is read, in one channel and consumer group (contract 6.5).
type Partition struct {
	Channel string `gorm:"column:channel;primaryKey;not null;type:varchar(200)"`
	GroupID string `gorm:"column:group_id;primaryKey;not null;type:varchar(255)"`
	Topic   string `gorm:"column:topic;primaryKey;not null;type:varchar(255)"`
	// Partition is -1 in the topic's own row. That row is caught up to when the topic's partitions were last listed:
	// those that existed then have rows.
	Partition int32 `gorm:"column:partition;primaryKey;autoIncrement:false;not null"`
	// Inline means that only markers are kept of the partition's messages.
	Inline bool `gorm:"column:inline;not null"`
	// CaughtUpAt is a moment such that everything that was in the partition then is accepted and its offset committed.
	// It is nil until there is one, and never goes back.
	CaughtUpAt *time.Time `gorm:"column:caught_up_at"`
	// DeclaredAt is when a worker last declared the topic and saw that it has the partition. After that, UndeclaredFor
	// counts the seconds in which workers of the inbox ran, up to CountedAt.
	DeclaredAt    time.Time `gorm:"column:declared_at;not null"`
	UndeclaredFor int64     `gorm:"column:undeclared_for;not null;default:0"`
	CountedAt     time.Time `gorm:"column:counted_at;not null"`
}

// Lock is one lease (contract 5.3, 6.1).
type Lock struct {
	Name      string    `gorm:"column:name;primaryKey;not null;type:varchar(200)"`
	OwnerID   string    `gorm:"column:owner_id;type:uuid;not null"`
	ExpiresAt time.Time `gorm:"column:expires_at;not null"`
}

// Worker is one running process of an inbox and its heartbeat (contract 5.9).
type Worker struct {
	ID          string     `gorm:"column:id;primaryKey;not null;type:uuid"`
	Host        string     `gorm:"column:host;type:varchar(255);not null"`
	PID         int        `gorm:"column:pid;type:integer;not null"`
	HandlerKeys string     `gorm:"column:handler_keys;type:text;not null"` // JSON object: the namespace of IDs of each key
	StartedAt   time.Time  `gorm:"column:started_at;not null"`
	HeartbeatAt time.Time  `gorm:"column:heartbeat_at;not null"`
	StoppedAt   *time.Time `gorm:"column:stopped_at"`
	ReleasedAt  *time.Time `gorm:"column:released_at"` // declared dead, its claims released
	// Health says why the process was not healthy at its last heartbeat: a JSON array of reasons, empty if there were
	// none (contract 11.5).
	Health string `gorm:"column:health;type:text;not null"`
	// Consumers is the state of the process's Kafka consumers at its last heartbeat: a JSON array (contract 11.1).
	Consumers string `gorm:"column:consumers;type:text;not null"`
	// Settings are those of the process and its handlers: a JSON object, or empty (contract 11.1).
	Settings string `gorm:"column:settings;type:text;not null;default:('')"`
	// DatabaseRole is the role as which the worker has logged in to the server, empty on SQLite.
	DatabaseRole string `gorm:"column:database_role;type:text;not null"`
}

// Handler has what operators decided about one handler key, and the legacy keys that a program has declared for it. A
// key without a row is not paused and has none (contract 4.2, 5.13).
type Handler struct {
	HandlerKey string `gorm:"column:handler_key;primaryKey;not null;type:varchar(200)"`
	Paused     bool   `gorm:"column:paused;not null;default:false"`
	// LegacyKeys is a JSON array, the newest first, or empty.
	LegacyKeys string    `gorm:"column:legacy_keys;type:text;not null;default:('')"`
	UpdatedAt  time.Time `gorm:"column:updated_at;not null;autoUpdateTime:false"`
}

// Marker records that a message was handled inline (contract 8). Namespace is the same as in Message. It is empty
// outside an inbox's channels.
type Marker struct {
	MessageID   string    `gorm:"column:message_id;primaryKey;not null;type:varchar(200)"`
	HandlerKey  string    `gorm:"column:handler_key;primaryKey;not null;type:varchar(200)"`
	Namespace   string    `gorm:"column:namespace;primaryKey;not null;type:varchar(200)"`
	MessageType string    `gorm:"column:message_type;type:varchar(255);not null"`
	ProcessedAt time.Time `gorm:"column:processed_at;not null"`
	ExpiresAt   time.Time `gorm:"column:expires_at;not null;index:inbox_markers_expires_at"`
}

// Audit is one operator action (contract 11.3).
type Audit struct {
	ID         string    `gorm:"column:id;primaryKey;not null;type:uuid"`
	Actor      string    `gorm:"column:actor;type:varchar(200);not null"`
	Action     string    `gorm:"column:action;type:varchar(50);not null"`
	Target     string    `gorm:"column:target;type:varchar(500);not null"`
	Detail     string    `gorm:"column:detail;type:text;not null"`
	OccurredAt time.Time `gorm:"column:occurred_at;not null;index:inbox_audit_occurred_at"`
	// DatabaseRole is the role as which the writer has logged in to the server, empty on SQLite.
	DatabaseRole string `gorm:"column:database_role;type:text;not null"`
}

// Meta is a key and a value about the inbox itself: "schema_version", "name", "id" (contract 3.3) and, on SQLite, the
// counters "sequence" and "number", which hold the last acceptance sequence and the last message number given out.
type Meta struct {
	Key   string `gorm:"column:key;primaryKey;not null;type:varchar(50)"`
	Value string `gorm:"column:value;type:varchar(200);not null"`
}
