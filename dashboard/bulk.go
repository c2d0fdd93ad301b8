package dashboard

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// confirmBody is the data of a page that asks for confirmation before an action on statuses or rejected messages.
type confirmBody struct {
	Action string // "retry" or "discard", or empty
	Form   string
	// Refs are the selected statuses. It is empty for an action on all that match.
	Refs []string
	// Count is the dry run's count, or how many were selected.
	Count ops.Count
	Words []field // the filter in words; empty for selected statuses
	// States are the statuses' states, in words.
	States string
	Back   string
	// Sample are a few of the statuses or rejected messages that match.
	Sample any
}

type field struct{ Name, Value string }

func actionOf(query url.Values) (string, error) {
	switch action := query.Get("action"); action {
	case "retry", "discard":
		return action, nil
	}
	return "", badInput("The address does not name an action.")
}

// confirmSelected asks for confirmation of an action on the statuses that are selected in a list.
func (q *request) confirmSelected() error {
	form := q.r.PostForm
	action, err := actionOf(form)
	if err != nil {
		return err
	}
	refs, err := refsOf(form["ref"])
	if err != nil {
		return err
	}
	if len(refs) == 0 {
		return q.back("messages", noticeQuery("nothing-chosen"))
	}
	states := ops.StatePoisoned
	if form.Get("state") == string(ops.StatePending) {
		states = ops.StatePending
	}
	return q.render("confirm", actionTitle(action)+" the selected", "messages", confirmBody{
		Action: action, Form: "./" + action, States: string(states), Refs: form["ref"],
		Count: ops.Count{N: int64(len(refs))}, Back: "./" + ownPage(form.Get("back"), "messages").String(),
	})
}

func actionTitle(action string) string {
	if action == "retry" {
		return "Retry"
	}
	return "Discard"
}

// confirmBulk counts all that match in a dry run and asks for confirmation of that number. Messages received after this
// moment are excluded, because the operator has not seen them.
func (q *request) confirmBulk() error {
	action, err := actionOf(q.query)
	if err != nil {
		return err
	}
	filter, fields, err := q.bulkFilter(action, q.query)
	if err != nil {
		return err
	}
	counted, err := q.matching(action, filter)(q.r.Context(), q.actor(), ops.Bulk{DryRun: true})
	if err != nil {
		return err
	}
	some, err := q.d.ops.List(q.r.Context(), filter, "", 5)
	if err != nil {
		return err
	}
	section, back := "messages", "./messages?"+fields.Encode()
	if filter.Fingerprint != "" {
		section, back = "failures", "./failures"
	}
	b := confirmBody{Action: action, Form: "./bulk?" + fields.Encode(), Count: counted.Matched, Back: back,
		Sample: some.Items, States: strings.Join(fields["state"], " and "),
		Words: inWords(fields, filterFields, filterWords)}
	return q.render("confirm", actionTitle(action)+" all that match", section, b)
}

// bulkAction is an action on all that match a filter.
type bulkAction func(ctx context.Context, actor ops.Actor, bulk ops.Bulk) (ops.BulkResult, error)

// matching returns a retry or a discard of all statuses that match a filter.
func (q *request) matching(action string, filter ops.Filter) bulkAction {
	act := q.d.ops.RetryMatching
	if action == "discard" {
		act = q.d.ops.DiscardMatching
	}
	return func(ctx context.Context, actor ops.Actor, bulk ops.Bulk) (ops.BulkResult, error) {
		return act(ctx, actor, filter, bulk)
	}
}

// inWords returns the values of a filter's fields with the words for them. Fields without words are left out.
func inWords(fields url.Values, names []string, words map[string]string) (all []field) {
	for _, name := range names {
		for _, value := range fields[name] {
			if word := words[name]; word != "" {
				all = append(all, field{word, value})
			}
		}
	}
	return all
}

// filterWords are words for the fields of a filter of statuses, besides the states.
var filterWords = map[string]string{"handler": "Handler", "id": "Message ID", "namespace": "ID namespace",
	"type": "Type", "from": "Received from", "to": "Received before", "error": "Error contains",
	"fingerprint": "Failure group"}

// statesFor are the states that an action on all that match takes if the address names them.
func statesFor(action string) []ops.State {
	if action == "retry" {
		return []ops.State{ops.StatePoisoned, ops.StateFailing}
	}
	return []ops.State{ops.StatePoisoned, ops.StatePending, ops.StateFailing}
}

// bulkFilter reads the filter of an action on all that match. Without an end, the filter ends now, and without a state
// that the action takes, it takes the poisoned.
func (q *request) bulkFilter(action string, query url.Values) (ops.Filter, url.Values, error) {
	fields := only(query, filterFields)
	states := slices.DeleteFunc(slices.Clone(fields["state"]), func(s string) bool {
		return !slices.Contains(statesFor(action), ops.State(s))
	})
	if len(states) == 0 {
		states = []string{string(ops.StatePoisoned)}
	}
	slices.Sort(states)
	slices.Reverse(states) // poisoned first
	fields["state"] = slices.Compact(states)
	filter, err := filterOf(fields)
	if err != nil {
		return filter, nil, err
	}
	if !hasCondition(filter) {
		return filter, nil, badInput("Narrow the filter first: by handler, type, error, time, message ID or failure group.")
	}
	err = q.untilNow(&filter.To, fields)
	return filter, fields, err
}

// startBulk starts the confirmed action and redirects to its progress page.
func (q *request) startBulk() error {
	action, err := actionOf(q.r.PostForm)
	if err != nil {
		return err
	}
	filter, fields, err := q.bulkFilter(action, q.given())
	if err != nil {
		return err
	}
	back := "./messages?" + fields.Encode()
	if filter.Fingerprint != "" {
		back = "./failures"
	}
	act, reason := q.matching(action, filter), q.r.PostForm.Get("reason")
	return q.startConfirmed(action, back,
		func(ctx context.Context, actor ops.Actor, bulk ops.Bulk) (ops.BulkResult, error) {
			bulk.Reason = reason
			return act(ctx, actor, bulk)
		})
}

// startConfirmed starts an action on as many as the form says were confirmed, or on all that match if there were too
// many to count. It redirects to the progress page.
func (q *request) startConfirmed(action, back string, run bulkAction) error {
	expected, err := strconv.ParseInt(q.r.PostForm.Get("count"), 10, 64)
	if err != nil || expected < 0 {
		expected = 0
	}
	actor, limit := q.actor(), expected
	if q.r.PostForm.Get("capped") != "" {
		limit = 0
	} else if expected == 0 {
		return badInput("The form does not say how many were confirmed.")
	}
	return q.startJob(jobView{Action: action, Expected: expected, Back: back}, func(ctx context.Context, j *job) error {
		result, err := run(ctx, actor, ops.Bulk{Max: limit, Progress: j.progress})
		j.progress(result)
		return err
	})
}

// acceptAllFilter reads the filter of accepting again all that match. Without an end, it ends now.
func (q *request) acceptAllFilter(query url.Values) (ops.RejectedFilter, url.Values, error) {
	fields := only(query, rejectedFields)
	filter, err := rejectedFilterOf(fields)
	if err != nil {
		return filter, nil, err
	}
	if filter == (ops.RejectedFilter{}) {
		return filter, nil, badInput("Narrow the filter first: by channel, topic, reason or time.")
	}
	err = q.untilNow(&filter.To, fields)
	return filter, fields, err
}

// confirmReAccept counts the rejected messages that match in a dry run and asks for confirmation.
func (q *request) confirmReAccept() error {
	filter, fields, err := q.acceptAllFilter(q.query)
	if err != nil {
		return err
	}
	counted, err := q.d.ops.ReAcceptMatching(q.r.Context(), q.actor(), filter, ops.Bulk{DryRun: true})
	if err != nil {
		return err
	}
	some, err := q.d.ops.ListRejected(q.r.Context(), filter, "", 5)
	if err != nil {
		return err
	}
	b := confirmBody{Count: counted.Matched, Form: "./accept-all?" + fields.Encode(),
		Back: "./rejected?" + fields.Encode(), Sample: some.Items, Words: inWords(fields, rejectedFields, rejectedWords)}
	return q.render("accept-all", "Accept all that match again", "rejected", b)
}

var rejectedWords = map[string]string{"channel": "Channel", "topic": "Topic", "partition": "Partition",
	"reason": "Reason contains", "from": "Rejected from", "to": "Rejected before"}

// startReAccept starts the confirmed action and redirects to its progress page.
func (q *request) startReAccept() error {
	filter, fields, err := q.acceptAllFilter(q.given())
	if err != nil {
		return err
	}
	return q.startConfirmed("accept", "./rejected?"+fields.Encode(),
		func(ctx context.Context, actor ops.Actor, bulk ops.Bulk) (ops.BulkResult, error) {
			return q.d.ops.ReAcceptMatching(ctx, actor, filter, bulk)
		})
}

// backfillBody is the data of the page that asks for the period of a backfill and then for confirmation.
type backfillBody struct {
	Handler  string
	From, To string
	// Counted means that Count is the dry run's, of the period above.
	Counted bool
	Count   ops.Count
}

// confirmBackfill asks for a period. With one it counts in a dry run and asks for confirmation of that number.
func (q *request) confirmBackfill() error {
	fields, from, to, err := q.backfillPeriod(q.query)
	if err != nil {
		return err
	}
	b := backfillBody{Handler: fields.Get("handler"), From: fields.Get("from"), To: fields.Get("to")}
	if !from.IsZero() {
		counted, err := q.d.ops.Backfill(q.r.Context(), q.actor(), b.Handler, from, to, ops.Bulk{DryRun: true})
		if err != nil {
			return err
		}
		b.Counted, b.Count = true, counted.Matched
	}
	return q.render("backfill", "Backfill a handler", "handlers", b)
}

// backfillFields are the query parameters of a backfill.
var backfillFields = []string{"handler", "from", "to"}

// backfillPeriod reads a handler and a period. If that has a begin and no end, it ends now.
func (q *request) backfillPeriod(query url.Values) (fields url.Values, from, to time.Time, err error) {
	fields = only(query, backfillFields)
	if fields.Get("handler") == "" {
		return nil, from, to, badInput("The address does not name a handler.")
	}
	filter, err := filterOf(fields)
	if err != nil {
		return nil, from, to, err
	}
	from, to = filter.From, filter.To
	if !from.IsZero() {
		err = q.untilNow(&to, fields)
	}
	return fields, from, to, err
}

// untilNow ends a period without an end now, by the clock that judges ages.
func (q *request) untilNow(to *time.Time, fields url.Values) (err error) {
	if !to.IsZero() {
		return nil
	}
	if *to, err = q.d.ops.Now(q.r.Context()); err == nil {
		fields.Set("to", to.Format(time.RFC3339Nano))
	}
	return err
}

// startBackfill starts the confirmed backfill and redirects to its progress page.
func (q *request) startBackfill() error {
	fields, from, to, err := q.backfillPeriod(q.given())
	if err != nil {
		return err
	}
	if from.IsZero() {
		return badInput("The form does not say since when.")
	}
	return q.startConfirmed("backfill", "./handlers",
		func(ctx context.Context, actor ops.Actor, bulk ops.Bulk) (ops.BulkResult, error) {
			return q.d.ops.Backfill(ctx, actor, fields.Get("handler"), from, to, bulk)
		})
}

func (q *request) confirmCleanup() error {
	return q.render("cleanup", "Run the cleanup", "workers", nil)
}

func (q *request) startCleanup() error {
	actor := q.actor()
	return q.startJob(jobView{Action: "cleanup", Back: "./workers"}, func(ctx context.Context, j *job) error {
		deleted, err := q.d.ops.Cleanup(ctx, actor)
		j.cleaned(deleted)
		return err
	})
}

func (q *request) startJob(v jobView, run func(context.Context, *job) error) error {
	v.ID, v.Actor, v.Began = rand.Text(), q.who.Actor, q.now()
	d := q.d
	if !d.jobs.start(v, d.clock, func(ctx context.Context, j *job) error {
		defer d.forget()
		return run(ctx, j)
	}) {
		return refuse(http.StatusTooManyRequests, "Not started",
			"Too many bulk actions are running, or the service is stopping. Try again later.", nil)
	}
	q.log(v.Action+" started", zap.String(telemetry.FieldJob, v.ID))
	return q.redirect("./job?" + url.Values{"id": {v.ID}}.Encode())
}

// job shows the progress of a job.
func (q *request) job() error {
	seen, ok := q.d.jobs.find(q.query.Get("id"), q.now())
	if !ok {
		return refuse(http.StatusNotFound, "Bulk action not found",
			"Bulk actions are listed for an hour, by the process that runs them. The audit shows what was done.", nil)
	}
	return q.render("job", seen.Title, "", seen)
}

func (q *request) stopJob() error {
	id := q.r.PostForm.Get("id")
	seen, ok := q.d.jobs.find(id, q.now())
	if !ok {
		return refuse(http.StatusNotFound, "Bulk action not found",
			"It may have run in another process. The audit shows what was done.", nil)
	}
	mayStart, _ := q.use(http.MethodPost, seen.Action)
	admins := seen.Action == "cleanup" || seen.Action == "backfill" || seen.Action == "read-again"
	if admins && !mayStart {
		q.denied(q.actor(), "POST job-stop "+seen.Action)
		return refuse(http.StatusForbidden, "Insufficient role",
			"Who may not start this may not stop it. Your role is "+q.who.Role.String()+".", nil)
	}
	notice := "already-stopped"
	if !seen.Ended {
		q.d.jobs.cancel(id)
		q.log("ended", zap.String(telemetry.FieldJob, id))
		notice = "ended"
	}
	return q.redirect("./job?" + url.Values{"id": {id}, "notice": {notice}}.Encode())
}
