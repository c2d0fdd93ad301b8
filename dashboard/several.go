package dashboard

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// several serves dashboards under their names.
type several struct {
	names []string // sorted
	of    map[string]*Dashboard
}

// segment is a name that can be one segment of a path as it is.
var segment = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Several serves several dashboards, each under its name: mounted at "/inbox/", it serves that of
// "orders" at "/inbox/orders/". Their pages have a switch among them. Each dashboard keeps its own
// options, so its Authorizer decides who sees it: the switch lists those that know the caller, and
// asks the Authorizer of each for every page. Names have letters, digits, dots, underscores and
// hyphens. Start and Stop each dashboard yourself.
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

// ServeHTTP serves the dashboard that the path names. A caller whom no dashboard knows gets the same
// answer for every path. One whom only others know gets the same answer for it as for a name that does
// not exist. So both learn no name.
func (s *several) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if d := s.of[name]; d != nil {
		if below {
			path = "/" + path
		}
		if _, known := d.principalOf(r); known {
			d.serve(w, at(r, path), s, name)
			return
		}
		if len(s.seenBy(r)) > 0 {
			// Someone of another dashboard gets the answer of a name that does not exist. The refusal is audited.
			d.serve(&nowhere{}, at(r, path), s, name)
		}
	}
	seen := s.seenBy(r)
	switch {
	case len(seen) == 0:
		s.of[s.names[0]].serve(w, at(r, "/"), nil, "")
	case name != "":
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

// nowhere is a response that is not sent.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header {
	if n.header == nil {
		n.header = http.Header{}
	}
	return n.header
}

func (n *nowhere) Write(b []byte) (int, error) { return len(b), nil }

func (n *nowhere) WriteHeader(int) {}

// at returns the request for another path.
func at(r *http.Request, path string) *http.Request {
	moved := r.WithContext(r.Context()) // a copy
	address := *r.URL
	address.Path, address.RawPath = path, ""
	moved.URL = &address
	return moved
}

// seenBy returns the names of the dashboards that the sender of a request may see.
func (s *several) seenBy(r *http.Request) (names []string) {
	for _, name := range s.names {
		if _, known := s.of[name].principalOf(r); known {
			names = append(names, name)
		}
	}
	return names
}

// principalOf reports who sent a request, and whether that is someone with a role.
func (d *Dashboard) principalOf(r *http.Request) (Principal, bool) {
	who, err := d.authorize(r)
	return who, err == nil && who.known()
}

// lastSegment returns the last segment of the address that the client requested, which is behind the
// prefix that a router has stripped.
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
	seen := v.q.several.seenBy(v.q.r)
	if len(seen) == 0 || len(seen) == 1 && seen[0] == v.q.name {
		return nil
	}
	for _, name := range seen {
		links = append(links, inboxLink{Name: name, Here: name == v.q.name})
	}
	return links
}
