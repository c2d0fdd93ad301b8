package ops

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/models"
)

// Edit has the changes of a replay. Nil fields stay as they are stored.
type Edit struct {
	// MessageID is the copy's ID. If it is empty, MessageRef.CopyID makes one. Make it beforehand and keep it, so that
	// a repeat after an error makes no second copy.
	MessageID string
	// Content is the whole new content. Do not take it from shown content if a redaction hook is set.
	Content *[]byte
	// ContentType, Type and OrderingKey replace the message's values.
	ContentType *string
	Type        *string
	OrderingKey *[]byte
}

// Replay accepts an edited copy of a message as a new one, for all handlers that take its type now. Unlike Retry it
// also runs handlers that had completed. The copy has its original's ID in the attribute inboxreplayof, and the audit
// row has both IDs. It needs Options.AllowReplay (ErrReplayOff) and a Live. It returns ErrNotFound if there is no such
// message, and ErrBadInput if the copy's ID is known already, the acceptor refuses the copy, or the content is sealed,
// not replaced, and this process has no Sealer. With any error of the database the result has the copy's ID: repeat
// with that ID, because the copy may have been accepted.
func (o messageViews) Replay(ctx context.Context, actor Actor, ref MessageRef, edit Edit) (Accepted, error) {
	if err := o.Can(ActionReplay); err != nil {
		if errors.Is(err, ErrReplayOff) {
			if missing := o.Denied(ctx, actor, string(ActionReplay)); missing != nil {
				err = errors.Join(err, missing)
			}
		}
		return Accepted{}, err
	}
	if err := ref.check(); err != nil {
		return Accepted{}, fmt.Errorf("%s: %w", ActionReplay, err)
	}
	// The ID is made here and returned also with an error. If the outcome of the commit is unknown, a repeat with the
	// same ID is a duplicate and no second copy.
	if edit.MessageID == "" {
		edit.MessageID = ref.CopyID()
	}
	result := Accepted{MessageID: edit.MessageID}
	var wake func()
	err := o.audited(ctx, actor, ActionReplay, "message "+ref.ID, func(ctx context.Context, tx *gorm.DB) (any, error) {
		original, err := o.loadMessage(ctx, tx.Statement.ConnPool, ref)
		if err != nil {
			return nil, err
		}
		copied, edited, err := o.replayOf(ctx, original, edit)
		if err != nil {
			return nil, err
		}
		accepted, awaken, err := o.opts.Live.AcceptTx(ctx, tx, copied)
		if err != nil {
			return nil, err
		}
		result, wake = accepted, awaken
		if result.Outcome != handler.OutcomeAccepted {
			return nil, badInput("copy", "message %q is %s", copied.ID, result.Outcome)
		}
		return map[string]any{"namespace": original.Namespace, "copy_id": copied.ID, "edited": edited}, nil
	})
	if err != nil {
		return Accepted{MessageID: edit.MessageID}, err
	}
	if wake != nil {
		wake()
	}
	return result, nil
}

// CopyID makes an ID for a copy of the message: its own with a suffix, or a UUID if that would be too long.
func (r MessageRef) CopyID() string {
	unique := uuid.NewString()
	if id := r.ID + "-replay-" + unique; utf8.RuneCountInString(id) <= columns.MaxMessageID {
		return id
	}
	return unique
}

// replayOf returns the copy, and the names of what is edited.
func (o messageViews) replayOf(ctx context.Context, original models.Message, edit Edit) (
	handler.RawMessage, []string, error,
) {
	m, err := o.rawMessage(ctx, original, edit.Content == nil)
	if err != nil {
		return handler.RawMessage{}, nil, err
	}
	if m.Properties.Attributes == nil {
		m.Properties.Attributes = map[string]string{}
	}
	m.Properties.Attributes[properties.ReplayOf] = original.ID
	m.ID = edit.MessageID
	edited := []string{}
	if edit.Content != nil {
		m.Content, edited = *edit.Content, append(edited, "content")
	}
	if edit.ContentType != nil {
		m.ContentType, edited = *edit.ContentType, append(edited, "content_type")
	}
	if edit.Type != nil {
		m.Type, edited = *edit.Type, append(edited, "type")
	}
	if edit.OrderingKey != nil {
		m.OrderingKey, edited = *edit.OrderingKey, append(edited, "ordering_key")
	}
	return m, edited, nil
}

// rawMessage returns a stored message as it was accepted. If open is false, its content may be sealed.
func (o *access) rawMessage(ctx context.Context, m models.Message, open bool) (handler.RawMessage, error) {
	p, seal, err := properties.ParseSealed(m.SerializedProperties)
	if err != nil {
		return handler.RawMessage{}, badInput("message", "%q: %s", m.ID, err)
	}
	if open {
		content, err := o.sealer.Open(ctx, sealing.IdentityOf(&m, p.Channel), seal, m.Content)
		if missing, is := errors.AsType[*sealing.MissingError](err); is {
			return handler.RawMessage{}, badInput("message", "%q: %s", m.ID, missing)
		}
		if err != nil {
			return handler.RawMessage{}, fmt.Errorf("message %q: %w", m.ID, err)
		}
		m.Content = content
	}
	return handler.RawMessage{Channel: p.Channel, ID: m.ID, Type: m.Type, Source: m.Source, ContentType: m.ContentType,
		Content: m.Content, Transport: m.TransportName, Properties: p, OrderingKey: m.OrderingKey}, nil
}
