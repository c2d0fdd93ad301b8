package ops

import (
	"bytes"
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// previewLimit is the size up to which a preview reads headers, attributes and the input of a Redact hook as a whole.
// Longer ones are left out.
const previewLimit = 1 << 20

// PreviewBounds limits how many bytes a preview shows; 0 shows none. It reads no more of a stored value either, but up
// to 1 MiB for a Redact hook or to open a sealed content. An opened content is in memory as a whole.
type PreviewBounds struct {
	Content int // of a message's content or a rejected record's value
	Key     int // of the ordering key or the record's key
}

// Preview is the beginning of stored bytes.
type Preview struct {
	// Bytes are redacted. They are nil if there are none, or none were requested.
	Bytes []byte
	// Size is the length of the stored value.
	Size int64
	// None means that nothing is stored at all, which differs from empty bytes.
	None bool
	// Cut means that Bytes are only the beginning.
	Cut bool
	// Withheld means that the value, opened if it is sealed, is longer than 1 MiB. There are no Bytes then: a Redact hook
	// must see the whole value, because it may not recognize half a secret.
	Withheld bool
	// Sealed says in words why there are no Bytes although the value is stored: it is sealed, or may be (contract 15).
	Sealed string
}

// MessagePreview is a message whose Content and OrderingKey are in Payload and Key, as far as they were requested.
// Properties longer than 1 MiB are left out, and PropertiesProblem says so.
type MessagePreview struct {
	Message
	Payload Preview
	Key     Preview
}

// PreviewMessage is like Message, but returns only the beginning: it reads no more than PreviewBounds says, however
// large the message is.
func (o messageViews) PreviewMessage(
	ctx context.Context, actor Actor, ref MessageRef, bounds PreviewBounds,
) (MessagePreview, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	if err := ref.check(); err != nil {
		return MessagePreview{}, err
	}
	var stored *store.MessagePreview
	err := o.viewed(ctx, actor, ActionView, "message "+ref.ID, func(ctx context.Context, pool gorm.ConnPool) (any, error) {
		number, err := o.numberOf(ctx, pool, ref)
		if err != nil {
			return nil, err
		}
		stored, err = o.store.PreviewMessage(ctx, pool, number, o.cuts(bounds))
		if err == nil && stored == nil {
			err = fmt.Errorf("message %q: %w", ref.ID, ErrNotFound)
		}
		if err != nil {
			return nil, err
		}
		return inNamespace(stored.Namespace), nil
	})
	if err != nil {
		return MessagePreview{}, err
	}
	m := o.redactedPreview(ctx, stored, bounds)
	if m.Statuses, err = o.statusesIn(ctx, m.Message); err != nil {
		return MessagePreview{}, fmt.Errorf("show message %q: %w", ref.ID, err)
	}
	return m, nil
}

// cuts returns how much of the stored bytes is read. A hook must see the whole value.
func (o *access) cuts(bounds PreviewBounds) (cuts store.PreviewCuts) {
	of := func(n int) (whole, head int) {
		switch {
		case n <= 0:
			return -1, 0
		case o.redacts():
			return previewLimit, 0
		case o.opts.OpenSealed: // it may be sealed, and only a whole content can be opened
			return previewLimit, n
		}
		return n, n
	}
	cuts.ContentWhole, cuts.ContentHead = of(bounds.Content)
	cuts.KeyWhole, cuts.KeyHead = of(bounds.Key)
	cuts.Properties = previewLimit
	return cuts
}

func (o messageViews) redactedPreview(
	ctx context.Context, stored *store.MessagePreview, bounds PreviewBounds,
) MessagePreview {
	if stored.PropertiesCut {
		stored.SerializedProperties = "{}"
	}
	var m MessagePreview
	var seal properties.Seal
	m.Message, seal = o.redactedMessage(stored.Message)
	if stored.PropertiesCut {
		m.PropertiesProblem = tooLong(stored.PropertiesSize)
	}
	identity := sealing.IdentityOf(&stored.Message, m.Properties.Channel)
	if stored.PropertiesCut {
		m.Payload = perhapsSealed(stored.Payload, m.PropertiesProblem)
	} else {
		m.Payload = o.openedPreview(ctx, m.redacted(redact.PartPayload), identity, seal, stored.Payload, bounds.Content)
	}
	m.Sealed = m.Payload.Sealed
	m.Key = o.preview(m.redacted(redact.PartKey), stored.Key, bounds.Key)
	return m
}

func tooLong(size int64) string {
	return fmt.Sprintf("they have %d bytes, more than are shown here (%d)", size, previewLimit)
}

// preview redacts the part of a value that was read, and cuts it to the bound after that.
func (o *access) preview(value redact.Value, stored store.Beginning, bound int) Preview {
	p := Preview{Size: stored.Size, None: stored.IsNull, Withheld: o.redacts() && stored.Size > previewLimit}
	if p.Withheld { // an opened content is here as a whole
		stored.Bytes = nil
	}
	if p.Cut = int64(len(stored.Bytes)) < stored.Size; stored.IsNull || stored.Bytes == nil && p.Cut {
		return p
	}
	if value.Bytes = stored.Bytes; value.Bytes == nil { // drivers differ in what they return for empty bytes
		value.Bytes = []byte{}
	}
	p.Bytes = o.redactor.Bytes(value)
	if bound = max(bound, 0); len(p.Bytes) > bound {
		p.Bytes, p.Cut = bytes.Clone(p.Bytes[:bound]), true // lets go of the rest
	}
	return p
}

// openedPreview is preview of a content that may be sealed. Its size is that of what is shown.
func (o *access) openedPreview(ctx context.Context, value redact.Value, identity handler.Identity, seal properties.Seal,
	stored store.Beginning, bound int,
) Preview {
	if seal.Key == "" || stored.IsNull {
		return o.preview(value, stored, bound)
	}
	if int64(len(stored.Bytes)) < stored.Size { // not requested, or too long to be opened here
		stored.Bytes = nil
	}
	content, sealed := o.opened(ctx, value, identity, seal, stored.Bytes)
	if sealed != "" {
		return Preview{Size: stored.Size, Cut: true, Sealed: sealed}
	}
	return o.preview(value, store.Beginning{Bytes: content, Size: int64(len(content))}, bound)
}

// perhapsSealed is the preview of a content whose seal was not read: the properties that hold it are too long. Sealed
// bytes must not be shown as if they were the content.
func perhapsSealed(stored store.Beginning, problem string) Preview {
	p := Preview{Size: stored.Size, None: stored.IsNull}
	if !p.None {
		p.Cut, p.Sealed = true, "perhaps sealed, as its properties were not read: "+problem
	}
	return p
}

// RejectedPreview is a rejected message whose Key and Value are in RecordKey and Payload, as far as they were
// requested.
type RejectedPreview struct {
	Rejected
	RecordKey Preview
	Payload   Preview
	Headers   []handler.Header
	// HeadersProblem is why the stored headers are missing: they cannot be read, or are longer than 1 MiB. It is empty
	// if they are present.
	HeadersProblem string
}

// PreviewRejected is like Rejected, but returns only the beginning: it reads no more than PreviewBounds says, however
// large the record is.
func (o rejections) PreviewRejected(
	ctx context.Context, actor Actor, id string, bounds PreviewBounds,
) (RejectedPreview, error) {
	load := func(ctx context.Context, pool gorm.ConnPool, id string) (*store.RejectedPreview, error) {
		return o.store.PreviewRejected(ctx, pool, id, o.cuts(bounds))
	}
	show := func(ctx context.Context, stored *store.RejectedPreview) RejectedPreview {
		return o.redactedRejected(ctx, stored, bounds)
	}
	return viewRejected(ctx, o, actor, id, load, show)
}

func (o rejections) redactedRejected(
	ctx context.Context, stored *store.RejectedPreview, bounds PreviewBounds,
) RejectedPreview {
	r := RejectedPreview{Rejected: rejectedOf(&stored.RejectedMessage, stored.RecordKey.Size+stored.Payload.Size)}
	of := redact.Value{MessageID: r.ID, Channel: r.Channel, Part: redact.PartPayload}
	_, seal := properties.SealOfRejected(stored.Headers)
	identity := handler.Identity{Channel: r.Channel, ID: r.ID}
	if r.HeadersProblem = tooLong(stored.HeadersSize); stored.HeadersCut {
		r.Payload = perhapsSealed(stored.Payload, r.HeadersProblem)
	} else {
		r.Headers, r.HeadersProblem = o.headers(of, stored.Headers)
		r.Payload = o.openedPreview(ctx, of, identity, seal, stored.Payload, bounds.Content)
	}
	of.Part = redact.PartKey
	r.RecordKey = o.preview(of, stored.RecordKey, bounds.Key)
	r.Reason = o.redactor.Error(of, r.Reason)
	return r
}

// redacts reports whether there is a hook. Without one only passwords in errors are masked.
func (o *access) redacts() bool { return o.redactor.Hook() != nil }

// redactHeaders returns redacted headers. It does not change its argument.
func (o *access) redactHeaders(of redact.Value, headers []handler.Header) []handler.Header {
	if !o.redacts() {
		return headers
	}
	redacted := make([]handler.Header, len(headers))
	for i, h := range headers {
		of.Part, of.Name, of.Bytes = redact.PartHeader, h.Key, h.Value
		redacted[i] = handler.Header{Key: h.Key, Value: o.redactor.Bytes(of)}
	}
	return redacted
}
