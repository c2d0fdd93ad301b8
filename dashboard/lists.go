package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

type failuresBody struct {
	ops.Failures
	Handlers []ops.HandlerOverview
	Filtered bool
	Statuses int64
}

// failureFields are the query parameters that form a filter of failures.
var failureFields = []string{"handler", "type", "from", "to"}

// failures shows failures grouped by handler and error.
func (q *request) failures() error {
	fields := only(q.query, failureFields)
	filter, err := filterOf(fields)
	if err != nil {
		return err
	}
	from := q.reader()
	name := fmt.Sprint(q.source.Replica, fields.Encode())
	found, err := q.d.groupings.get(q.r.Context(), name, func() (ops.Failures, error) {
		return from.Failures(q.r.Context(), filter)
	})
	if err != nil {
		return err
	}
	seen, err := q.d.overview(q.r.Context())
	if err != nil {
		return err
	}
	b := failuresBody{Failures: found, Handlers: seen.Handlers, Filtered: hasCondition(filter)}
	for _, g := range found.Groups {
		b.Statuses += g.Poisoned + g.Failing
	}
	return q.render("failures", "Failures", "failures", b)
}

type rejectedBody struct {
	ops.Page[ops.Rejected]
	Filtered bool
	// AcceptAll is the address that accepts all that match again.
	AcceptAll string
}

// rejectedFields are the query parameters that form a filter of rejected messages.
var rejectedFields = []string{"channel", "topic", "partition", "reason", "from", "to"}

// rejectedFilterOf reads a filter of rejected messages from the query of an address.
func rejectedFilterOf(query url.Values) (ops.RejectedFilter, error) {
	times, err := filterOf(only(query, []string{"from", "to"}))
	if err != nil {
		return ops.RejectedFilter{}, err
	}
	filter := ops.RejectedFilter{Channel: query.Get("channel"), Topic: query.Get("topic"), Reason: query.Get("reason"),
		From: times.From, To: times.To}
	if text := query.Get("partition"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return filter, badInput("“Partition” is not a number of a partition.")
		}
		if filter.Topic == "" {
			return filter, badInput("Name the topic that the partition is of.")
		}
		filter.Partition = new(int32(n))
	}
	return filter, nil
}

func (q *request) rejectedList() error {
	filter, err := rejectedFilterOf(q.query)
	if err != nil {
		return err
	}
	page, err := q.reader().ListRejected(q.r.Context(), filter, ops.Cursor(q.query.Get("after")), limitOf(q.query))
	if err != nil {
		return err
	}
	return q.render("rejected", "Rejected", "rejected", rejectedBody{Page: page, Filtered: filter != ops.RejectedFilter{},
		AcceptAll: "./accept-all?" + only(q.query, rejectedFields).Encode()})
}

func (q *request) rejectedOne() error {
	id := q.query.Get("id")
	if id == "" {
		return badInput("The address does not name a rejected message.")
	}
	r, err := q.reader().PreviewRejected(q.r.Context(), q.actor(), id, q.previewBounds())
	if err != nil {
		return err
	}
	return q.render("rejected-message", "Rejected message", "rejected", r)
}

type handlersBody struct {
	Incomplete string
	Lines      []handlerLine
}

type handlerLine struct {
	ops.HandlerOverview
	// Reasons are the health reasons that concern it.
	Reasons []ops.HealthReason
}

// reasonsOf returns the reasons that concern one handler.
func reasonsOf(all []ops.HealthReason, handlerKey string) []ops.HealthReason {
	return slices.DeleteFunc(slices.Clone(all), func(r ops.HealthReason) bool { return r.HandlerKey != handlerKey })
}

func (q *request) handlers() error {
	seen, err := q.d.overview(q.r.Context())
	if err != nil {
		return err
	}
	b := handlersBody{Incomplete: seen.Incomplete}
	for _, h := range seen.Handlers {
		b.Lines = append(b.Lines, handlerLine{HandlerOverview: h, Reasons: reasonsOf(seen.Reasons, h.HandlerKey)})
	}
	return q.render("handlers", "Handlers", "handlers", b)
}

// handler shows one handler.
func (q *request) handler() error {
	key := q.query.Get("handler")
	if key == "" {
		return badInput("The address does not name a handler.")
	}
	h, err := q.d.details.get(q.r.Context(), key, func() (ops.HandlerDetail, error) {
		return q.d.ops.Handler(q.r.Context(), key)
	})
	if err != nil {
		return err
	}
	if h.Incomplete != "" {
		q.d.details.forget() // it was slow, but the next reader may see more
	}
	return q.render("handler", "Handler "+short(visible(key), 40), "handlers", h)
}

type workersBody struct {
	Workers []ops.Worker
	Leases  []ops.Lease
}

func (q *request) workers() error {
	workers, err := q.d.ops.Workers(q.r.Context())
	if err != nil {
		return err
	}
	leases, err := q.d.ops.Leases(q.r.Context())
	if err != nil {
		return err
	}
	return q.render("workers", "Workers and leases", "workers", workersBody{workers, leases})
}

func (q *request) gaps() error {
	page, err := q.reader().ListGaps(q.r.Context(), ops.Cursor(q.query.Get("after")), limitOf(q.query))
	if err != nil {
		return err
	}
	return q.render("gaps", "Gaps", "gaps", page)
}

// markers answers whether a message was handled inline. Without a message ID it shows the form alone.
func (q *request) markers() error {
	var markers []models.Marker
	if ref := refIn(q.query); ref.ID != "" {
		var err error
		if markers, err = q.reader().Markers(q.r.Context(), ref.ID, q.query.Get("handler"), ref.Namespace); err != nil {
			return err
		}
	}
	return q.render("markers", "Handled inline", "markers", markers)
}

type auditBody struct {
	ops.Page[ops.AuditEntry]
	Entries  []auditEntry
	Actions  []ops.Action
	Filtered bool
}

// auditEntry is an entry, or the end of an action on all that match with its other entries, the latest first.
type auditEntry struct {
	ops.AuditEntry
	Before []ops.AuditEntry
}

// folded puts the count and the chunks of an action on all that match beneath its end, where they are next to it.
func folded(entries []ops.AuditEntry) (all []auditEntry) {
	type kind struct {
		Event  string
		Filter json.RawMessage
	}
	kindOf := func(e ops.AuditEntry) (k kind) {
		_ = json.Unmarshal([]byte(e.Detail), &k) // else it is of no such action
		return k
	}
	for i := 0; i < len(entries); i++ {
		entry := auditEntry{AuditEntry: entries[i]}
		end := kindOf(entry.AuditEntry)
		for counted := false; end.Event == "ended" && end.Filter != nil && !counted && i+1 < len(entries); i++ {
			next := entries[i+1]
			of := kindOf(next)
			if next.Actor != entry.Actor || next.Action != entry.Action || next.Target != entry.Target || of.Event == "ended" ||
				!bytes.Equal(of.Filter, end.Filter) {
				break
			}
			entry.Before, counted = append(entry.Before, next), of.Event == "counted"
		}
		all = append(all, entry)
	}
	return all
}

func (q *request) audit() error {
	times, err := filterOf(only(q.query, []string{"from", "to"}))
	if err != nil {
		return err
	}
	filter := ops.AuditFilter{Actor: ops.Actor(q.query.Get("actor")), Action: ops.Action(q.query.Get("action")),
		Target: q.query.Get("target"), From: times.From, To: times.To}
	page, err := q.reader().Audit(q.r.Context(), filter, ops.Cursor(q.query.Get("after")), limitOf(q.query))
	if err != nil {
		return err
	}
	return q.render("audit", "Audit", "audit", auditBody{page, folded(page.Items), ops.Actions(), filter != ops.AuditFilter{}})
}

// pageSizes are the page sizes offered. The first is the default.
var pageSizes = []int{50, 100, 200}

// filterFields are the query parameters that form a filter of statuses.
var filterFields = []string{"state", "handler", "id", "namespace", "type", "from", "to", "error", "fingerprint"}

// filterOf reads a filter from the query of an address, so that filtered lists can be bookmarked and shared.
func filterOf(query url.Values) (ops.Filter, error) {
	f := ops.Filter{
		MessageID: query.Get("id"), Namespace: query.Get("namespace"), Type: query.Get("type"), ErrorText: query.Get("error"),
		Fingerprint: query.Get("fingerprint"),
		HandlerKeys: present(query["handler"]),
	}
	for _, state := range present(query["state"]) {
		f.States = append(f.States, ops.State(state))
	}
	if f.MessageID == "" {
		f.Namespace = "" // a namespace qualifies an ID only
	}
	var err error
	if f.From, err = timeOf(query.Get("from")); err != nil {
		return f, badInput("“From” is not a time such as 2026-01-31T14:30.")
	}
	if f.To, err = timeOf(query.Get("to")); err != nil {
		return f, badInput("“To” is not a time such as 2026-01-31T14:30.")
	}
	return f, checkLists(f)
}

// present drops empty values, because forms send unfilled fields too. Other values stay unchanged: IDs, types and
// handler keys may begin or end with spaces.
func present(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(value string) bool { return value == "" })
}

// timeOf parses a UTC time in the formats that browsers' fields and this package write.
func timeOf(text string) (t time.Time, err error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano, "2006-01-02"} {
		if t, err = time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, err
}

// only keeps the named parameters that are not empty.
func only(query url.Values, names []string) url.Values {
	kept := url.Values{}
	for _, name := range names {
		if values := present(query[name]); len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// limitOf returns the requested page size if it is one of pageSizes, else the default.
func limitOf(query url.Values) int {
	if asked, err := strconv.Atoi(query.Get("limit")); err == nil && slices.Contains(pageSizes, asked) {
		return asked
	}
	return pageSizes[0]
}

// paging has the links to the next and the first page of a list.
type paging struct {
	Next    string // address of the next page; empty on the last
	First   string // address of the first page; empty on the first
	Partial bool
	Scanned int
	Shown   int
}

// Paging builds the links of a list. They keep the filters of the current address.
func (v *view) Paging(next ops.Cursor, partial bool, scanned, shown int) paging {
	p := paging{Partial: partial, Scanned: scanned, Shown: shown}
	query := v.q.ownQuery()
	if query.Get("after") != "" {
		query.Del("after")
		p.First = "./" + v.q.route.path + "?" + query.Encode()
	}
	if next != "" {
		query.Set("after", string(next))
		p.Next = "./" + v.q.route.path + "?" + query.Encode()
	}
	return p
}
