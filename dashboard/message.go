package dashboard

import (
	"cmp"
	"errors"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
)

// shownLines is how many headers, and how many attributes, a page shows at most.
const shownLines = 100

type messageBody struct {
	Message ops.MessagePreview
	Lanes   []lane
	Key     *content
	Payload *content // nil unless shown
	// PayloadSize is shown to every role.
	PayloadSize int64
	Headers     headerList
	Attributes  []attribute
	// MoreAttributes is how many attributes are not shown.
	MoreAttributes int
	Kafka          *handler.KafkaCoordinates
	Values         bool // values of headers, attributes and keys are shown
	// Deletable is true if no handler is running the message.
	Deletable bool
}

// lane is one handler's status of the message, with its timeline.
type lane struct {
	ops.StatusDetail
	Steps []step
}

// step is one line of a timeline. At is zero if the time is unknown.
type step struct {
	Tone string
	At   time.Time
	Text string
	More string
	// Error is the error text of an attempt.
	Error string
}

type headerView struct {
	Name  string
	Value content
}

// headerList has the headers that a page shows, and how many more there are.
type headerList struct {
	Shown []headerView
	More  int
}

type attribute struct{ Name, Value string }

func (q *request) message() error {
	ref, err := q.messageRef()
	if err != nil {
		return err
	}
	m, err := q.d.ops.PreviewMessage(q.r.Context(), q.actor(), ref, q.previewBounds())
	if errors.Is(err, ops.ErrAmbiguous) { // the list shows the messages that share the ID
		list := url.Values{"id": {ref.ID}}
		if notice := q.query.Get("notice"); notice != "" {
			list.Set("notice", notice)
		}
		return q.redirect("./messages?" + list.Encode())
	}
	if err != nil {
		return err
	}
	b := messageBody{Message: m, PayloadSize: m.Payload.Size, Values: q.seesValues(), Kafka: m.Properties.Kafka,
		Deletable: true}
	for _, s := range m.Statuses {
		b.Lanes = append(b.Lanes, lane{s, steps(s, m.Message, q.now())})
		b.Deletable = b.Deletable && s.State != ops.StateProcessing
	}
	if q.seesPayloads() {
		c := previewOf(m.Payload)
		b.Payload = &c
	}
	if !m.Key.None {
		c := previewOf(m.Key)
		b.Key = &c
	}
	b.Headers = headersOf(m.Properties.Headers)
	names := slices.Sorted(maps.Keys(m.Properties.Attributes))
	b.MoreAttributes = max(0, len(names)-shownLines)
	for _, name := range names[:len(names)-b.MoreAttributes] {
		b.Attributes = append(b.Attributes, attribute{name, m.Properties.Attributes[name]})
	}
	return q.render("message", "Message "+short(visible(m.ID), 40), "messages", b)
}

// messageRef returns the message that the address names. Without a namespace, the ID must be
// unique.
func (q *request) messageRef() (ops.MessageRef, error) {
	ref := refIn(q.query)
	if ref.ID == "" {
		return ref, badInput("The address does not name a message.")
	}
	return ref, nil
}

func refIn(values url.Values) ops.MessageRef {
	return ops.MessageRef{ID: values.Get("id"), Namespace: values.Get("namespace")}
}

// addressOf returns the query parameters that name a message.
func addressOf(ref ops.MessageRef) url.Values {
	address := url.Values{"id": {ref.ID}}
	if ref.Namespace != "" {
		address.Set("namespace", ref.Namespace)
	}
	return address
}

// previewBounds limits what is read of a message to what the page shows this principal.
func (q *request) previewBounds() (bounds ops.PreviewBounds) {
	if q.seesPayloads() {
		bounds.Content = shownText
	}
	if q.seesValues() {
		bounds.Key = shownText
	}
	return bounds
}

func headersOf(headers []handler.Header) (list headerList) {
	list.More = max(0, len(headers)-shownLines)
	for _, h := range headers[:len(headers)-list.More] {
		list.Shown = append(list.Shown, headerView{h.Key, contentOf(h.Value)})
	}
	return list
}

// steps builds a status's timeline from its row: its times, the last error and its counters. The
// row holds only the number of earlier attempts.
func steps(s ops.StatusDetail, m ops.Message, now time.Time) []step {
	all := []step{{Tone: "done", At: m.ReceivedAt, Text: "Received", More: "by channel " +
		cmp.Or(m.Properties.Channel, "–")}}
	if s.CreatedAt.Sub(m.ReceivedAt).Abs() > time.Second {
		all = append(all, step{Tone: "done", At: s.CreatedAt, Text: "Assigned to this handler"})
	}
	if s.RequeuedCount > 0 {
		all = append(all, step{Tone: "done", Text: "Retried by an operator " + times(s.RequeuedCount)})
	}
	if s.AbandonedCount > 0 {
		all = append(all, step{Tone: "warn", Text: "Released " + times(s.AbandonedCount),
			More: "Its worker vanished or was stopped while it ran."})
	}
	if s.ErrorCount > 0 {
		all = append(all, step{Tone: "bad", Text: "Failed " + times(s.ErrorCount), Error: s.LastError})
	} else if s.LastError != "" {
		all = append(all, step{Tone: "past", Text: "An earlier error", Error: s.LastError})
	}
	if !s.ProcessingStartedAt.IsZero() {
		text := "Last attempt started"
		if s.State == ops.StateProcessing {
			text = "Attempt running"
		}
		all = append(all, step{Tone: "done", At: s.ProcessingStartedAt, Text: text, More: workerNote(s.WorkerID)})
		if s.State == ops.StateProcessing && s.Obstacle != "" {
			all = append(all, step{Tone: "warn", Text: "Does not return", More: s.Obstacle +
				"; the overview's health section says for how long and in which worker"})
		}
	}
	switch s.State {
	case ops.StateCompleted:
		all = append(all, step{Tone: "good", At: s.CompletedAt, Text: "Completed"})
	case ops.StatePoisoned:
		all = append(all, step{Tone: "bad", At: s.CompletedAt, Text: "Poisoned",
			More: "Retry it after its cause is fixed, or discard it."})
	case ops.StateDiscarded:
		all = append(all, step{Tone: "past", At: s.CompletedAt, Text: "Discarded by an operator"})
	case ops.StateSuperseded:
		all = append(all, step{Tone: "past", At: s.CompletedAt, Text: "Superseded",
			More: "The handler’s status under its other key counts instead."})
	case ops.StatePending:
		all = append(all, waits(s, now))
	}
	return all
}

func waits(s ops.StatusDetail, now time.Time) step {
	switch {
	case s.Waiting:
		more := "Earlier messages with the same ordering key run first."
		if s.Obstacle != "" {
			more += " Its handler: " + s.Obstacle + "."
		}
		return step{Tone: "next", Text: "Waits in its lane", More: more}
	case s.NextAttemptAt.After(now):
		return step{Tone: "next", At: s.NextAttemptAt, Text: "Next attempt"}
	}
	due := step{Tone: "next", At: s.NextAttemptAt, Text: "Due", More: "It runs as soon as a worker is free."}
	if s.Obstacle != "" {
		due.More = "Waiting: " + s.Obstacle + "."
	}
	return due
}

func workerNote(id string) string {
	if id == "" {
		return ""
	}
	return "by worker " + id
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return strings.Join([]string{strconv.Itoa(n), "times"}, " ")
}

type messagesBody struct {
	Statuses []ops.Status
	Count    ops.Count
	Paging   paging
	Filter   ops.Filter
	From, To string // as in the form's fields
	States   []stateChoice
	Handlers []string
	Limit    int
	Sizes    []int
	Filtered bool
	// Selectable is true if the page has poisoned statuses that the principal may act on.
	Selectable bool
	// All is the filter as query parameters of an action on all that match. It is empty if the
	// filter does not allow such an action.
	All template.URL
	// Narrow is true if an action on all that match needs a narrower filter.
	Narrow bool
}

type stateChoice struct {
	State  ops.State
	Chosen bool
}

// messages lists statuses. One line is one handler's status of one message.
func (q *request) messages() error {
	filter, err := filterOf(q.query)
	if err != nil {
		return err
	}
	ctx, limit := q.r.Context(), limitOf(q.query)
	page, err := q.d.ops.List(ctx, filter, ops.Cursor(q.query.Get("after")), limit)
	if err != nil {
		return err
	}
	seen, err := q.d.overview(ctx)
	if err != nil {
		return err
	}
	count, err := q.count(filter, page, seen)
	if err != nil {
		return err
	}
	b := messagesBody{Statuses: page.Items, Count: count, Filter: filter, Limit: limit, Sizes: pageSizes,
		From: q.query.Get("from"), To: q.query.Get("to"), Filtered: len(only(q.query, filterFields)) > 0,
		Paging: q.pagingOf(page.Next, page.Partial, page.Looked, len(page.Items))}
	for _, state := range ops.States() {
		b.States = append(b.States, stateChoice{state, slices.Contains(filter.States, state)})
	}
	for _, h := range seen.Handlers {
		b.Handlers = append(b.Handlers, h.HandlerKey)
	}
	if q.may("POST", "retry") {
		b.Selectable = slices.ContainsFunc(page.Items, func(s ops.Status) bool { return s.State == ops.StatePoisoned })
		if slices.Equal(filter.States, []ops.State{ops.StatePoisoned}) && count.N > 0 {
			if b.Narrow = !narrows(filter); !b.Narrow {
				b.All = template.URL(only(q.query, filterFields).Encode()) // safe: Encode escapes it
			}
		}
	}
	return q.render("messages", "Messages", "messages", b)
}

// narrows reports whether a filter has more than states. An action on all that match requires it.
func narrows(f ops.Filter) bool {
	return len(f.HandlerKeys) > 0 || f.MessageID != "" || f.Type != "" || f.ErrorText != "" || f.Fingerprint != "" ||
		!f.From.IsZero() || !f.To.IsZero()
}
