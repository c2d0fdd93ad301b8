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
}

// routes is the only table of routes and the roles that they need. Nothing outside of it is served.
func routes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{get, "", Viewer, (*request).overview},
		{get, "messages", Viewer, (*request).messages},
		{get, "message", Viewer, (*request).message},
		{get, "failures", Viewer, (*request).failures},
		{get, "rejected", Viewer, (*request).rejectedList},
		{get, "rejected-message", Viewer, (*request).rejectedOne},
		{get, "handlers", Viewer, (*request).handlers},
		{get, "consumers", Viewer, (*request).consumers},
		{get, "workers", Viewer, (*request).workers},
		{get, "gaps", Viewer, (*request).gaps},
		{get, "markers", Viewer, (*request).markers},
		{get, "audit", Operator, (*request).audit},

		{post, "retry", Operator, (*request).retry},
		{post, "discard", Operator, (*request).discard},
		{post, "selected", Operator, (*request).confirmSelected},
		{get, "bulk", Operator, (*request).confirmBulk},
		{post, "bulk", Operator, (*request).startBulk},
		{get, "job", Operator, (*request).job},
		{post, "job-stop", Operator, (*request).stopJob},
		{post, "pause", Operator, (*request).pause},
		{post, "resume", Operator, (*request).resume},
		{post, "accept", Operator, (*request).reAccept},
		{get, "resume-partition", Operator, (*request).confirmResume},
		{post, "resume-partition", Operator, (*request).resumePartition},
		{get, "skip-record", Operator, (*request).confirmSkip},
		{post, "skip-record", Operator, (*request).skipRecord},
		{get, "accept-all", Operator, (*request).confirmReAccept},
		{post, "accept-all", Operator, (*request).startReAccept},

		{get, "delete", Admin, (*request).confirmDelete},
		{post, "delete", Admin, (*request).deleteMessage},
		{get, "delete-rejected", Admin, (*request).confirmDeleteRejected},
		{post, "delete-rejected", Admin, (*request).deleteRejected},
		{get, "replay", Admin, (*request).editReplay},
		{post, "replay", Admin, (*request).replay},
		{get, "backfill", Admin, (*request).confirmBackfill},
		{post, "backfill", Admin, (*request).startBackfill},
		{get, "forget-topic", Admin, (*request).confirmForget},
		{post, "forget-topic", Admin, (*request).forgetTopic},
		{get, "cleanup", Admin, (*request).confirmCleanup},
		{post, "cleanup", Admin, (*request).startCleanup},

		{get, "dashboard.css", Viewer, (*request).asset},
		{get, "dashboard.js", Viewer, (*request).asset},
		{get, "dashboard.svg", Viewer, (*request).asset},
	}
}

// name is the route's name in the audit.
func (r *route) name() string { return strings.TrimSpace(r.method + " " + r.path) }

// isFile reports whether the route is a static file, which is cheap to serve.
func (r *route) isFile() bool { return strings.Contains(r.path, ".") }

// action is the operation that the Ops must support for the route. It is empty if any Ops will do.
func (r *route) action() ops.Action {
	switch r.path {
	case "accept", "accept-all":
		return ops.ActionReAccept
	case "replay":
		return ops.ActionReplay
	case "backfill":
		return ops.ActionBackfill
	case "cleanup":
		return ops.ActionCleanup
	}
	return ""
}

// find returns the route of a method and a path. If there is none, it returns the methods that the
// path has.
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
