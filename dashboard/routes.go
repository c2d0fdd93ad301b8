package dashboard

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/ops"
)

// route is one page, action or file. All are one level below the prefix.
type route struct {
	method string // GET includes HEAD
	path   string // without the leading slash
	role   Role
	serve  func(*request) error
	// audited is whether showing the page writes an audit row, so that other sites may not open it without a click.
	audited bool
	// parameters are those that a page's address may have besides the ones of all pages. Any other is refused: a filter
	// with a typo would show everything, with buttons that act on it.
	parameters []string
}

// routes is the only table of routes and the roles that they need. Nothing outside of it is served.
func routes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{get, "", Viewer, (*request).overview, false, nil},
		{get, "messages", Viewer, (*request).messages, false, with(filterFields, "limit", "after")},
		{get, "message", Viewer, (*request).message, true, []string{"id", "namespace"}},
		{get, "failures", Viewer, (*request).failures, false, failureFields},
		{get, "rejected", Viewer, (*request).rejectedList, false, with(rejectedFields, "limit", "after")},
		{get, "rejected-message", Viewer, (*request).rejectedOne, true, []string{"id"}},
		{get, "handlers", Viewer, (*request).handlers, false, nil},
		{get, "handler", Viewer, (*request).handler, false, []string{"handler"}},
		{get, "consumers", Viewer, (*request).consumers, false, nil},
		{get, "workers", Viewer, (*request).workers, false, nil},
		{get, "gaps", Viewer, (*request).gaps, false, []string{"limit", "after"}},
		{get, "markers", Viewer, (*request).markers, false, []string{"id", "namespace", "handler"}},
		{get, "audit", Operator, (*request).audit, false, []string{"actor", "action", "target", "from", "to", "limit", "after"}},

		{post, "retry", Operator, (*request).retry, false, nil},
		{post, "discard", Operator, (*request).discard, false, nil},
		{get, "reschedule", Operator, (*request).confirmReschedule, false, with(handlerFields, "status")},
		{post, "reschedule", Operator, (*request).reschedule, false, nil},
		{get, "rerun", Operator, (*request).confirmRerun, false, handlerFields},
		{post, "rerun", Operator, (*request).rerun, false, nil},
		{get, "cancel", Operator, (*request).confirmCancel, false, handlerFields},
		{post, "cancel", Operator, (*request).cancel, false, nil},
		{get, "release", Operator, (*request).confirmRelease, false, with(handlerFields, "status")},
		{post, "release", Operator, (*request).release, false, nil},
		{post, "selected", Operator, (*request).confirmSelected, false, nil},
		{get, "bulk", Operator, (*request).confirmBulk, true, with(filterFields, "action")},
		{post, "bulk", Operator, (*request).startBulk, false, nil},
		{get, "job", Operator, (*request).job, false, []string{"id"}},
		{post, "job-stop", Operator, (*request).stopJob, false, nil},
		{post, "pause", Operator, (*request).pause, false, nil},
		{post, "resume", Operator, (*request).resume, false, nil},
		{post, "accept", Operator, (*request).reAccept, false, nil},
		{get, "resume-partition", Operator, (*request).confirmResume, false, haltFields},
		{post, "resume-partition", Operator, (*request).resumePartition, false, nil},
		{get, "skip-record", Operator, (*request).confirmSkip, false, haltFields},
		{post, "skip-record", Operator, (*request).skipRecord, false, nil},
		{get, "accept-all", Operator, (*request).confirmReAccept, true, rejectedFields},
		{post, "accept-all", Operator, (*request).startReAccept, false, nil},

		{get, "delete", Admin, (*request).confirmDelete, false, []string{"id", "namespace"}},
		{post, "delete", Admin, (*request).deleteMessage, false, nil},
		{get, "delete-rejected", Admin, (*request).confirmDeleteRejected, false, []string{"id"}},
		{post, "delete-rejected", Admin, (*request).deleteRejected, false, nil},
		{get, "replay", Admin, (*request).editReplay, true, []string{"id", "namespace"}},
		{post, "replay", Admin, (*request).replay, false, nil},
		{get, "backfill", Admin, (*request).confirmBackfill, true, backfillFields},
		{post, "backfill", Admin, (*request).startBackfill, false, nil},
		{get, "read-again", Admin, (*request).confirmReadAgain, false, readAgainFields},
		{post, "read-again", Admin, (*request).startReadAgain, false, nil},
		{get, "forget-topic", Admin, (*request).confirmForget, false, []string{"channel", "group", "topic"}},
		{post, "forget-topic", Admin, (*request).forgetTopic, false, nil},
		{get, "cleanup", Admin, (*request).confirmCleanup, false, nil},
		{post, "cleanup", Admin, (*request).startCleanup, false, nil},

		{get, "dashboard.css", Viewer, (*request).asset, false, nil},
		{get, "dashboard.js", Viewer, (*request).asset, false, nil},
		{get, "dashboard.svg", Viewer, (*request).asset, false, nil},
	}
}

// with returns names followed by more.
func with(names []string, more ...string) []string { return slices.Concat(names, more) }

// check refuses a page's address that has a parameter which the page does not know.
func (r *route) check(query url.Values) error {
	if r.method != http.MethodGet || r.isFile() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if name == partParameter || slices.Contains(noticeFields, name) || slices.Contains(r.parameters, name) {
			continue
		}
		text := "It has none."
		if len(r.parameters) > 0 {
			text = "It has: " + strings.Join(r.parameters, ", ") + "."
		}
		return badInput("The address has a parameter that this page does not have: “" + short(visible(name), 60) + "”. " + text)
	}
	return nil
}

// name is the route's name in the audit.
func (r *route) name() string { return strings.TrimSpace(r.method + " " + r.path) }

// isFile reports whether the route is a static file, which is cheap to serve.
func (r *route) isFile() bool { return strings.Contains(r.path, ".") }

// action is the operation that the Ops must support for the route. It is empty if any Ops will do.
func (r *route) action() ops.Action {
	return map[string]ops.Action{"accept": ops.ActionReAccept, "accept-all": ops.ActionReAccept,
		"replay": ops.ActionReplay, "backfill": ops.ActionBackfill, "read-again": ops.ActionReadAgain,
		"cleanup": ops.ActionCleanup}[r.path]
}

// find returns the route of a method and a path. If there is none, it returns the methods that the path has.
func find(method, path string) (found *route, other []string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, r := range routes() {
		if r.path != path {
			continue
		}
		if r.method == method {
			return &r, nil
		}
		other = append(other, r.method)
	}
	return nil, other
}
