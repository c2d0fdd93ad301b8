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

// step is one line of a timeline. At is zero if the time is unknown.
type step struct {
	Tone       string
	At         time.Time
	Text, More string
	Error      string // of an attempt
}

func (q *request) message() error {
	ref, err := q.messageRef()
	if err != nil {
		return err
	}
	m, err := q.reader().PreviewMessage(q.r.Context(), q.actor(), ref, q.previewBounds())
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
	return q.render("message", "Message "+short(visible(m.ID), 40), "messages", m)
}

// messageRef returns the message that the address names. Without a namespace, the ID must be unique.
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

// previewBounds limits the read of a message to the bytes that the page shows this principal.
func (q *request) previewBounds() (bounds ops.PreviewBounds) {
	if q.seesPayloads() {
		bounds.Content = shownText
	}
	if q.seesValues() {
		bounds.Key = shownText
	}
	return bounds
}

// shownHeaders and shownAttributes return as many as a page shows.
func shownHeaders(all []handler.Header) []handler.Header { return all[:min(len(all), shownLines)] }

func shownAttributes(all map[string]string) (shown []field) {
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names[:min(len(names), shownLines)] {
		shown = append(shown, field{name, all[name]})
	}
	return shown
}

// notShown returns how many of so many headers or attributes a page does not show.
func notShown(all int) int { return max(0, all-shownLines) }

// deletable reports whether no handler is running the message of these statuses.
func deletable(statuses []ops.StatusDetail) bool {
	return !slices.ContainsFunc(statuses, func(s ops.StatusDetail) bool { return s.State == ops.StateProcessing })
}

// Steps builds a status's timeline from its row: its times, its latest attempts and its counters.
func (v *view) Steps(s ops.StatusDetail, m ops.Message) []step {
	all := []step{{Tone: "done", At: m.ReceivedAt, Text: "Received", More: "by channel " +
		cmp.Or(m.Properties.Channel, "–")}}
	if s.CreatedAt.Sub(m.ReceivedAt).Abs() > time.Second {
		all = append(all, step{Tone: "done", At: s.CreatedAt, Text: "Assigned to this handler"})
	}
	all = append(all, attemptSteps(s)...)
	if !s.ProcessingStartedAt.IsZero() {
		all = append(all, step{Tone: "done", At: s.ProcessingStartedAt, Text: "Attempt running", More: workerNote(s.WorkerID)})
		if s.Obstacle != "" {
			all = append(all, step{Tone: "warn", Text: "Does not return", More: s.Obstacle +
				"; the overview's health section says for how long and in which worker"})
		}
	}
	switch s.State {
	case ops.StateCompleted:
		all = append(all, step{Tone: "good", At: s.CompletedAt, Text: "Completed"})
	case ops.StatePoisoned:
		all = append(all, step{Tone: "bad", At: s.PoisonedAt, Text: "Poisoned",
			More: "Retry it after its cause is fixed, or discard it."})
	case ops.StateDiscarded:
		all = append(all, step{Tone: "past", At: s.CompletedAt, Text: "Discarded by an operator"})
	case ops.StateSuperseded:
		all = append(all, step{Tone: "past", At: s.CompletedAt, Text: "Superseded",
			More: "The handler’s status under its other key counts instead."})
	case ops.StatePending:
		all = append(all, waits(s, v.Now))
	}
	return all
}

// attemptSteps returns the latest attempts that failed and retries, and what the counters say of earlier ones. The last
// error is shown whole, the others as far as they are stored.
func attemptSteps(s ops.StatusDetail) (all []step) {
	failed, retried, latest := 0, 0, -1
	for i, a := range s.Attempts {
		if a.Retried {
			retried++
			failed = 0 // a retry resets the count
			continue
		}
		failed++
		if a.Error != "" && strings.HasPrefix(s.LastError, a.Error) {
			latest = i
		}
	}
	if earlier := s.ErrorCount + s.AbandonedCount - failed; earlier > 0 {
		all = append(all, step{Tone: "past", Text: "Failed " + times(earlier) + " before", More: "Only the latest ten entries are kept."})
	}
	if s.InterruptedCount > 0 {
		all = append(all, step{Tone: "past", Text: "Interrupted by a failure of the database " + times(s.InterruptedCount) +
			" in a row"})
	}
	if earlier := s.RequeuedCount - retried; earlier > 0 {
		all = append(all, step{Tone: "done", Text: "Retried by an operator " + times(earlier) + " before"})
	}
	for i, a := range s.Attempts {
		if a.Retried {
			all = append(all, step{Tone: "done", At: a.At, Text: "Retried by an operator"})
			continue
		}
		one := step{Tone: "bad", At: a.At, Text: "Failed", Error: a.Error}
		if i == latest {
			one.Error = s.LastError
		}
		one.More = workerNote(a.WorkerID)
		if took := a.At.Sub(a.ClaimedAt); !a.ClaimedAt.IsZero() && took >= time.Second {
			one.More = strings.TrimSpace(age(took) + " after its claim " + one.More)
		}
		all = append(all, one)
	}
	if latest < 0 && s.LastError != "" {
		all = append(all, step{Tone: "past", Text: "Latest error", Error: s.LastError})
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
		next := step{Tone: "next", At: s.NextAttemptAt, Text: "Next attempt"}
		if !s.NotBefore().IsZero() {
			next.Text = "Not before"
		}
		if s.Obstacle != "" {
			next.Tone, next.More = "warn", "Its handler: "+s.Obstacle+"."
		}
		return next
	}
	due := step{Tone: "next", At: s.NextAttemptAt, Text: "Due", More: "It runs as soon as a worker is free."}
	if s.Obstacle != "" {
		due.Tone, due.More = "warn", "Waiting: "+s.Obstacle+"."
	}
	return due
}

// Waits reports whether a status waits for its time, and not for another attempt.
func (v *view) Waits(s ops.Status) bool { return s.NotBefore().After(v.Now) }

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
	return strconv.Itoa(n) + " times"
}

type messagesBody struct {
	ops.Page[ops.Status]
	Count    ops.Count
	Filter   ops.Filter
	Handlers []ops.HandlerOverview
	Limit    int
	Sizes    []int
	Filtered bool
	// Selectable is true if the page has poisoned statuses that the principal may act on.
	Selectable bool
	// All is the filter as query parameters of an action on all that match. It is empty if the filter allows none.
	All template.URL
	// Narrow is true if an action on all that match needs a narrower filter.
	Narrow bool
	// Retryable is true if the action on all that match may be a retry.
	Retryable bool
	// Handler is the only handler that the filter names; nil without one.
	Handler *ops.HandlerOverview
	// Reasons are the health reasons that concern Handler.
	Reasons []ops.HealthReason
}

// messages lists statuses. One line is one handler's status of one message.
func (q *request) messages() error {
	filter, err := filterOf(q.query)
	if err != nil {
		return err
	}
	ctx, limit := q.r.Context(), limitOf(q.query)
	from := q.reader()
	page, err := from.List(ctx, filter, ops.Cursor(q.query.Get("after")), limit)
	if err != nil {
		return err
	}
	seen, err := q.d.overview(ctx)
	if err != nil {
		return err
	}
	count, err := q.count(from, filter, page, seen)
	if err != nil {
		return err
	}
	b := messagesBody{Page: page, Count: count, Handlers: seen.Handlers, Filter: filter, Limit: limit, Sizes: pageSizes,
		Filtered: len(only(q.query, filterFields)) > 0}
	for _, h := range seen.Handlers {
		if slices.Equal(filter.HandlerKeys, []string{h.HandlerKey}) {
			b.Handler, b.Reasons = &h, reasonsOf(seen.Reasons, h.HandlerKey)
		}
	}
	if q.may("POST", "retry") {
		b.Selectable = slices.ContainsFunc(page.Items, func(s ops.Status) bool { return s.State == ops.StatePoisoned })
		able := func(action string) bool {
			return len(filter.States) > 0 && !slices.ContainsFunc(filter.States, func(s ops.State) bool {
				return !slices.Contains(statesFor(action), s)
			})
		}
		if able("discard") && count.N > 0 {
			b.Retryable = able("retry")
			if b.Narrow = !hasCondition(filter); !b.Narrow {
				b.All = template.URL(only(q.query, filterFields).Encode()) // safe: Encode escapes it
			}
		}
	}
	return q.render("messages", "Messages", "messages", b)
}

// hasCondition reports whether a filter has more than states. An action on all that match requires it.
func hasCondition(f ops.Filter) bool {
	return len(f.HandlerKeys) > 0 || f.MessageID != "" || f.Type != "" || f.ErrorText != "" || f.Fingerprint != "" ||
		!f.From.IsZero() || !f.To.IsZero()
}
