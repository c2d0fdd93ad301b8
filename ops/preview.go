package ops

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// previewLimit is the size up to which a preview reads headers, attributes and the input of a Redact hook as a whole.
// Longer ones are left out.
const previewLimit = 1 << 20

// PreviewBounds limits how many bytes a preview reads; 0 reads none.
type PreviewBounds struct {
	Content int // of a message's content or a rejected record's value
	Key     int // of the ordering key or the record's key
}

// Preview is the beginning of stored bytes.
type Preview struct {
	// Bytes are redacted. They are nil if there are none, or none were requested.
	Bytes []byte
	// Size is the length of what is stored.
	Size int64
	// None means that nothing is stored at all, which differs from empty bytes.
	None bool
	// Cut means that Bytes are only the beginning.
	Cut bool
	// Withheld means that the value is longer than 1 MiB. There are no Bytes then: a Redact hook must see the whole
	// value, because it may not recognize half a secret.
	Withheld bool
}

// MessagePreview is a message whose Content and OrderingKey are in Payload and Key, as far as they were requested.
// Properties longer than 1 MiB are left out, and PropertiesProblem says so.
type MessagePreview struct {
	Message
	Payload Preview
	Key     Preview
}

// PreviewMessage is like Message, but returns only the beginning: it reads no more than requested,
// however large the message is.
func (o *Ops) PreviewMessage(
	ctx context.Context, actor Actor, ref MessageRef, bounds PreviewBounds,
) (MessagePreview, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	if err := ref.check(); err != nil {
		return MessagePreview{}, err
	}
	var m MessagePreview
	err := o.audited(ctx, actor, ActionView, "message "+ref.ID, func(ctx context.Context, tx *gorm.DB) (any, error) {
		number, err := o.numberOf(ctx, tx.Statement.ConnPool, ref)
		if err != nil {
			return nil, err
		}
		previews, err := query(ctx, o, tx.Statement.ConnPool, previewMessage, o.scanPreview,
			append([]any{number}, o.cuts(bounds)...)...)
		if err == nil && len(previews) == 0 {
			err = fmt.Errorf("message %q: %w", ref.ID, ErrNotFound)
		}
		if err == nil {
			m = previews[0]
		}
		return inNamespace(m.Namespace), err
	})
	if err != nil {
		return MessagePreview{}, err
	}
	if m.Statuses, err = o.statusesIn(ctx, m.Message); err != nil {
		return MessagePreview{}, fmt.Errorf("show message %q: %w", ref.ID, err)
	}
	return m, nil
}

// cuts returns the parameters $2 to $6 of a preview's statement. For the content and for the key
// they are the length up to which it is read whole, and how much of a longer one is read. The last
// one is the limit of the properties.
func (o *Ops) cuts(bounds PreviewBounds) []any {
	of := func(n int) (whole, head int) {
		switch {
		case n <= 0:
			return -1, 0
		case o.redacts():
			return previewLimit, 0
		}
		return n, n
	}
	content, contentHead := of(bounds.Content)
	key, keyHead := of(bounds.Key)
	return []any{content, contentHead, key, keyHead, previewLimit}
}

// previewMessage uses the unique index on the messages' numbers. It gets lengths without reading
// the bytes; on PostgreSQL it does not decompress them either.
const previewMessage = `
SELECT id, namespace, number, transport_name, type, source, content_type, received_at,
	length(content), CASE WHEN length(content) <= $2 THEN content WHEN $3 > 0 THEN substr(content, 1, $3) END,
	ordering_key IS NULL, length(ordering_key),
	CASE WHEN length(ordering_key) <= $4 THEN ordering_key WHEN $5 > 0 THEN substr(ordering_key, 1, $5) END,
	{octets}serialized_properties{/octets}, CASE WHEN {octets}serialized_properties{/octets} <= $6 THEN serialized_properties END
FROM {messages} WHERE number = $1`

func (o *Ops) scanPreview(rows *sql.Rows, m *MessagePreview) error {
	var (
		stored                    models.Message
		received                  store.Stamp
		content, key              []byte
		contentSize, keySize, all sql.NullInt64
		noKey                     bool
		properties                sql.NullString
	)
	err := rows.Scan(&stored.ID, &stored.Namespace, &stored.Number, &stored.TransportName, &stored.Type, &stored.Source,
		&stored.ContentType, &received,
		&contentSize, &content, &noKey, &keySize, &key, &all, &properties)
	if err != nil {
		return err
	}
	stored.ReceivedAt = received.Time
	if stored.SerializedProperties = properties.String; !properties.Valid {
		stored.SerializedProperties = "{}"
	}
	m.Message = o.shown(stored)
	if !properties.Valid {
		m.PropertiesProblem = tooLong(all.Int64)
	}
	of := redact.Value{MessageID: m.ID, Type: m.Type, Channel: m.Properties.Channel, Part: redact.PartPayload}
	m.Payload = o.preview(of, content, contentSize.Int64, false)
	of.Part = redact.PartKey
	m.Key = o.preview(of, key, keySize.Int64, noKey)
	return nil
}

func tooLong(size int64) string {
	return fmt.Sprintf("they have %d bytes, more than are shown here (%d)", size, previewLimit)
}

// preview redacts the bytes that were read; size is how many are stored.
func (o *Ops) preview(of redact.Value, read []byte, size int64, none bool) Preview {
	p := Preview{Size: size, None: none, Withheld: o.redacts() && size > previewLimit}
	if p.Cut = int64(len(read)) < size; none || read == nil && p.Cut {
		return p
	}
	if of.Bytes = read; read == nil { // what a driver makes of empty bytes is its own affair
		of.Bytes = []byte{}
	}
	p.Bytes = o.redactor.Bytes(of)
	return p
}

// RejectedPreview is a rejected message whose Key and Value are in RecordKey and Payload, as far as
// they were requested.
type RejectedPreview struct {
	Rejected
	RecordKey Preview
	Payload   Preview
	Headers   []handler.Header
	// HeadersProblem is why the stored headers are missing: they cannot be read, or are longer than 1 MiB. It is empty if
	// they are present.
	HeadersProblem string
}

// PreviewRejected is like Rejected, but returns only the beginning: it reads no more than
// requested, however large the record is.
func (o *Ops) PreviewRejected(
	ctx context.Context, actor Actor, id string, bounds PreviewBounds,
) (RejectedPreview, error) {
	id, err := checkID("rejected message ID", id)
	if err != nil {
		return RejectedPreview{}, err
	}
	var r RejectedPreview
	err = o.audited(ctx, actor, actionViewRejected, "rejected message "+id,
		func(ctx context.Context, tx *gorm.DB) (any, error) {
			previews, err := query(ctx, o, tx.Statement.ConnPool, previewRejected, o.scanRejectedPreview,
				append([]any{id}, o.cuts(bounds)...)...)
			if err == nil && len(previews) == 0 {
				err = ErrNotFound
			}
			if err == nil {
				r = previews[0]
			}
			return nil, err
		})
	if err != nil { // what was read leaves no audit row, so it is not shown
		return RejectedPreview{}, err
	}
	return r, nil
}

// previewRejected uses the primary key.
const previewRejected = `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, reason, rejected_at,
	"value" IS NULL, length("value"), CASE WHEN length("value") <= $2 THEN "value" WHEN $3 > 0 THEN substr("value", 1, $3) END,
	"key" IS NULL, length("key"), CASE WHEN length("key") <= $4 THEN "key" WHEN $5 > 0 THEN substr("key", 1, $5) END,
	{octets}headers{/octets}, CASE WHEN {octets}headers{/octets} <= $6 THEN headers END
FROM {rejected} WHERE id = $1`

func (o *Ops) scanRejectedPreview(rows *sql.Rows, r *RejectedPreview) error {
	var (
		timestamp, rejected     store.Stamp
		value, key              []byte
		valueSize, keySize, all sql.NullInt64
		noValue, noKey          bool
		headers                 sql.NullString
	)
	err := rows.Scan(&r.ID, &r.Channel, &r.Topic, &r.Partition, &r.Offset, &timestamp, &r.Reason, &rejected,
		&noValue, &valueSize, &value, &noKey, &keySize, &key, &all, &headers)
	if err != nil {
		return err
	}
	r.Timestamp, r.RejectedAt, r.Size = timestamp.Time, rejected.Time, keySize.Int64+valueSize.Int64
	of := redact.Value{MessageID: r.ID, Channel: r.Channel, Part: redact.PartPayload}
	r.Payload = o.preview(of, value, valueSize.Int64, noValue)
	of.Part = redact.PartKey
	r.RecordKey = o.preview(of, key, keySize.Int64, noKey)
	r.Reason = o.redactor.Error(of, r.Reason)
	if !headers.Valid {
		r.HeadersProblem = tooLong(all.Int64)
		return nil
	}
	if r.Headers, err = properties.ParseHeaders(headers.String); err != nil {
		r.HeadersProblem = err.Error()
	}
	r.Headers = o.redactHeaders(of, r.Headers)
	return nil
}

// redacts reports whether there is a hook. Without one only passwords in errors are masked.
func (o *Ops) redacts() bool { return o.redactor.Hook() != nil }

// redactHeaders returns redacted headers. It does not change its argument.
func (o *Ops) redactHeaders(of redact.Value, headers []handler.Header) []handler.Header {
	if !o.redacts() {
		return headers
	}
	shown := make([]handler.Header, len(headers))
	for i, h := range headers {
		of.Part, of.Name, of.Bytes = redact.PartHeader, h.Key, h.Value
		shown[i] = handler.Header{Key: h.Key, Value: o.redactor.Bytes(of)}
	}
	return shown
}
