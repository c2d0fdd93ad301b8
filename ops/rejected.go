package ops

import (
	"cmp"
	"context"
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

// RejectedFilter selects the rejected messages to list or to accept again. A message must match every field; the zero
// value matches all. Audit rows store it as JSON.
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
	// Size is the size of key and value in bytes.
	Size int64
}

// RejectedRecord is a rejected message with its record, redacted. A nil Key or Value means none, which differs from an
// empty one.
type RejectedRecord struct {
	Rejected
	Key   []byte
	Value []byte
	// KeyID and Sealed are about Value, as those of a Message about its content.
	KeyID, Sealed string
	Headers       []handler.Header
	// HeadersProblem is why the stored headers cannot be read; empty if they can.
	HeadersProblem string
}

// ListRejected returns a page of the rejected messages that match, the latest first. See List for after and limit.
func (o rejections) ListRejected(ctx context.Context, filter RejectedFilter, after Cursor, limit int) (
	Page[Rejected], error,
) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	s, err := o.searchRejected(filter)
	if err != nil {
		return Page[Rejected]{}, err
	}
	page, err := pageOf(ctx, "rejected", filter, after, limit, s.judges(), s.reading(false), placeOfRejected, s.takes)
	if err != nil {
		return Page[Rejected]{}, fmt.Errorf("list rejected messages: %w", err)
	}
	return pageAs(page, func(h store.RejectedHit) Rejected { return rejectedOf(&h.RejectedMessage, h.Size) }), nil
}

// rejectedSearch is a RejectedFilter that has been checked.
type rejectedSearch struct {
	RejectedFilter
	of             *access
	oldest, before time.Time // as statements compare them
	reason, inSQL  string    // in lower case
	partition      int32     // -1 for all
}

func (o rejections) searchRejected(filter RejectedFilter) (*rejectedSearch, error) {
	if err := checkTexts(argument{name: "channel", text: filter.Channel}, argument{name: "topic", text: filter.Topic},
		argument{name: "reason", text: filter.Reason}); err != nil {
		return nil, err
	}
	if err := checkAges(filter.From, filter.To); err != nil {
		return nil, err
	}
	s := &rejectedSearch{RejectedFilter: filter, of: o.access, reason: strings.ToLower(filter.Reason), partition: -1}
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

func (s *rejectedSearch) takes(h store.RejectedHit) bool {
	return strings.Contains(strings.ToLower(h.Reason), s.reason) && within(h.RejectedAt, s.From, s.To)
}

// reading returns the function that reads a part of the list. The reasons that it returns are redacted.
func (s *rejectedSearch) reading(earliest bool) func(context.Context, place, int, int) (
	part[store.RejectedHit], error,
) {
	o := s.of
	return func(ctx context.Context, p place, depth, limit int) (part[store.RejectedHit], error) {
		if p.At == lastTime {
			p.At = store.ListTime(s.before)
		}
		if new(store.Stamp).Scan(p.At) != nil {
			return part[store.RejectedHit]{}, badInput("cursor", "it is not one of this list")
		}
		scan := store.RejectedScan{Earliest: earliest, After: p.ListPlace, Depth: depth, Limit: limit, Channel: s.Channel,
			Topic: s.Topic, Partition: s.partition, Reason: s.inSQL, From: s.oldest, To: s.before}
		rows, err := o.store.ScanRejected(ctx, o.largePool(ctx), scan)
		for i := range rows {
			h := &rows[i]
			h.Reason = o.redactor.Error(redact.Value{MessageID: h.ID, Channel: h.Channel}, h.Reason)
		}
		return parted(rows, placeOfRejected, func(h store.RejectedHit) (int, bool) { return h.Looked, h.Closes }), err
	}
}

func placeOfRejected(h store.RejectedHit) place {
	return place{ListPlace: store.ListPlace{At: h.At, ID: h.ID}}
}

// Rejected returns one rejected message with its record, and leaves an audit row. It returns ErrNotFound if there is
// none with that ID.
func (o rejections) Rejected(ctx context.Context, actor Actor, id string) (RejectedRecord, error) {
	return viewRejected(ctx, o, actor, id, o.store.RejectedRecord, o.record)
}

// viewRejected loads a rejected message and returns it as it is shown, with an audit row.
func viewRejected[Stored, Shown any](ctx context.Context, o rejections, actor Actor, id string,
	load func(ctx context.Context, pool gorm.ConnPool, id string) (*Stored, error),
	show func(context.Context, *Stored) Shown,
) (shown Shown, err error) {
	if id, err = checkID("rejected message ID", id); err != nil {
		return shown, err
	}
	var stored *Stored
	err = o.viewed(ctx, actor, actionViewRejected, "rejected message "+id,
		func(ctx context.Context, pool gorm.ConnPool) (any, error) {
			var err error
			if stored, err = load(ctx, pool, id); err == nil && stored == nil {
				err = ErrNotFound
			}
			return nil, err
		})
	if err != nil { // without an audit row the payload must not be shown
		return shown, err
	}
	return show(ctx, stored), nil
}

// rejectedOf returns a rejected message without its record. Its reason is not redacted.
func rejectedOf(m *models.RejectedMessage, size int64) Rejected {
	return Rejected{ID: m.ID, Channel: m.Channel, Topic: m.Topic, Partition: m.Partition, Offset: m.Offset,
		Timestamp: m.Timestamp, Reason: m.Reason, RejectedAt: m.RejectedAt, Size: size}
}

func (o rejections) record(ctx context.Context, m *models.RejectedMessage) RejectedRecord {
	r := RejectedRecord{Rejected: rejectedOf(m, int64(len(m.Key)+len(m.Value)))}
	of := redact.Value{MessageID: r.ID, Channel: r.Channel}
	r.Reason = o.redactor.Error(of, r.Reason)
	r.Headers, r.HeadersProblem = o.headers(of, m.Headers)
	of.Part, of.Bytes = redact.PartKey, m.Key
	r.Key = o.redactor.Bytes(of)
	_, seal := properties.SealOfRejected(m.Headers)
	r.KeyID, of.Part = seal.Key, redact.PartPayload
	of.Bytes, r.Sealed = o.opened(ctx, of, handler.Identity{Channel: r.Channel, ID: r.ID}, seal, m.Value)
	r.Value = o.redactor.Bytes(of)
	return r
}

// headers returns stored headers, redacted, and why they cannot be read.
func (o rejections) headers(of redact.Value, stored string) (headers []handler.Header, problem string) {
	headers, err := properties.ParseHeaders(stored)
	if err != nil {
		problem = err.Error()
	}
	return o.redactHeaders(of, headers), problem
}

// ReAccept accepts a rejected message's record again, by the present decoder and handlers of its channel, and deletes
// the rejected row, with the audit row in the same transaction. It returns ErrNotFound for an unknown ID. If the record
// is still bad, its row stays with the new reason, and the error is a *handler.StillBadError, whose reason is redacted.
// It needs a Live (contract 7.4, 11.1).
//
// Handlers of an Inline or Direct channel run now, once each, before ReAccept returns: give ctx a deadline, of which
// they have three quarters. One audit row records the begin, another one the end. If a handler fails, the row stays
// with the new reason, as above. ErrPaused and ErrProcessing mean that none has run.
func (o rejections) ReAccept(ctx context.Context, actor Actor, id string) ([]Accepted, error) {
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
func (o rejections) acceptRejected(ctx context.Context, actor Actor, id string, filter *RejectedFilter) (
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

// redactStillBad redacts why a record is still bad. If the audit row could not be written either, only that is
// returned: nothing is shown without an audit row.
func (o rejections) redactStillBad(err error) error {
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

// DeleteRejected deletes a rejected message permanently. confirmation must repeat its ID, otherwise it returns
// ErrBadInput.
func (o rejections) DeleteRejected(ctx context.Context, actor Actor, id, confirmation string) error {
	id, err := checkID("rejected message ID", id)
	if err == nil && !strings.EqualFold(id, confirmation) {
		err = badInput("confirmation", "it is not the rejected message's ID")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", actionDeleteRejected, err)
	}
	return o.audited(ctx, actor, actionDeleteRejected, "rejected message "+id,
		func(ctx context.Context, tx *gorm.DB) (any, error) {
			deleted, err := o.store.DropRejected(ctx, tx.Statement.ConnPool, id)
			if err == nil && deleted == nil {
				err = ErrNotFound
			}
			if err != nil {
				return nil, err
			}
			return rejectedDetail{deleted.Channel, deleted.Topic, deleted.Partition, deleted.Offset}, nil
		})
}

// rejectedDetail is the audit's detail of a deletion.
type rejectedDetail struct {
	Channel   string `json:"channel"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// ListGaps returns a page of the gaps that consumers continued after, the latest first (contract 7.5). See List for
// after and limit.
func (o rejections) ListGaps(ctx context.Context, after Cursor, limit int) (Page[models.Gap], error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	read := func(ctx context.Context, p place, _, limit int) (part[models.Gap], error) {
		gaps, err := o.store.GapsBefore(ctx, o.largePool(ctx), p.ID, limit)
		return part[models.Gap]{items: gaps, looked: len(gaps)}, err
	}
	page, err := pageOf(ctx, "gaps", nil, after, limit, false, read, func(g models.Gap) place {
		return place{ListPlace: store.ListPlace{ID: g.ID}}
	}, func(models.Gap) bool { return true })
	if err != nil {
		return Page[models.Gap]{}, fmt.Errorf("list gaps: %w", err)
	}
	return page, nil
}
