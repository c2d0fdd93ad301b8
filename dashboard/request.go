package dashboard

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// Size limits of forms, in bytes. A replay carries new content, other forms at most the selection of the longest list.
const (
	maxReplay = 4 << 20
	maxForm   = 256 << 10
)

// The audit's target of requests that are refused on every route, and the actor of requests without a user.
const (
	theDashboard = "the dashboard"
	unknownActor = ops.Actor("(unknown)")
)

// request is one HTTP request while the dashboard handles it.
type request struct {
	d     *Dashboard
	w     http.ResponseWriter
	r     *http.Request
	who   Principal
	route *route
	query url.Values
	token string
	// source is where the page reads lists and details; see reader.
	source ops.Source

	several *several // nil for a single dashboard
	name    string   // among several
}

func (q *request) actor() ops.Actor { return ops.Actor(q.who.Actor) }
func (q *request) now() time.Time   { return q.d.clock.Now().UTC() }

// reader returns what the page reads lists and details from: a read replica or the primary. The page says which. What
// an action depends on is read from the primary.
func (q *request) reader() ops.Reader {
	var r ops.Reader
	r, q.source = q.d.ops.Reader(q.r.Context())
	switch {
	case q.source.Err != nil:
		q.d.replica.Begin(nil, q.source.Err)
	case q.source.Replica:
		q.d.replica.End(nil)
	}
	return r
}

// may reports whether the principal may use a route and this dashboard can serve it. Pages offer only such routes.
func (q *request) may(method, path string) bool {
	may, lacking := q.use(method, path)
	return may && lacking == nil
}

// lacks returns why a route that the principal may use needs the application's dashboard, or "". It is also "" if
// replay is switched off, because that is on purpose.
func (q *request) lacks(method, path string) string {
	if may, lacking := q.use(method, path); may && errors.Is(lacking, ops.ErrNeedsApplication) {
		return problemOf(lacking).text
	}
	return ""
}

// use reports whether the principal's role allows a route, and the error if this dashboard cannot serve it.
func (q *request) use(method, path string) (may bool, lacking error) {
	found, _ := find(method, path)
	if found == nil || q.who.Role < found.role {
		return false, nil
	}
	return true, q.d.ops.Can(found.action())
}

// seesValues reports whether record keys and the values of headers and attributes are shown.
func (q *request) seesValues() bool   { return q.who.Role >= Operator }
func (q *request) seesPayloads() bool { return q.seesValues() && q.d.opts.ShowPayloads }

// answer checks in this order: the principal, the route, the role, the form's token if the route changes something, and
// whether this dashboard can serve the route. Requests without a known principal learn nothing about the routes.
func (q *request) answer() error {
	harden(q.w.Header())
	who, err := q.d.authorize(q.r)
	if err != nil {
		q.denied(unknownActor, theDashboard)
		return refuse(http.StatusUnauthorized, "Not signed in",
			"The dashboard could not identify you. Sign in, then reload the page.", err)
	}
	if !who.known() {
		q.denied(ops.Actor(who.Actor), theDashboard)
		return refuse(http.StatusForbidden, "No access",
			"Your account has no role here. Ask an administrator of this service.", nil)
	}
	q.who = who

	if q.r.URL.Path == "" {
		return q.addSlash()
	}
	path, ok := strings.CutPrefix(q.r.URL.Path, "/")
	found, other := find(q.r.Method, path)
	switch {
	case !ok || found == nil && len(other) == 0:
		return refuse(http.StatusNotFound, "Page not found", "The address may have been cut off when it was copied.",
			nil)
	case found == nil:
		if slices.Contains(other, http.MethodGet) {
			other = append(other, http.MethodHead)
		}
		q.w.Header().Set("Allow", strings.Join(other, ", "))
		return refuse(http.StatusMethodNotAllowed, "Method not allowed", "This address does not accept "+visible(q.r.Method)+
			" requests.", nil)
	case who.Role < found.role:
		q.denied(q.actor(), found.name())
		return refuse(http.StatusForbidden, "Insufficient role",
			"This requires the role "+found.role.String()+". Yours is "+who.Role.String()+".", nil)
	}
	q.route = found
	if !found.isFile() {
		release, err := q.admit()
		if err != nil {
			return err
		}
		defer release()
	}
	if q.query, err = parameters(q.r.URL); err == nil {
		err = found.check(q.query)
	}
	if err != nil {
		return err
	}
	if found.method != http.MethodGet {
		if err := q.checkForm(); err != nil {
			return err
		}
	} else if embedded(q.r, found.audited) {
		return refuse(http.StatusForbidden, "Request from another site",
			"Pages of other sites may link to this dashboard but not load from it.", nil)
	}
	q.token = q.d.guard.token(q.d.guard.visit(q.w, q.r), who)
	if err := q.d.ops.Can(found.action()); err != nil {
		if errors.Is(err, ops.ErrReplayOff) {
			q.denied(q.actor(), found.name())
		}
		return err
	}
	return found.serve(q)
}

// denied audits a request that is refused for lack of rights. The request is refused even if auditing fails.
func (q *request) denied(actor ops.Actor, target string) { q.d.denied(q.r, actor, target) }

// denied writes no row of a request that another site made in a visitor's name.
func (d *Dashboard) denied(r *http.Request, actor ops.Actor, target string) {
	if d.guard.foreign(r) {
		return
	}
	if err := d.ops.Denied(r.Context(), actor, target); err != nil {
		d.log.Error("a refused request is not in the audit", zap.String(telemetry.FieldActor, string(actor)),
			zap.String(telemetry.FieldPath, r.URL.Path), zap.Error(err))
	}
}

func (q *request) checkForm() error {
	if !q.d.guard.sameOrigin(q.r) {
		return refuse(http.StatusForbidden, "Request from another site",
			"This form was sent from a page of another origin. If a proxy changes the Host header, the option Origins must name this site.", nil)
	}
	limit, words := int64(maxForm), "256 KiB"
	if q.route.path == "replay" {
		limit, words = maxReplay, "4 MiB"
	}
	_ = http.NewResponseController(q.w).SetReadDeadline(time.Now().Add(q.d.opts.Deadline)) // as in ServeHTTP
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, limit)
	if err := q.r.ParseForm(); err != nil {
		return refuse(http.StatusBadRequest, "Invalid form", "It is malformed or larger than "+words+".", err)
	}
	if !q.d.guard.ownForm(q.r, q.who) {
		return refuse(http.StatusForbidden, "Form expired",
			"The form belongs to another session, or the service has restarted since. Nothing was done. Go back, reload the page and try again.", nil)
	}
	return nil
}

// given returns a form's values: the parameters of its address, and its fields where the address has none of that name.
// The IDs and keys of messages, handlers and filters are in the address, because browsers change line ends in fields:
// they send CRLF, or drop them in single-line fields.
func (q *request) given() url.Values {
	all := url.Values{}
	maps.Copy(all, q.r.PostForm)
	maps.Copy(all, q.query)
	return all
}

// addSlash redirects a request for the bare prefix to the overview. The handler does not know the prefix, so it uses
// the last segment of the requested address. The "./" keeps the result from being an address on another host.
func (q *request) addSlash() error {
	last, ok := lastSegment(q.r)
	if !ok {
		return refuse(http.StatusNotFound, "Page not found", "The overview's address ends in a slash.", nil)
	}
	return q.redirect("./" + last + "/")
}

// redirect sends the browser to a relative address. http.Redirect would make it absolute, without the prefix.
func (q *request) redirect(to string) error {
	q.w.Header().Set("Location", to)
	q.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// back redirects to the page that the form names, with the result of the action. If the form names no page of the
// dashboard, it redirects to otherwise.
func (q *request) back(otherwise string, notice url.Values) error {
	to := ownPage(q.r.PostForm.Get("back"), otherwise)
	query := to.Query()
	for _, name := range noticeFields {
		query.Del(name)
	}
	for name, values := range notice {
		query[name] = values
	}
	return q.redirect("./" + to.Path + "?" + query.Encode())
}

// ownPage parses an address from a form if it names a page of the dashboard, else it returns otherwise.
func ownPage(address, otherwise string) *url.URL {
	to, err := url.Parse(strings.TrimPrefix(address, "./"))
	if err == nil && address != "" && to.Scheme == "" && to.Host == "" && to.User == nil && to.Opaque == "" {
		if page, _ := find(http.MethodGet, to.Path); page != nil {
			return &url.URL{Path: to.Path, RawQuery: to.RawQuery}
		}
	}
	return &url.URL{Path: otherwise}
}
