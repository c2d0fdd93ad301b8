package acceptor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// plan is one accept in progress: what goes to the store, and the result of each message.
type plan struct {
	messages []handler.RawMessage
	results  []Result
	batch    store.AcceptBatch
	// rows maps each row of the batch to its message.
	rows []int
	// repeats maps messages to the row of an earlier message with the same ID in the same namespace.
	repeats map[int]int
	// keys are the handlers that may get new statuses which are due at once. due is when the first of the others comes
	// due, zero if there are none (contract 4.8).
	keys map[string]bool
	due  time.Time
	now  time.Time
	// notified means that the processor is already notified of them.
	notified bool
}

// added reports whether statuses were added.
func (p *plan) added() bool {
	return slices.ContainsFunc(p.results, func(r Result) bool { return r.Handlers > 0 })
}

// expect notes when the handler of a status has to be woken.
func (p *plan) expect(s store.NewStatus) {
	if !s.NotBefore.After(p.now) {
		p.keys[s.HandlerKey] = true
	} else if p.due.IsZero() || s.NotBefore.Before(p.due) {
		p.due = s.NotBefore
	}
}

// plan routes, checks and seals the messages. Routing precedes the check of the ID. Messages are stored with
// traceparent. The error is the Sealer's: nothing may be stored.
func (a *Acceptor) plan(ctx context.Context, messages []handler.RawMessage, traceparent string) (*plan, error) {
	p := &plan{messages: messages, results: make([]Result, len(messages)), repeats: map[int]int{}, keys: map[string]bool{},
		now: a.cfg.Clock.Now()}
	p.batch.Messages, p.rows = make([]store.NewMessage, 0, len(messages)), make([]int, 0, len(messages))
	type identity struct{ namespace, id string }
	row := make(map[identity]int, len(messages))
	var handlers []*handler.Handler // of one message after the other
	for i, m := range messages {
		r := &p.results[i]
		r.MessageID = m.ID
		opts := a.channels[m.Channel]
		if opts == nil {
			r.Outcome, r.Err = handler.OutcomeInvalid, &InvalidError{MessageID: named(m.ID), Reason: reasonUnknownChannel,
				Detail: fmt.Sprintf("channel %q is not declared", brief.Name(m.Channel))}
			continue
		}
		if err := checkNames(m); err != nil {
			r.Outcome, r.Err = handler.OutcomeInvalid, err
			continue
		}
		handlers = a.cfg.Registry.AppendRoute(handlers[:0], m.Channel, m.Type)
		if len(handlers) == 0 {
			r.Outcome = handler.OutcomeUnrouted
			if opts.Unrouted != UnroutedIgnore {
				r.Outcome, r.Err = handler.OutcomeInvalid, a.unroutedError(m)
			}
			continue
		}
		if a.unstored[m.Channel] {
			r.Outcome, r.Err = handler.OutcomeInvalid, notStored(named(m.ID), m.Channel)
			continue
		}
		m.Properties.Traceparent = traceparent
		checked, err := a.check(m, handlers, p.now)
		if err != nil {
			r.Outcome, r.Err = handler.OutcomeInvalid, err
			continue
		}
		checked.RejectDiffering = opts.DifferingContent == DifferingContentReject
		this := identity{checked.Namespace, m.ID}
		if first, known := row[this]; known {
			p.repeat(i, first, checked)
			continue
		}
		if err := a.seal(ctx, &checked, m.Channel); err != nil {
			if _, never := errors.AsType[*handler.PoisonError](err); !never {
				return nil, &sealError{fmt.Sprintf("message %q of channel %q", m.ID, m.Channel), err}
			}
			r.Outcome, r.Err = handler.OutcomeInvalid, &InvalidError{MessageID: m.ID, Reason: reasonNotSealed, Err: err}
			continue
		}
		row[this] = len(p.batch.Messages)
		p.batch.Messages = append(p.batch.Messages, checked)
		p.rows = append(p.rows, i)
		for _, s := range checked.Handlers {
			p.expect(s)
		}
	}
	return p, nil
}

// seal seals a message's content in its row.
func (a *Acceptor) seal(ctx context.Context, row *store.NewMessage, channel string) error {
	content, seal, err := a.cfg.Sealer.Seal(ctx, sealing.IdentityOf(&row.Message, channel), row.Content)
	if err == nil {
		row.Content, row.PlainSHA256 = content, seal.SHA256
		row.SerializedProperties = seal.AddTo(row.SerializedProperties)
	}
	return err
}

// sealError is why an accept failed before any SQL. errors.As does not find its cause: an error of a database that the
// Sealer uses says nothing of the inbox's data.
type sealError struct {
	what string
	err  error
}

func (e *sealError) Error() string { return e.what + ": " + e.err.Error() }

// Is reports whether the cause is target.
func (e *sealError) Is(target error) bool { return errors.Is(e.err, target) }

func notStored(messageID, channel string) error {
	return &InvalidError{MessageID: messageID, Reason: reasonNotStored,
		Detail: fmt.Sprintf("channel %q is delivered directly, without an inbox", channel)}
}

func (a *Acceptor) unroutedError(m handler.RawMessage) error {
	return &InvalidError{MessageID: named(m.ID), Reason: reasonUnrouted,
		Detail: fmt.Sprintf("channel %q has no handler for type %q, only for %s", m.Channel, m.Type,
			a.cfg.Registry.Types(m.Channel))}
}

// repeat sets the result of message i, which repeats the ID of a row of the same accept. A message of another channel
// may add handlers to the row.
func (p *plan) repeat(i, row int, message store.NewMessage) {
	a, b := p.messages[i], p.messages[p.rows[row]]
	r := &p.results[i]
	if a.Type != b.Type || a.Source != b.Source {
		r.Outcome, r.Err = handler.OutcomeInvalid, conflict(a.ID, b.Type, b.Source)
		return
	}
	r.Outcome, r.ContentDiffers = handler.OutcomeDuplicate, string(a.Content) != string(b.Content)
	if r.ContentDiffers && message.RejectDiffering {
		r.Outcome, r.Err = handler.OutcomeInvalid, differing(a.ID)
		return
	}
	p.repeats[i] = row
	first := &p.batch.Messages[row]
	for _, h := range message.Handlers {
		if !slices.ContainsFunc(first.Handlers, func(known store.NewStatus) bool {
			return known.HandlerKey == h.HandlerKey
		}) {
			first.Handlers = append(first.Handlers, h)
			p.expect(h)
		}
	}
}

// take sets the results from what the store returned for each row.
func (p *plan) take(stored []store.Accepted) {
	for row, s := range stored {
		r := &p.results[p.rows[row]]
		r.Handlers, r.ContentDiffers = s.StatusesAdded, s.ContentDiffers
		switch {
		case s.Inserted:
			r.Outcome = handler.OutcomeAccepted
		case s.Conflict:
			r.Outcome, r.Err = handler.OutcomeInvalid, conflicting(r.MessageID, s)
		default:
			r.Outcome = handler.OutcomeDuplicate
		}
	}
	for i, row := range p.repeats { // a repeated message shares the conflict of the first one
		s, r := stored[row], &p.results[i]
		r.ContentDiffers = r.ContentDiffers || s.ContentDiffers
		if s.Conflict {
			r.Outcome, r.Err = handler.OutcomeInvalid, conflicting(r.MessageID, s)
		}
	}
}

// conflicting returns the error that says how the known message differs.
func conflicting(id string, s store.Accepted) error {
	if s.ContentDiffers {
		return differing(id)
	}
	return conflict(id, s.StoredType, s.StoredSource)
}

func differing(id string) error {
	return &InvalidError{MessageID: id, Reason: reasonContentDiffers, Detail: "the ID is known with other content"}
}

func conflict(id, typ, source string) error {
	return &InvalidError{MessageID: id, Reason: reasonIDConflict,
		Detail: fmt.Sprintf("the ID is known with type %q and source %q", typ, source)}
}

const defaultTransport = "publish"

// check converts a routed message into what the store persists. It never alters a value to fit a column.
func (a *Acceptor) check(m handler.RawMessage, handlers []*handler.Handler, now time.Time) (store.NewMessage, error) {
	transport := cmp.Or(m.Transport, defaultTransport)
	err := m.IDErr
	if err == nil {
		err = envelope.CheckID(m.ID)
	}
	if err != nil {
		return store.NewMessage{}, &InvalidError{MessageID: named(m.ID), Reason: reasonOfID(err), Err: err}
	}
	if err := checkText(m.ID, "transport", transport, columns.MaxTransportName); err != nil {
		return store.NewMessage{}, err
	}
	m.Properties.Channel = m.Channel
	properties, err := properties.Serialize(m.Properties)
	if err != nil {
		return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonBadProperties, Err: err}
	}
	content := m.Content
	if content == nil {
		content = []byte{} // the column is not null; a nil body decodes like an empty one
	}
	row := store.NewMessage{Message: models.Message{ID: m.ID, Namespace: cmp.Or(a.cfg.Namespaces[m.Channel], m.Channel),
		TransportName: transport, Type: m.Type, Source: m.Source, Content: content, ContentType: m.ContentType,
		SerializedProperties: properties, OrderingKey: m.OrderingKey}}
	row.Handlers = make([]store.NewStatus, 0, len(handlers))
	for _, h := range handlers {
		key, err := orderingKey(h, m)
		if err != nil {
			return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonBadOrderingKey,
				Detail: fmt.Sprintf("handler %q", h.Key()), Err: err}
		}
		due, err := notBefore(h, m, now)
		if err != nil {
			return store.NewMessage{}, &InvalidError{MessageID: m.ID, Reason: reasonBadNotBefore,
				Detail: fmt.Sprintf("handler %q", h.Key()), Err: err}
		}
		row.Handlers = append(row.Handlers, store.NewStatus{HandlerKey: h.Key(), LegacyKeys: h.LegacyKeys(),
			Retention: cmp.Or(h.Retention(), a.cfg.Retention), Lane: store.LaneOf(h.LaneKey(), key), NotBefore: due})
	}
	return row, nil
}

// checkNames checks the fields of a message that routing and logs read. It precedes routing: an unrouted type is
// remembered, and a producer may make it as long as a record.
func checkNames(m handler.RawMessage) error {
	for _, field := range []struct {
		name, value string
		limit       int
	}{
		{"type", m.Type, columns.MaxType},
		{"source", m.Source, columns.MaxSource},
		{"content type", m.ContentType, columns.MaxContentType},
	} {
		if err := checkText(m.ID, field.name, field.value, field.limit); err != nil {
			return err
		}
	}
	return nil
}

func checkText(messageID, name, value string, limit int) error {
	err := store.CheckText(value, limit)
	if err == nil {
		return nil
	}
	reason := reasonTooLong
	if store.CheckText(value, 0) != nil {
		reason = reasonBadText
	}
	return &InvalidError{MessageID: named(messageID), Reason: reason, Detail: "its " + name, Err: err}
}

// named returns the ID for an error's text. It cuts a text that is too long for an ID, because errors are kept.
func named(id string) string { return strings.Clone(brief.Characters(id, columns.MaxMessageID)) }

// orderingKey asks the handler for the message's ordering key. A panic of the user's function makes
// only this message invalid, not the others in its batch.
func orderingKey(h *handler.Handler, m handler.RawMessage) (key []byte, err error) {
	err = routine.Protect("its ordering key", func() error {
		key = h.OrderingKey(m)
		return nil
	})
	return key, err
}

// notBefore returns the time before which the handler does not run the message; zero if it may at once.
func notBefore(h *handler.Handler, m handler.RawMessage, now time.Time) (at time.Time, err error) {
	if find := h.NotBefore(); find != nil {
		err = routine.Protect("its NotBefore", func() error {
			at = find(m)
			return nil
		})
	}
	if m.NotBefore.After(at) {
		at = m.NotBefore
	}
	if err != nil {
		return at, err
	}
	return store.ChosenDue(at, now)
}

// reasonOfID classifies what is wrong with an ID.
func reasonOfID(err error) string {
	switch {
	case errors.As(err, new(*envelope.IDTooLongError)):
		return reasonIDTooLong
	case errors.Is(err, envelope.ErrMissingID):
		return reasonMissingID
	default:
		return reasonBadID
	}
}
