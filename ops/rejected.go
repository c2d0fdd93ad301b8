package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// RejectedFilter selects the rejected messages to list or to accept again. A message must match every
// field; the zero value matches all. Audit rows store it as JSON.
type RejectedFilter struct {
	Channel string `json:"channel,omitempty"`
	Topic   string `json:"topic,omitempty"`
	// Partition is one of Topic. Without a Topic it is ErrBadInput. Nil matches all.
	Partition *int32 `json:"partition,omitempty"`
	// From and To limit when the message was rejected: not before From, and before To.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Reason is a substring of the reason, ignoring case.
	Reason string `json:"reason,omitempty"`
}

// Rejected is a rejected message without its record.
type Rejected struct {
	ID         string
	Channel    string
	Topic      string
	Partition  int32
	Offset     int64
	Timestamp  time.Time
	Reason     string // redacted
	RejectedAt time.Time
	// Size is that of key and value in bytes.
	Size int64
}

// RejectedRecord is a rejected message with its record, redacted. A nil Key or Value means none,
// which differs from an empty one.
type RejectedRecord struct {
	Rejected
	Key     []byte
	Value   []byte
	Headers []handler.Header
	// HeadersProblem is why the stored headers cannot be read; empty if they can.
	HeadersProblem string
}

// ListRejected returns a page of the rejected messages that match, the latest first. See List for after and limit.
func (o *Ops) ListRejected(ctx context.Context, filter RejectedFilter, after Cursor, limit int) (
	Page[Rejected], error,
) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	s, err := o.searchRejected(filter)
	if err != nil {
		return Page[Rejected]{}, err
	}
	page, err := pageOf(ctx, "rejected", filter, after, limit, s.judges(), s.reading(listRejected), placeOfRejected, s.takes)
	if err != nil {
		return Page[Rejected]{}, fmt.Errorf("list rejected messages: %w", err)
	}
	return pageAs(page, func(r rejectedRow) Rejected { return r.Rejected }), nil
}

// rejectedSearch is a RejectedFilter that has been checked.
type rejectedSearch struct {
	RejectedFilter
	ops            *Ops
	oldest, before time.Time // as statements compare them
	reason, inSQL  string    // in lower case
	partition      int32     // -1 for all
}

func (o *Ops) searchRejected(filter RejectedFilter) (*rejectedSearch, error) {
	for _, each := range []struct{ name, text string }{{"channel", filter.Channel}, {"topic", filter.Topic},
		{"reason", filter.Reason}} {
		if err := checkText(each.name, each.text, 0, 0); err != nil {
			return nil, err
		}
	}
	if err := checkAges(filter.From, filter.To); err != nil {
		return nil, err
	}
	s := &rejectedSearch{RejectedFilter: filter, ops: o, reason: strings.ToLower(filter.Reason), partition: -1}
	s.oldest, s.before = o.roughly(filter.From, filter.To)
	s.inSQL = o.sqlText(s.reason)
	if filter.Partition != nil {
		switch s.partition = *filter.Partition; {
		case s.partition < 0:
			return nil, badInput("partition", "%d: must be 0 or more", s.partition)
		case filter.Topic == "":
			return nil, badInput("partition", "it is given without a topic")
		}
	}
	return s, nil
}

// judges reports whether takes must compare reasons because statements cannot.
func (s *rejectedSearch) judges() bool { return s.inSQL != s.reason }

func (s *rejectedSearch) takes(r rejectedRow) bool {
	return strings.Contains(strings.ToLower(r.Reason), s.reason) &&
		(s.From.IsZero() || !r.RejectedAt.Before(s.From)) && (s.To.IsZero() || r.RejectedAt.Before(s.To))
}

// reading returns what reads a part of the list by this statement, listRejected or listEarliestRejected.
func (s *rejectedSearch) reading(statement string) func(context.Context, place, int, int) (part[rejectedRow], error) {
	o := s.ops
	return func(ctx context.Context, p place, depth, limit int) (part[rejectedRow], error) {
		if p.At == lastTime {
			p.At = store.SQLiteTime(s.before)
		}
		at, err := o.argument(p.At)
		if err != nil {
			return part[rejectedRow]{}, badInput("cursor", "it is not one of this list")
		}
		rows, err := readMany(ctx, o, statement, o.scanRejected, at, p.ID, o.stamp(s.oldest), depth, limit, s.Channel,
			s.Topic, o.stamp(s.before), s.inSQL, s.partition)
		return parted(rows, placeOfRejected, func(r rejectedRow) (int, bool) { return r.looked, r.closes }), err
	}
}

func placeOfRejected(r rejectedRow) place { return place{At: string(r.at), ID: r.ID} }

const (
	ofRejected = `
WITH looked AS (
	SELECT id, channel, topic, "partition", record_offset, record_timestamp, reason, rejected_at, {rejected as stored} AS at,
		COALESCE(length("key"), 0) + COALESCE(length("value"), 0) AS size
	FROM {rejected} WHERE `

	matchRejected = `($6 = '' OR channel = $6) AND ($7 = '' OR topic = $7) AND ($10 < 0 OR "partition" = $10)
		AND ($9 = '' OR {index of}lower(reason{bytewise}), $9) > 0)`
)

// listRejected uses rejected_messages_rejected_at, the latest first.
const listRejected = ofRejected + `(rejected_at, id) < ($1, $2) AND rejected_at >= $3 ORDER BY rejected_at DESC, id DESC LIMIT $4
)
SELECT false AS closes, 0 AS n, f.*, row_number() OVER (ORDER BY rejected_at DESC, id DESC) AS rank
FROM (
	SELECT * FROM looked WHERE ` + matchRejected + ` AND rejected_at < $8 ORDER BY rejected_at DESC, id DESC LIMIT $5
) f
UNION ALL
SELECT true, (SELECT count(*) FROM looked), l.*, 0 FROM (SELECT * FROM looked ORDER BY rejected_at, id LIMIT 1) l
ORDER BY rank`

// listEarliestRejected uses rejected_messages_rejected_at, the earliest first.
const listEarliestRejected = ofRejected + `(rejected_at, id) > ($1, $2) AND rejected_at < $8 ORDER BY rejected_at, id LIMIT $4
)
SELECT false AS closes, 0 AS n, f.*, row_number() OVER (ORDER BY rejected_at, id) AS rank
FROM (
	SELECT * FROM looked WHERE ` + matchRejected + ` AND rejected_at >= $3 ORDER BY rejected_at, id LIMIT $5
) f
UNION ALL
SELECT true, (SELECT count(*) FROM looked), l.*, 0 FROM (SELECT * FROM looked ORDER BY rejected_at DESC, id DESC LIMIT 1) l
ORDER BY rank`

// rejectedRow is an item with its place, or the last row that was read.
type rejectedRow struct {
	Rejected
	at     stored
	closes bool
	looked int
}

func (o *Ops) scanRejected(rows *sql.Rows, r *rejectedRow) error {
	var timestamp, rejected store.Stamp
	var rank int64
	err := rows.Scan(&r.closes, &r.looked, &r.ID, &r.Channel, &r.Topic, &r.Partition, &r.Offset, &timestamp, &r.Reason,
		&rejected, &r.at, &r.Size, &rank)
	r.Timestamp, r.RejectedAt = timestamp.Time, rejected.Time
	r.Reason = o.redactor.Error(redact.Value{MessageID: r.ID, Channel: r.Channel}, r.Reason)
	return err
}

// Rejected returns one rejected message with its record, and leaves an audit row. It returns
// ErrNotFound if there is none with that ID.
func (o *Ops) Rejected(ctx context.Context, actor Actor, id string) (RejectedRecord, error) {
	id, err := checkID("rejected message ID", id)
	if err != nil {
		return RejectedRecord{}, err
	}
	var record RejectedRecord
	err = o.audited(ctx, actor, actionViewRejected, "rejected message "+id,
		func(ctx context.Context, tx *gorm.DB) (any, error) {
			found, err := query(ctx, o, tx.Statement.ConnPool, oneRejected, o.scanRecord, id)
			if err == nil && len(found) == 0 {
				err = ErrNotFound
			}
			if err == nil {
				record = found[0]
			}
			return nil, err
		})
	if err != nil { // what was read leaves no audit row, so it is not shown
		return RejectedRecord{}, err
	}
	return record, nil
}

// oneRejected uses the primary key. Separate columns distinguish an empty key or value from none.
const oneRejected = `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, reason, rejected_at, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value", headers
FROM {rejected} WHERE id = $1`

func (o *Ops) scanRecord(rows *sql.Rows, r *RejectedRecord) error {
	var timestamp, rejected store.Stamp
	var hasKey, hasValue bool
	var headers string
	err := rows.Scan(&r.ID, &r.Channel, &r.Topic, &r.Partition, &r.Offset, &timestamp, &r.Reason, &rejected, &hasKey,
		&r.Key, &hasValue, &r.Value, &headers)
	if err != nil {
		return err
	}
	r.Timestamp, r.RejectedAt, r.Size = timestamp.Time, rejected.Time, int64(len(r.Key)+len(r.Value))
	if hasKey && r.Key == nil {
		r.Key = []byte{}
	}
	if hasValue && r.Value == nil {
		r.Value = []byte{}
	}
	if r.Headers, err = properties.ParseHeaders(headers); err != nil {
		r.HeadersProblem = err.Error()
	}
	of := redact.Value{MessageID: r.ID, Channel: r.Channel}
	r.Headers = o.redactHeaders(of, r.Headers)
	of.Part, of.Bytes = redact.PartKey, r.Key
	r.Key = o.redactor.Bytes(of)
	of.Part, of.Bytes = redact.PartPayload, r.Value
	r.Value = o.redactor.Bytes(of)
	r.Reason = o.redactor.Error(of, r.Reason)
	return nil
}

// ReAccept accepts a rejected message's record again, by the present decoder and handlers of its
// channel, and deletes the rejected row, with the audit row in the same transaction. It returns
// ErrNotFound for an unknown ID. If the record is still bad, its row stays with the new reason, and
// the error is a *handler.StillBadError, whose reason is redacted. It needs a Live (contract 7.4,
// 11.1).
//
// Handlers of an Inline or Direct channel run now, once each, before ReAccept returns: give ctx a deadline, of which
// they have three quarters. An audit row tells of the begin, another one of the end. What a handler says is wrong keeps
// the row, as above. ErrPaused and ErrProcessing mean that none has run.
func (o *Ops) ReAccept(ctx context.Context, actor Actor, id string) ([]Accepted, error) {
	if err := o.Can(ActionReAccept); err != nil {
		return nil, err
	}
	id, err := checkID("rejected message ID", id)
	if err == nil {
		err = actor.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ActionReAccept, err)
	}
	target := "rejected message " + id
	accepted, _, err := o.acceptRejected(ctx, actor, id, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", ActionReAccept, target, err)
	}
	return accepted, nil
}

// acceptRejected has the application accept a rejected message again, with its audit rows. filter is nil unless all
// that match it are accepted. It returns the ID of the audit row that is written with the accept.
func (o *Ops) acceptRejected(ctx context.Context, actor Actor, id string, filter *RejectedFilter) (
	accepted []Accepted, auditID string, err error,
) {
	target := "rejected message " + id
	begin, err := o.entry(actor, ActionReAccept, target, reAcceptDetail{"begun", filter})
	if err != nil {
		return nil, "", err
	}
	end, err := o.entry(actor, ActionReAccept, target, reAcceptDetail{"", filter})
	if err != nil {
		return nil, "", err
	}
	begun := func(ctx context.Context) error {
		return o.act(ctx, func(ctx context.Context, tx *gorm.DB) error { return o.store.AddAuditTx(ctx, tx, begin) })
	}
	accepted, err = o.opts.Live.AcceptRejected(ctx, id, begun, end)
	return accepted, end.ID, o.redactStillBad(err)
}

// reAcceptDetail is the audit's detail of a rejected message that is accepted again.
type reAcceptDetail struct {
	Event  string          `json:"event,omitempty"`
	Filter *RejectedFilter `json:"filter,omitempty"`
}

// redactStillBad redacts why a record is still bad. If the audit row could not be written either,
// only that is returned: nothing is shown without an audit row.
func (o *Ops) redactStillBad(err error) error {
	var still *handler.StillBadError
	if !errors.As(err, &still) {
		return err
	}
	var others []error
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, each := range several.Unwrap() {
			if !errors.As(each, new(*handler.StillBadError)) {
				others = append(others, each)
			}
		}
	}
	if errors.Is(err, ErrNotAudited) {
		return cmp.Or(errors.Join(others...), ErrNotAudited)
	}
	if o.redacts() {
		reason := o.redactor.Error(redact.Value{MessageID: still.ID, Channel: still.Channel}, still.Err.Error())
		still = &handler.StillBadError{ID: still.ID, Channel: still.Channel, Err: errors.New(reason)}
	}
	if len(others) == 0 {
		return still
	}
	return errors.Join(append([]error{still}, others...)...)
}

// DeleteRejected deletes a rejected message for good. confirmation must repeat its ID, otherwise it
// returns ErrBadInput.
func (o *Ops) DeleteRejected(ctx context.Context, actor Actor, id, confirmation string) error {
	id, err := checkID("rejected message ID", id)
	if err == nil && !strings.EqualFold(id, confirmation) {
		err = badInput("confirmation", "it is not the rejected message's ID")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionDeleteRejected, err)
	}
	return o.audited(ctx, actor, actionDeleteRejected, "rejected message "+id,
		func(ctx context.Context, tx *gorm.DB) (any, error) {
			deleted, err := query(ctx, o, tx.Statement.ConnPool, deleteRejected, func(rows *sql.Rows, r *rejectedDetail) error {
				return rows.Scan(&r.Channel, &r.Topic, &r.Partition, &r.Offset)
			}, id)
			if err == nil && len(deleted) == 0 {
				err = ErrNotFound
			}
			if err != nil {
				return nil, err
			}
			return deleted[0], nil
		})
}

// deleteRejected uses the primary key.
const deleteRejected = `DELETE FROM {rejected} WHERE id = $1 RETURNING channel, topic, "partition", record_offset`

// rejectedDetail is the audit's detail of a deletion.
type rejectedDetail struct {
	Channel   string `json:"channel"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// ListGaps returns a page of the gaps that consumers continued after, the latest first (contract 7.5). See List for
// after and limit.
func (o *Ops) ListGaps(ctx context.Context, after Cursor, limit int) (Page[models.Gap], error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	read := func(ctx context.Context, p place, _, limit int) (part[models.Gap], error) {
		gaps, err := readMany(ctx, o, walkGaps, func(rows *sql.Rows, g *models.Gap) error {
			var found store.Stamp
			err := rows.Scan(&g.ID, &g.Channel, &g.Topic, &g.Partition, &g.FromOffset, &g.ToOffset, &g.Reason, &found)
			g.FoundAt = found.Time
			return err
		}, p.ID, limit)
		return part[models.Gap]{items: gaps, looked: len(gaps)}, err
	}
	page, err := pageOf(ctx, "gaps", nil, after, limit, false, read, func(g models.Gap) place {
		return place{ID: g.ID}
	}, func(models.Gap) bool { return true })
	if err != nil {
		return Page[models.Gap]{}, fmt.Errorf("list gaps: %w", err)
	}
	return page, nil
}

// walkGaps uses the gaps' primary key: the IDs ascend with time.
const walkGaps = `
SELECT id, channel, topic, "partition", from_offset, to_offset, reason, found_at FROM {gaps} WHERE id < $1 ORDER BY id DESC LIMIT $2`
