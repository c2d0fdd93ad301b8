package dashboard

import (
	"net/url"
	"strconv"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// confirmHandlerBody is the data of the page that asks to confirm an action on one handler of a message.
type confirmHandlerBody struct {
	ops.HandlerRef
	Form, Back, Heading, Button, Warning string
	// WithReason asks for a reason, WithTime for a time.
	WithReason, WithTime bool
}

func (q *request) confirmRerun() error {
	return q.confirmHandler(confirmHandlerBody{Heading: "Run this handler again?", Button: "Run again", Form: "./rerun?",
		WithReason: true,
		Warning:    "What the handler did for this message is done again. The message's other handlers do not run. The reason goes into the audit."})
}

func (q *request) confirmReschedule() error {
	return q.confirmHandler(confirmHandlerBody{Heading: "When is it due?", Button: "Reschedule", Form: "./reschedule?",
		WithTime: true,
		Warning:  "The handler does not run before this time. Without one, or with one that is past, it is due now. Its error count stays, and in its lane it keeps its place."})
}

func (q *request) confirmRelease() error {
	return q.confirmHandler(confirmHandlerBody{Heading: "Release this claim?", Button: "Release the claim", Form: "./release?",
		Warning: "Another call begins at once, and nothing stops the old one: a handler that is not transactional may run twice at once. What the old call returns changes nothing in the status. Claims of dead workers are released without this within WorkerTimeout and two sweeps, 40 s by default."})
}

func (q *request) confirmCancel() error {
	return q.confirmHandler(confirmHandlerBody{Heading: "Cancel this call?", Button: "Cancel the call", Form: "./cancel?",
		Warning: "Its worker cancels the call's context within about a heartbeat. A handler that obeys has failed, which is charged; one that ignores it goes on. Messages that share the call in a batch are cancelled with it."})
}

func (q *request) confirmHandler(b confirmHandlerBody) (err error) {
	if b.HandlerRef, err = handlerIn(q.query); err != nil {
		return err
	}
	address := addressOf(b.Message)
	b.Back = "./message?" + address.Encode()
	address.Set("handler", b.HandlerKey)
	address.Set("version", strconv.FormatInt(b.Version, 10))
	address.Set("status", q.query.Get("status"))
	b.Form += address.Encode()
	return q.render("confirm-handler", b.Heading, "messages", b)
}

// handlerFields are the query parameters that name a handler's status of a message.
var handlerFields = []string{"id", "namespace", "handler", "version"}

// handlerIn returns the handler's status that an address or a form names.
func handlerIn(values url.Values) (ref ops.HandlerRef, err error) {
	ref.Message, ref.HandlerKey = refIn(values), values.Get("handler")
	ref.Version, err = strconv.ParseInt(values.Get("version"), 10, 64)
	if err != nil || ref.Version < 1 || ref.Message.ID == "" || ref.HandlerKey == "" {
		return ref, badInput("The address does not name a handler's status of a message.")
	}
	return ref, nil
}

func (q *request) rerun() error {
	return q.actOnHandler("rerun", func(ref ops.HandlerRef) error {
		return q.d.ops.Rerun(q.r.Context(), q.actor(), ref, q.r.PostForm.Get("reason"))
	})
}

func (q *request) reschedule() error {
	at, err := timeOf(q.r.PostForm.Get("at"))
	if err != nil {
		return badInput("“Not before” is not a time such as 2026-01-31T14:30.")
	}
	return q.actOnHandler("rescheduled", func(ref ops.HandlerRef) error {
		return q.d.ops.Reschedule(q.r.Context(), q.actor(), q.statusAt(ref), at)
	})
}

// statusAt returns the status whose ID the form has, at the version of a reference.
func (q *request) statusAt(ref ops.HandlerRef) ops.Ref {
	return ops.Ref{StatusID: q.given().Get("status"), Version: ref.Version}
}

func (q *request) release() error {
	return q.actOnHandler("released", func(ref ops.HandlerRef) error {
		return q.d.ops.ReleaseClaim(q.r.Context(), q.actor(), q.statusAt(ref))
	})
}

func (q *request) cancel() error {
	return q.actOnHandler("cancel-requested", func(ref ops.HandlerRef) error {
		_, err := q.d.ops.CancelCall(q.r.Context(), q.actor(), ref)
		return err
	})
}

func (q *request) actOnHandler(done string, act func(ops.HandlerRef) error) error {
	ref, err := handlerIn(q.given())
	if err == nil {
		err = act(ref)
	}
	if err != nil {
		return err
	}
	q.d.forget()
	q.log(done, zap.String(telemetry.FieldMessageID, ref.Message.ID),
		zap.String(telemetry.FieldHandlerKey, ref.HandlerKey))
	address := addressOf(ref.Message)
	address.Set("notice", done)
	return q.redirect("./message?" + address.Encode())
}
