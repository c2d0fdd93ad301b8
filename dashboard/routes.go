package dashboard

import (
	"net/http"
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
}

// routes is the only table of routes and the roles that they need. Nothing outside of it is served.
func routes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{get, "", Viewer, (*request).overview, false},
		{get, "messages", Viewer, (*request).messages, false},
		{get, "message", Viewer, (*request).message, true},
		{get, "failures", Viewer, (*request).failures, false},
		{get, "rejected", Viewer, (*request).rejectedList, false},
		{get, "rejected-message", Viewer, (*request).rejectedOne, true},
		{get, "handlers", Viewer, (*request).handlers, false},
		{get, "consumers", Viewer, (*request).consumers, false},
		{get, "workers", Viewer, (*request).workers, false},
		{get, "gaps", Viewer, (*request).gaps, false},
		{get, "markers", Viewer, (*request).markers, false},
		{get, "audit", Operator, (*request).audit, false},

		{post, "retry", Operator, (*request).retry, false},
		{post, "discard", Operator, (*request).discard, false},
		{post, "selected", Operator, (*request).confirmSelected, false},
		{get, "bulk", Operator, (*request).confirmBulk, true},
		{post, "bulk", Operator, (*request).startBulk, false},
		{get, "job", Operator, (*request).job, false},
		{post, "job-stop", Operator, (*request).stopJob, false},
		{post, "pause", Operator, (*request).pause, false},
		{post, "resume", Operator, (*request).resume, false},
		{post, "accept", Operator, (*request).reAccept, false},
		{get, "resume-partition", Operator, (*request).confirmResume, false},
		{post, "resume-partition", Operator, (*request).resumePartition, false},
		{get, "skip-record", Operator, (*request).confirmSkip, false},
		{post, "skip-record", Operator, (*request).skipRecord, false},
		{get, "accept-all", Operator, (*request).confirmReAccept, true},
		{post, "accept-all", Operator, (*request).startReAccept, false},

		{get, "delete", Admin, (*request).confirmDelete, false},
		{post, "delete", Admin, (*request).deleteMessage, false},
		{get, "delete-rejected", Admin, (*request).confirmDeleteRejected, false},
		{post, "delete-rejected", Admin, (*request).deleteRejected, false},
		{get, "replay", Admin, (*request).editReplay, true},
		{post, "replay", Admin, (*request).replay, false},
		{get, "backfill", Admin, (*request).confirmBackfill, true},
		{post, "backfill", Admin, (*request).startBackfill, false},
		{get, "forget-topic", Admin, (*request).confirmForget, false},
		{post, "forget-topic", Admin, (*request).forgetTopic, false},
		{get, "cleanup", Admin, (*request).confirmCleanup, false},
		{post, "cleanup", Admin, (*request).startCleanup, false},

		{get, "dashboard.css", Viewer, (*request).asset, false},
		{get, "dashboard.js", Viewer, (*request).asset, false},
		{get, "dashboard.svg", Viewer, (*request).asset, false},
	}
}

// name is the route's name in the audit.
func (r *route) name() string { return strings.TrimSpace(r.method + " " + r.path) }

// isFile reports whether the route is a static file, which is cheap to serve.
func (r *route) isFile() bool { return strings.Contains(r.path, ".") }

// action is the operation that the Ops must support for the route. It is empty if any Ops will do.
func (r *route) action() ops.Action {
	return map[string]ops.Action{"accept": ops.ActionReAccept, "accept-all": ops.ActionReAccept,
		"replay": ops.ActionReplay, "backfill": ops.ActionBackfill, "cleanup": ops.ActionCleanup}[r.path]
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
