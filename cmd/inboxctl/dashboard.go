package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/ops"
)

const (
	passwordVariable = "INBOX_DASHBOARD_PASSWORD"
	// minPassword is the shortest password, long enough not to be guessed over a network.
	minPassword = 12
	// endingFor is how long an interrupt waits for requests and bulk actions, at least.
	endingFor = 10 * time.Second
)

type dashboardFlags struct {
	listen, role string
	origins      []string
	insecure     bool
	payloads     payloads
}

func newDashboard(a *app) *cobra.Command {
	var f dashboardFlags
	cmd := &cobra.Command{
		Use: "dashboard", Short: "Serve the web dashboard for one operator",
		Long: `Serves the dashboard at a local address until Ctrl-C. Everyone who opens it acts as
--actor, with the role of --role: viewer, operator, or admin, who may also delete.

The browser asks for a password: that of ` + passwordVariable + `, of 12 characters
or more, or else a new one that is printed. The user name does not matter. With
--insecure there is no password. It requires an address that only this machine can
reach, and every user and program of the machine can then act in your name.

Actions that need the application are not available here: replay, accepting a
rejected message again, and the cleanup (use "inboxctl cleanup" instead). For a
team, mount the dashboard in the application: see docs/dashboard.md.

There is no TLS. On another machine, listen on its loopback address and connect
through "ssh -L" or "kubectl port-forward", or put a proxy with TLS in front of it.
If the proxy changes the Host header, name the origin that browsers see by --origin.

Port 0 selects a free port. Ctrl-C also stops bulk actions: the current chunk is
completed or rolled back as a whole.

JSON: {"URL", "Inbox", "Actor", "Role", "Password"}, once it listens.`,
		Example: `  inboxctl dashboard
  inboxctl dashboard --role admin --show-payload
  inboxctl dashboard --listen 127.0.0.1:0 --role viewer --insecure`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.dashboard(cmd.Context(), &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8420", "the address and port to listen on")
	flags.StringVar(&f.role, "role", dashboard.Operator.String(), "the role of the user: viewer, operator or admin")
	fixed(cmd, "role", roleNames()...)
	flags.StringArrayVar(&f.origins, "origin", nil,
		"another origin whose pages may send forms, such as https://ops.example.org; may be repeated")
	flags.BoolVar(&f.insecure, "insecure", false,
		"require no password; only on an address that only this machine can reach")
	f.payloads.bind(cmd)
	return cmd
}

func roleNames() (names []string) {
	for _, role := range []dashboard.Role{dashboard.Viewer, dashboard.Operator, dashboard.Admin} {
		names = append(names, role.String())
	}
	return names
}

// dashboard checks everything that needs no database before it connects to one.
func (a *app) dashboard(ctx context.Context, f *dashboardFlags) error {
	if err := a.checkActor(); err != nil {
		return err
	}
	if strings.ContainsFunc(a.actor, unicode.IsControl) {
		return misuse("the actor has control characters")
	}
	g := gate{who: dashboard.Principal{Actor: a.actor}, say: a.say}
	for i, name := range roleNames() {
		if name == f.role {
			g.who.Role = dashboard.Viewer + dashboard.Role(i)
		}
	}
	if g.who.Role == 0 {
		return misuse("--role = %q: must be viewer, operator or admin", f.role)
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return misuse("--listen = %q: must be an address with a port such as 127.0.0.1:8420", f.listen)
	}
	password, shown := a.getenv(passwordVariable), ""
	switch {
	case f.insecure && !isLoopback(host):
		return misuse("--insecure requires an address that only this machine can reach, such as 127.0.0.1:8420 (--listen = %q)",
			f.listen)
	case f.insecure && password != "":
		return misuse("both --insecure and %s: use one", passwordVariable)
	case f.insecure:
		g.hosts = f.origins
	case password == "":
		password = rand.Text()
		shown = password
	case utf8.RuneCountInString(password) < minPassword:
		return misuse("%s has fewer than %d characters", passwordVariable, minPassword)
	}
	if !f.insecure {
		g.sum = sha256.Sum256([]byte(password))
	}
	g.insecure = f.insecure
	return a.with(ctx, func(ctx context.Context, o *ops.Ops) error { return a.serve(ctx, o, f, &g, shown) })
}

// isLoopback reports whether a host is reachable only from this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// gate authenticates the one operator.
type gate struct {
	who      dashboard.Principal
	insecure bool
	sum      [sha256.Size]byte // of the password
	hosts    []string          // origins whose hosts are accepted, too
	say      func(format string, args ...any)
}

// authorize is the dashboard's authorizer. Without a password it checks the Host header because of
// DNS rebinding: another site can have its own name resolve to this machine, and its pages then
// have the dashboard's origin.
func (g *gate) authorize(r *http.Request) (dashboard.Principal, error) {
	if g.insecure {
		if !g.isOurs(r.Host) {
			return dashboard.Principal{}, errors.New("the Host header names another machine")
		}
		return g.who, nil
	}
	_, password, _ := r.BasicAuth()
	sum := sha256.Sum256([]byte(password))
	if subtle.ConstantTimeCompare(sum[:], g.sum[:]) != 1 {
		return dashboard.Principal{}, errors.New("wrong password")
	}
	return g.who, nil
}

func (g *gate) isOurs(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	for _, origin := range g.hosts {
		if u, err := url.Parse(origin); err == nil && u.Host == host {
			return true
		}
	}
	return isLoopback(name)
}

// before makes browsers ask for the password, and reports wrong ones.
func (g *gate) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := g.authorize(r); err != nil {
			if !g.insecure {
				w.Header().Set("WWW-Authenticate", `Basic realm="inboxctl dashboard", charset="UTF-8"`)
			}
			if g.insecure || r.Header.Get("Authorization") != "" {
				g.say("Refused %s: %v.", oneLine(r.RemoteAddr), err)
			}
		}
		next.ServeHTTP(w, r)
	})
}
