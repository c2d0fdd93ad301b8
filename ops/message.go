package ops

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// Message is a message with all of its statuses.
type Message struct {
	ID string
	// Namespace is where the ID is unique, see MessageRef.
	Namespace   string
	Number      int64
	Transport   string
	Type        string
	Source      string
	ContentType string
	ReceivedAt  time.Time
	// Content, OrderingKey and Properties are redacted. OrderingKey is nil if there is none.
	Content []byte
	// KeyID is the ID of the key with which the content is sealed; empty if it is not (contract 15). Sealed says in words
	// why a sealed content is left out; empty if it is shown.
	KeyID, Sealed string
	OrderingKey   []byte
	// Properties are the headers, the attributes and the origin.
	Properties handler.Properties
	// PropertiesProblem is why the stored properties cannot be read; empty if they can.
	PropertiesProblem string
	// TraceID is the trace ID in the producer's traceparent header; empty without one.
	TraceID string
	// OriginalID is the message of which this one is a replay; empty if it is none.
	OriginalID string
	// Statuses has one element per handler, sorted by handler key.
	Statuses []StatusDetail
}

// StatusDetail is a status with its place in its lane and the reason why it does not run.
type StatusDetail struct {
	Status
	// Obstacle is the handler's obstacle, see Handler, while the status is pending. While it is processing, Obstacle
	// says if its call does not return. Otherwise it is empty.
	Obstacle string
	// Lane is nil unless the status is open and has a lane.
	Lane *LanePlace
	// Attempts are the latest ten attempts that failed and retries by operators, the oldest first.
	Attempts []Attempt
}

// Attempt is an attempt that failed, or a retry by an operator (contract 5.5).
type Attempt struct {
	// At is when the attempt ended, or the status was retried.
	At time.Time
	// ClaimedAt is when the worker claimed the status, and WorkerID that worker. Both are empty for a retry and where
	// nothing was claimed, WorkerID also for a claim of ProcessPending.
	ClaimedAt time.Time
	WorkerID  string
	// Error is the first 300 characters of the error, redacted.
	Error string
	// Poisoned means that it poisoned the status.
	Poisoned bool
	// Retried means that an operator retried the status; the audit says who.
	Retried bool
}

// LanePlace describes the rows before a status in its lane.
type LanePlace struct {
	// Ahead counts the open statuses before it, including poisoned ones.
	Ahead Count
	// HeadMessageID, HeadNamespace, HeadStatusID and HeadState describe the first open status of the lane. That is the
	// status itself if nothing is ahead.
	HeadMessageID string
	HeadNamespace string
	HeadStatusID  string
	HeadState     State
}

// Message returns a message. Because it shows a payload, it leaves an audit row (contract 11.3). It returns ErrNotFound
// if there is no such message.
func (o messageViews) Message(ctx context.Context, actor Actor, ref MessageRef) (Message, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	if err := ref.check(); err != nil {
		return Message{}, err
	}
	var stored models.Message
	err := o.viewed(ctx, actor, ActionView, "message "+ref.ID,
		func(ctx context.Context, pool gorm.ConnPool) (_ any, err error) {
			stored, err = o.loadMessage(ctx, pool, ref)
			return inNamespace(stored.Namespace), err
		})
	if err != nil {
		return Message{}, err
	}
	m, seal := o.redactedMessage(stored)
	value, identity := m.redacted(redact.PartPayload), sealing.IdentityOf(&stored, m.Properties.Channel)
	value.Bytes, m.Sealed = o.opened(ctx, value, identity, seal, stored.Content)
	m.Content = o.redactor.Bytes(value)
	if m.Statuses, err = o.statusesIn(ctx, m); err != nil {
		return Message{}, fmt.Errorf("show message %q: %w", ref.ID, err)
	}
	return m, nil
}

// check reports a reference that no message can have.
func (r MessageRef) check() error {
	return checkTexts(argument{"message ID", r.ID, 1, columns.MaxMessageID},
		argument{"namespace", r.Namespace, 0, columns.MaxChannel})
}

// inNamespace is the detail of an audit row.
func inNamespace(name string) map[string]any { return map[string]any{"namespace": name} }

// numberOf returns the number of a message.
func (o messageViews) numberOf(ctx context.Context, pool gorm.ConnPool, ref MessageRef) (int64, error) {
	found, err := o.store.Namesakes(ctx, pool, ref.ID, ref.Namespace)
	switch {
	case err != nil:
		return 0, err
	case len(found) == 0:
		return 0, fmt.Errorf("message %q: %w", ref.ID, ErrNotFound)
	case len(found) > 1:
		names := make([]string, len(found))
		for i, n := range found {
			names[i] = n.Namespace
		}
		return 0, fmt.Errorf("message %q: %w, name one: %q", ref.ID, ErrAmbiguous, names)
	}
	return int64(found[0].Number), nil
}

func (o messageViews) loadMessage(ctx context.Context, pool gorm.ConnPool, ref MessageRef) (models.Message, error) {
	number, err := o.numberOf(ctx, pool, ref)
	if err != nil {
		return models.Message{}, err
	}
	message, err := o.store.LoadMessage(ctx, pool, number)
	if err == nil && message == nil {
		err = fmt.Errorf("message %q: %w", ref.ID, ErrNotFound)
	}
	if err != nil {
		return models.Message{}, err
	}
	return *message, nil
}

// redacted returns what the redaction hook gets to know of a message.
func (m *Message) redacted(part redact.Part) redact.Value {
	return redact.Value{MessageID: m.ID, Type: m.Type, Channel: m.Properties.Channel, Part: part}
}

// opened returns a stored content as views may have it or, if it stays sealed, why.
func (o *access) opened(ctx context.Context, value redact.Value, identity handler.Identity, seal properties.Seal,
	stored []byte,
) (content []byte, sealed string) {
	if seal.Key == "" {
		return stored, ""
	}
	sealed = fmt.Sprintf("sealed with key %q", seal.Key)
	if !o.opts.OpenSealed || stored == nil {
		return nil, sealed
	}
	content, err := o.sealer.Open(ctx, identity, seal, stored)
	if err != nil {
		return nil, sealed + ", not opened: " + o.redactor.Error(value, err.Error())
	}
	return content, ""
}

// redactedMessage returns a message as operators see it, without its content and its statuses.
func (o messageViews) redactedMessage(stored models.Message) (Message, properties.Seal) {
	m := Message{ID: stored.ID, Namespace: stored.Namespace, Number: int64(stored.Number), Transport: stored.TransportName,
		Type: stored.Type, Source: stored.Source, ContentType: stored.ContentType, ReceivedAt: stored.ReceivedAt}
	p, seal, err := properties.ParseSealed(stored.SerializedProperties)
	if err != nil {
		m.PropertiesProblem = err.Error()
	}
	m.KeyID = seal.Key
	m.TraceID, m.OriginalID = traceID(p), p.Attributes[properties.ReplayOf]
	of := redact.Value{MessageID: m.ID, Type: m.Type, Channel: p.Channel}
	show := func(part redact.Part, name string, value []byte) []byte {
		of := of
		of.Part, of.Name, of.Bytes = part, name, value
		return o.redactor.Bytes(of)
	}
	m.OrderingKey = show(redact.PartKey, "", stored.OrderingKey)
	p.Headers = o.redactHeaders(of, p.Headers)
	for name, value := range p.Attributes {
		if name != properties.ReplayOf {
			p.Attributes[name] = string(show(redact.PartAttribute, name, []byte(value)))
		}
	}
	if p.Kafka != nil {
		p.Kafka.Key = show(redact.PartKey, "", p.Kafka.Key)
	}
	m.Properties = p
	return m, seal
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)

// traceID returns the trace ID of the header traceparent (W3C Trace Context) or, for a CloudEvent, of the attribute.
func traceID(p handler.Properties) string {
	texts := []string{p.Attributes["traceparent"]}
	for _, h := range p.Headers {
		if strings.EqualFold(h.Key, "traceparent") {
			texts = append(texts, string(h.Value))
		}
	}
	for _, text := range texts {
		if found := traceparent.FindStringSubmatch(text); found != nil && strings.Trim(found[1], "0") != "" {
			return found[1]
		}
	}
	return ""
}

// isStuck reports whether the worker that runs an attempt lists its call as one that does not return.
func isStuck(s Status, workers []Worker) bool {
	i := slices.IndexFunc(workers, func(w Worker) bool { return w.ID == s.WorkerID && w.Alive })
	return i >= 0 && slices.ContainsFunc(workers[i].Reasons, func(r HealthReason) bool {
		return r.Code == health.LongRunning && r.HandlerKey == s.HandlerKey && slices.Contains(r.MessageIDs, s.MessageID)
	})
}

// statusesIn returns a message's statuses, each with its place in its lane.
func (o messageViews) statusesIn(ctx context.Context, m Message) ([]StatusDetail, error) {
	stored, err := o.store.StatusesOf(ctx, o.pool(ctx), m.Number, maxListed)
	if err != nil {
		return nil, err
	}
	rows, err := o.rows(stored)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.HandlerKey, b.HandlerKey) }) // not by a collation
	var handlers []Handler
	var workers []Worker
	if slices.ContainsFunc(rows, func(r row) bool { return r.State == StatePending || r.State == StateProcessing }) {
		if handlers, workers, err = o.handlers(ctx); err != nil {
			return nil, err
		}
	}
	var details []StatusDetail
	for _, r := range rows {
		detail := StatusDetail{Status: r.Status, Attempts: r.attempts}
		i := slices.IndexFunc(handlers, func(h Handler) bool { return h.HandlerKey == r.HandlerKey })
		switch {
		case i < 0:
		case r.State == StatePending:
			detail.Obstacle = handlers[i].Obstacle
		case r.State == StateProcessing && isStuck(r.Status, workers):
			detail.Obstacle = "its call does not return"
		}
		if r.lane != nil && r.CompletedAt.IsZero() {
			if detail.Lane, err = o.placeInLane(ctx, r); err != nil {
				return nil, err
			}
		}
		details = append(details, detail)
	}
	return details, nil
}

// State is the state of a status.
type State string

// These are the states of a status.
const (
	// StatePending means not started, or waiting for the next attempt.
	StatePending State = "pending"
	// StateProcessing means claimed by a worker.
	StateProcessing State = "processing"
	StateCompleted  State = "completed"
	// StatePoisoned means given up and waiting for an operator.
	StatePoisoned   State = "poisoned"
	StateDiscarded  State = "discarded"
	StateSuperseded State = "superseded"
	// StateFailing is for filters. It matches the pending statuses that have failed since they were accepted or last
	// retried by an operator, and will be tried again. The State of such a status is StatePending, and its Failing is
	// true.
	StateFailing State = "failing"
)

// States returns all states in the order of a status's life, StateFailing last.
func States() []State {
	return []State{StatePending, StateProcessing, StateCompleted, StatePoisoned, StateDiscarded, StateSuperseded,
		StateFailing}
}

// Status is one handler's progress on one message, as lists show it. Times are UTC; a zero time means none.
type Status struct {
	ID         string
	MessageID  string
	Namespace  string // of the message's ID, see MessageRef
	HandlerKey string
	State      State
	// Failing means pending after a failed attempt, see StateFailing.
	Failing bool
	// Version guards actions: pass it in a Ref.
	Version int64

	ErrorCount     int
	AbandonedCount int
	// InterruptedCount is how many attempts in a row a failure of the database has interrupted, uncharged (contract
	// 5.7).
	InterruptedCount int
	RequeuedCount    int
	// LastError is redacted. It stays after a success, as history.
	LastError string
	// Fingerprint identifies the failure group; empty if the status has never failed.
	Fingerprint string

	CreatedAt           time.Time
	ProcessingStartedAt time.Time
	WorkerID            string
	// NextAttemptAt is zero if the status has been due since CreatedAt. It has a meaning only while the status is
	// pending.
	NextAttemptAt time.Time
	CompletedAt   time.Time
	// PoisonedAt is when it was poisoned; zero if it never was, or was retried since.
	PoisonedAt time.Time
	// Waiting means that a claim found it after another one of its lane (contract 5.12).
	Waiting bool
	// InLane means that it has an ordering key and an ordered handler.
	InLane bool

	// These are of its message.
	Type       string
	Source     string
	ReceivedAt time.Time
}

// NotBefore returns the time before which the status does not run for the first time: that of its message or handler,
// or one that a snooze or an operator has set (contract 4.8). It is zero if an attempt has failed or been interrupted,
// whose next one is then due at NextAttemptAt, and if the status is not pending. It may be past.
func (s Status) NotBefore() time.Time {
	if s.State != StatePending || s.ErrorCount+s.AbandonedCount+s.InterruptedCount > 0 {
		return time.Time{}
	}
	return s.NextAttemptAt
}

// Message returns a reference to the status's message.
func (s Status) Message() MessageRef { return MessageRef{ID: s.MessageID, Namespace: s.Namespace} }

// MessageRef identifies a message. An ID is unique only within its namespace, which is the channel's name unless
// channels share their IDs (contract 4.4). An empty Namespace means any: the error is ErrAmbiguous if several have a
// message with that ID.
type MessageRef struct{ ID, Namespace string }

// Ref returns the status at the version seen.
func (s Status) Ref() Ref { return Ref{StatusID: s.ID, Version: s.Version} }

// Ref identifies a status for an action.
type Ref struct {
	StatusID string
	// Version is the one that the operator saw: if the status has another one, or is no longer open, the action returns
	// ErrStale. 0 matches any version.
	Version int64
}

// Markers returns the markers of a message ID: which handlers have processed the message inline, and when. An empty
// handlerKey or namespace means any. They are sorted by handler key and namespace, at most 1,000. Markers that a store
// outside the database keeps are not among them (contract 8.4, 11.1).
func (o messageViews) Markers(ctx context.Context, messageID, handlerKey, namespace string) ([]models.Marker, error) {
	if err := checkTexts(argument{"message ID", messageID, 1, columns.MaxMessageID},
		argument{"handler key", handlerKey, 0, columns.MaxMessageID},
		argument{"namespace", namespace, 0, columns.MaxMessageID}); err != nil {
		return nil, err
	}
	found, err := o.store.MarkersOf(ctx, o.pool(ctx), messageID, handlerKey, namespace, maxListed)
	if err != nil {
		return nil, fmt.Errorf("list markers of message %q: %w", messageID, err)
	}
	return found, nil
}
