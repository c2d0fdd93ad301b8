package dashboard

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// maxRefs limits an action on selected statuses to one page of the largest size.
const maxRefs = 200

// refsOf parses the selected statuses, each in the form "<status ID>@<version>".
func refsOf(values []string) ([]ops.Ref, error) {
	if len(values) > maxRefs {
		return nil, badInput("More than " + strconv.Itoa(maxRefs) + " are selected. Use an action on all that match instead.")
	}
	var refs []ops.Ref
	for _, value := range values {
		id, text, _ := strings.Cut(value, "@")
		version, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id == "" || version < 0 {
			return nil, badInput("The selection is malformed.")
		}
		refs = append(refs, ops.Ref{StatusID: id, Version: version})
	}
	return refs, nil
}

func (q *request) retry() error { return q.actOn("retried", q.d.ops.Retry) }

func (q *request) discard() error {
	reason := q.r.PostForm.Get("reason")
	return q.actOn("discarded", func(ctx context.Context, actor ops.Actor, ref ops.Ref) error {
		return q.d.ops.Discard(ctx, actor, ref, reason)
	})
}

// actOn applies act to each selected status in its own transaction.
//
// For a single status, an error is returned. For several, statuses that changed since the page was shown are skipped
// and counted. Any other error ends the loop, and the page says how many statuses were done before it.
func (q *request) actOn(done string, act func(context.Context, ops.Actor, ops.Ref) error) error {
	refs, err := refsOf(q.r.PostForm["ref"])
	if err != nil {
		return err
	}
	if len(refs) == 0 {
		return q.back("messages", noticeQuery("nothing-chosen"))
	}
	defer q.d.forget()
	if len(refs) == 1 {
		if err := act(q.r.Context(), q.actor(), refs[0]); err != nil {
			return err
		}
		q.log(done, zap.String(telemetry.FieldStatusID, refs[0].StatusID))
		return q.back("messages", noticeQuery(done))
	}
	acted, left := 0, 0
	for _, ref := range refs {
		err := act(q.r.Context(), q.actor(), ref)
		switch {
		case err == nil:
			acted++
		case errors.Is(err, ops.ErrStale), errors.Is(err, ops.ErrNotFound), errors.Is(err, ops.ErrNotPoisoned),
			errors.Is(err, ops.ErrProcessing):
			left++
		default:
			p := *problemOf(err)
			p.text = "Of " + number(len(refs)) + " selected, " + number(acted) + " were " + done + " before this error: " +
				p.text
			return &p
		}
	}
	q.log(done, zap.Int(telemetry.FieldDone, acted), zap.Int(telemetry.FieldLeft, left))
	return q.back("messages", url.Values{"notice": {done + "-some"}, "done": {strconv.Itoa(acted)},
		"left": {strconv.Itoa(left)}})
}

func (q *request) log(what string, fields ...zap.Field) {
	q.d.log.Info("dashboard action", append([]zap.Field{zap.String(telemetry.FieldActor, q.who.Actor),
		zap.String(telemetry.FieldAction, what)}, fields...)...)
}

func (q *request) pause() error  { return q.switchHandler("paused", q.d.ops.Pause) }
func (q *request) resume() error { return q.switchHandler("resumed", q.d.ops.Resume) }

func (q *request) switchHandler(done string, act func(context.Context, ops.Actor, string) error) error {
	key := q.given().Get("handler")
	err := act(q.r.Context(), q.actor(), key)
	if errors.Is(err, ops.ErrNotPaused) {
		return q.back("handlers", noticeQuery("not-paused"))
	}
	if err != nil {
		return err
	}
	q.d.forget()
	q.log(done, zap.String(telemetry.FieldHandlerKey, key))
	return q.back("handlers", noticeQuery(done))
}

func (q *request) reAccept() error {
	id := q.given().Get("id")
	accepted, err := q.d.ops.ReAccept(q.r.Context(), q.actor(), id)
	if err != nil {
		return err
	}
	q.d.forget()
	q.log("accepted", zap.String(telemetry.FieldRejectedID, id))
	notice := "accepted"
	if len(accepted) > 0 && slices.ContainsFunc(accepted, func(a ops.Accepted) bool {
		return a.Outcome == handler.OutcomeProcessed
	}) {
		notice = "ran-again" // nothing is stored that a page could show
	} else if len(accepted) > 0 {
		switch accepted[0].Outcome {
		case handler.OutcomeDuplicate:
			notice = "known"
		case handler.OutcomeUnrouted:
			notice = "unrouted"
		}
		return q.redirect("./message?" + url.Values{"id": {accepted[0].MessageID}, "notice": {notice}}.Encode())
	}
	return q.redirect("./rejected?" + noticeQuery(notice).Encode())
}

// confirmIDBody is the data of a page that asks the user to type an ID.
type confirmIDBody struct {
	ID string
	// Form is the address that the form is posted to. Back is the page to return to.
	Form, Back               string
	Heading, Warning, Button string
}

func (q *request) confirmDelete() error {
	ref, err := q.messageRef()
	if err != nil {
		return err
	}
	return q.render("confirm-id", "Delete a message", "messages", confirmIDBody{
		ID: ref.ID, Form: "./delete?" + addressOf(ref).Encode(), Back: "./message?" + addressOf(ref).Encode(),
		Heading: "Delete this message?", Button: "Delete permanently",
		Warning: "This removes the message and the statuses of all its handlers, whatever their state. A redelivery is then a new message and runs again. To give up a poisoned message, discard it instead.",
	})
}

func (q *request) deleteMessage() error {
	id, err := q.confirmedID()
	if err != nil {
		return err
	}
	if err := q.d.ops.Delete(q.r.Context(), q.actor(), refIn(q.given()), id); err != nil {
		return err
	}
	q.d.forget()
	q.log("deleted", zap.String(telemetry.FieldMessageID, id))
	return q.redirect("./messages?" + noticeQuery("deleted").Encode())
}

func (q *request) confirmDeleteRejected() error {
	id := q.query.Get("id")
	if id == "" {
		return badInput("The address does not name a rejected message.")
	}
	return q.render("confirm-id", "Delete a rejected message", "rejected", confirmIDBody{
		ID: id, Form: "./delete-rejected?" + url.Values{"id": {id}}.Encode(), Back: "./rejected-message?" +
			url.Values{"id": {id}}.Encode(), Heading: "Delete this rejected message?", Button: "Delete permanently",
		Warning: "This removes the record and its reason. Handlers that have not processed it never will. If the cause can be fixed, accept it again instead.",
	})
}

func (q *request) deleteRejected() error {
	id, err := q.confirmedID()
	if err != nil {
		return err
	}
	if err := q.d.ops.DeleteRejected(q.r.Context(), q.actor(), id, id); err != nil {
		return err
	}
	q.d.forget()
	q.log("deleted", zap.String(telemetry.FieldRejectedID, id))
	return q.redirect("./rejected?" + noticeQuery("deleted").Encode())
}

// confirmedID returns the ID that the form is for. The user must have typed it as it is, or in the form that typable
// gives it on the page.
func (q *request) confirmedID() (id string, err error) {
	id, typed := q.given().Get("id"), q.r.PostForm.Get("confirmation")
	if id == "" || typed != id && strings.TrimSpace(typed) != typable(id) {
		return "", refuse(http.StatusBadRequest, "Wrong ID",
			"The text that you typed is not the ID. Nothing was deleted. Go back and type it again.", nil)
	}
	return id, nil
}

type replayBody struct {
	Message ops.MessagePreview
	// CopyID is the copy's ID. It is made with the form, so that a form sent twice is a duplicate.
	CopyID string
}

// editReplay shows the form for a copy's changes. It omits the original's values, because they may be redacted.
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

// replay accepts the copy. It changes only the fields that are ticked, because an empty field is a value, too.
func (q *request) replay() error {
	form := q.r.PostForm
	text := func(name string) *string {
		if form.Get("change-"+name) == "" {
			return nil
		}
		return new(form.Get(name))
	}
	raw := func(name string) *[]byte {
		if value := text(name); value != nil {
			return new([]byte(*value))
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
	address.Set("notice", notice)
	return q.redirect("./message?" + address.Encode())
}
