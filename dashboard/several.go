package dashboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// several serves dashboards under their names.
type several struct {
	names []string // sorted
	of    map[string]*Dashboard
}

// segment is a name that can be one segment of a path as it is.
var segment = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Several serves several dashboards, each under its name: mounted at "/inbox/", it serves the dashboard "orders" at
// "/inbox/orders/". Each page can switch to the others. Each dashboard keeps its own options, so its Authorizer decides
// who sees it: the switch lists the dashboards that admit the caller, and asks the Authorizer of each for every page.
// Names have letters, digits, dots, underscores and hyphens. Start and Stop each dashboard yourself.
func Several(dashboards map[string]*Dashboard) (http.Handler, error) {
	if len(dashboards) == 0 {
		return nil, errors.New("dashboard: several: there are none")
	}
	for name, d := range dashboards {
		switch {
		case d == nil:
			return nil, fmt.Errorf("dashboard: several: %q is nil", name)
		case !segment.MatchString(name):
			return nil, fmt.Errorf("dashboard: several: name %q: must be letters, digits, dots, underscores and hyphens, and begin with a letter or digit", name)
		}
	}
	return &several{names: slices.Sorted(maps.Keys(dashboards)), of: maps.Clone(dashboards)}, nil
}

// ServeHTTP serves the dashboard that the path names. A caller whom no dashboard knows gets the same answer for every
// path. One whom only others know gets the same answer for it as for a name that does not exist. So both learn no name.
func (s *several) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	d := s.of[name]
	var who Principal
	if d != nil {
		var known bool
		if who, known = d.principalOf(r); known {
			if below {
				path = "/" + path
			}
			d.serve(w, at(r, path), s, name)
			return
		}
	}
	seen := s.seenBy(r, name) // asks as many as for a name that does not exist
	switch {
	case len(seen) == 0:
		s.of[s.names[0]].serve(w, at(r, "/"), nil, "")
	case name != "":
		if d != nil {
			d.deniedInBackground(r, who)
		}
		harden(w.Header())
		http.Error(w, "Page not found. No dashboard has this name.", http.StatusNotFound)
	default:
		to := "./" + seen[0] + "/"
		if r.URL.Path == "" { // the prefix without its slash
			last, ok := lastSegment(r)
			if !ok {
				last = "."
			}
			to = "./" + last + "/" + seen[0] + "/"
		}
		harden(w.Header())
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusSeeOther)
	}
}

// at returns the request for another path.
func at(r *http.Request, path string) *http.Request {
	moved := r.Clone(r.Context())
	moved.URL.Path, moved.URL.RawPath = path, ""
	return moved
}

// seenBy returns the names of the dashboards, without the excluded one, that the sender of a request may see.
func (s *several) seenBy(r *http.Request, excluded string) (names []string) {
	for _, name := range s.names {
		if name == excluded {
			continue
		}
		if _, known := s.of[name].principalOf(r); known {
			names = append(names, name)
		}
	}
	return names
}

// principalOf reports who sent a request, and whether that is someone with a role.
func (d *Dashboard) principalOf(r *http.Request) (Principal, bool) {
	who, err := d.authorize(r)
	if err != nil {
		who = Principal{Actor: string(unknownActor)}
	}
	return who, err == nil && who.known()
}

// maxDenying bounds how many refusals are audited in the background at once.
const maxDenying = 4

// deniedInBackground audits that someone of another dashboard was refused. The answer does not wait for that: its time
// would reveal that this dashboard exists.
func (d *Dashboard) deniedInBackground(r *http.Request, who Principal) {
	select {
	case d.denying <- struct{}{}:
	default:
		d.log.Warn("a refused request is not in the audit: too many are refused", zap.String(telemetry.FieldActor, who.Actor))
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), d.opts.Deadline)
	r = r.WithContext(ctx)
	go func() {
		defer func() { <-d.denying }()
		defer cancel()
		d.denied(r, ops.Actor(who.Actor), theDashboard)
	}()
}

// deniedAll waits until the refusals that are being audited are written, at most until ctx ends.
func (d *Dashboard) deniedAll(ctx context.Context) error {
	for taken := range maxDenying {
		select {
		case d.denying <- struct{}{}:
			defer func() { <-d.denying }()
		case <-ctx.Done():
			return fmt.Errorf("dashboard: %d refusals are still being audited: %w", maxDenying-taken, ctx.Err())
		}
	}
	return nil
}

// lastSegment returns the last segment of the address that the client requested, before routers stripped a prefix.
func lastSegment(r *http.Request) (string, bool) {
	asked, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return "", false
	}
	path := asked.EscapedPath()
	return path[strings.LastIndex(path, "/")+1:], true
}

// inboxLink is one inbox of the switch.
type inboxLink struct {
	Name string
	Here bool
}

// Inboxes returns the switch among several inboxes. It is empty if there is nothing to switch to.
func (v *view) Inboxes() (links []inboxLink) {
	if v.q.several == nil {
		return nil
	}
	seen := v.q.several.seenBy(v.q.r, "")
	if len(seen) == 0 || len(seen) == 1 && seen[0] == v.q.name {
		return nil
	}
	for _, name := range seen {
		links = append(links, inboxLink{Name: name, Here: name == v.q.name})
	}
	return links
}
