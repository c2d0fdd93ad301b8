package dashboard

import (
	"bytes"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

type replayBody struct {
	Message ops.MessagePreview
	// CopyID is the copy's ID. It is made with the form, so that a form sent twice is a duplicate.
	CopyID string
}

// editReplay shows the form for a copy's changes. The form is not filled with the original's
// values, because they may be redacted.
func (q *request) editReplay() error {
	ref, err := q.messageRef()
	if err != nil {
		return err
	}
	m, err := q.d.ops.PreviewMessage(q.r.Context(), q.actor(), ref, ops.PreviewBounds{})
	if err != nil {
		return err
	}
	return q.render("replay", "Replay a message", "messages", replayBody{m, ref.CopyID()})
}

// replay accepts the copy. It changes only the fields that are ticked, because an empty field is a
// value, too.
func (q *request) replay() error {
	form := q.r.PostForm
	text := func(name string) *string {
		if form.Get("change-"+name) == "" {
			return nil
		}
		value := form.Get(name)
		return &value
	}
	raw := func(name string) *[]byte {
		if value := text(name); value != nil {
			b := []byte(*value)
			return &b
		}
		return nil
	}
	edit := ops.Edit{MessageID: form.Get("new-id"), Type: text("type"), ContentType: text("content-type"),
		OrderingKey: raw("key"), Content: raw("content")}
	if edit.Content != nil { // browsers send line ends of a text area as CRLF
		*edit.Content = bytes.ReplaceAll(*edit.Content, []byte("\r\n"), []byte("\n"))
	}
	ref := refIn(q.given())
	accepted, err := q.d.ops.Replay(q.r.Context(), q.actor(), ref, edit)
	if err != nil {
		return err
	}
	q.d.forget()
	q.log("replayed", zap.String(telemetry.FieldMessageID, ref.ID), zap.String(telemetry.FieldCopyID, accepted.MessageID))
	notice := "replayed"
	if accepted.Outcome == handler.OutcomeUnrouted {
		notice = "unrouted"
	}
	// The copy has the namespace of its channel, which is the original's.
	address := addressOf(ops.MessageRef{ID: accepted.MessageID, Namespace: ref.Namespace})
	address.Set("said", notice)
	return q.redirect("./message?" + address.Encode())
}
