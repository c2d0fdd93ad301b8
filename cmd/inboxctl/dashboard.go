package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/ops"
)

const (
	passwordVariable = "INBOX_DASHBOARD_PASSWORD"
	// minPassword is the shortest password, long enough not to be guessed over a network.
	minPassword = 12
	// minStopTimeout is how long an interrupt waits for requests and bulk actions, at least.
	minStopTimeout = 10 * time.Second
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

The browser asks for a password. ` + passwordVariable + ` sets it, with 12
characters or more; without it a new password is printed. The user name does not
matter. With --insecure there is no password. It requires an address that only this
machine can reach, and every user and program of the machine can then act in your
name.

Actions that need the application are not available here: replay, backfill,
accepting a rejected message or reading a topic again, and the cleanup (use
"inboxctl cleanup" instead). For a team, mount the dashboard in the application: see
docs/dashboard.md.

There is no TLS. On another machine, listen on its loopback address and connect
through "ssh -L" or "kubectl port-forward", or put a proxy with TLS in front of it.
If the proxy changes the Host header, name the origin that browsers see by --origin.

Port 0 selects a free port. Ctrl-C also stops bulk actions: the current chunk is
completed or rolled back as a whole.

JSON: {"url", "inbox", "actor", "role", "password"}, once it listens.`,
		Example: `  inboxctl dashboard
  inboxctl dashboard --role admin --show-payload
  inboxctl dashboard --listen 127.0.0.1:0 --role viewer --insecure`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error { return a.dashboard(cmd.Context(), &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8420", "the address and port to listen on")
	flags.StringVar(&f.role, "role", dashboard.Operator.String(), "the role of the user: viewer, operator or admin")
	completeFlag(cmd, "role", roles...)
	flags.StringArrayVar(&f.origins, "origin", nil,
		"another origin whose pages may send forms, such as https://ops.example.org; may be repeated")
	flags.BoolVar(&f.insecure, "insecure", false,
		"require no password; only on an address that only this machine can reach")
	f.payloads.bind(cmd)
	return cmd
}

// roles are the names of the roles, of which dashboard.Viewer is the first.
var roles = []string{dashboard.Viewer.String(), dashboard.Operator.String(), dashboard.Admin.String()}

// dashboard checks everything that needs no database before it connects to one.
func (a *app) dashboard(ctx context.Context, f *dashboardFlags) error {
	if err := a.checkActor(); err != nil {
		return err
	}
	if strings.ContainsFunc(a.actor, unicode.IsControl) {
		return misuse("the actor has control characters")
	}
	role := slices.Index(roles, f.role)
	if role < 0 {
		return misuse("--role = %q: must be viewer, operator or admin", f.role)
	}
	who := dashboard.Principal{Actor: a.actor, Role: dashboard.Viewer + dashboard.Role(role)}
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
	case !f.insecure && password == "":
		password = rand.Text()
		shown = password
	case !f.insecure && utf8.RuneCountInString(password) < minPassword:
		return misuse("%s has fewer than %d characters", passwordVariable, minPassword)
	}
	g := gate{who: who, flags: f, sum: sha256.Sum256([]byte(password)), say: a.say}
	return a.withReplica(ctx, func(ctx context.Context, o *ops.Ops) error { return a.serve(ctx, o, &g, shown) })
}

// isLoopback reports whether a host is reachable only from this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// gate authenticates the one operator.
type gate struct {
	who   dashboard.Principal
	flags *dashboardFlags
	sum   [sha256.Size]byte // of the password
	say   func(format string, args ...any)
}

// authorize is the dashboard's authorizer. Without a password it checks the Host header because of DNS rebinding:
// another site can have its own name resolve to this machine, and its pages then have the dashboard's origin.
func (g *gate) authorize(r *http.Request) (dashboard.Principal, error) {
	if g.flags.insecure {
		if !g.acceptsHost(r.Host) {
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

func (g *gate) acceptsHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return isLoopback(name) || slices.ContainsFunc(g.flags.origins, func(origin string) bool {
		u, err := url.Parse(origin)
		return err == nil && u.Host == host
	})
}

// askPassword makes browsers ask for the password, and reports wrong ones.
func (g *gate) askPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := g.authorize(r); err != nil {
			if !g.flags.insecure {
				w.Header().Set("WWW-Authenticate", `Basic realm="inboxctl dashboard", charset="UTF-8"`)
			}
			if g.flags.insecure || r.Header.Get("Authorization") != "" {
				g.say("Refused %s: %v.", oneLine(r.RemoteAddr), err)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// served is the JSON output of a running dashboard.
type served struct {
	URL, Inbox, Actor, Role string
	Password                string // empty unless it was generated
}

// serve serves until ctx ends or the server fails.
func (a *app) serve(ctx context.Context, o *ops.Ops, g *gate, password string) error {
	f := g.flags
	d, err := dashboard.New(o, func(o *dashboard.Options) {
		o.Authorizer, o.Origins, o.Logger = g.authorize, f.origins, a.logger()
		o.ShowPayloads = f.payloads.show
	})
	if err != nil {
		return misuse("%w", err)
	}
	seen, err := o.Overview(ctx)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	server := &http.Server{Handler: g.askPassword(d), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: zap.NewStdLog(a.logger())}
	_ = d.Start(ctx) // never fails
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	at := served{URL: "http://" + listener.Addr().String() + "/", Inbox: seen.Inbox, Actor: a.actor,
		Role: g.who.Role.String(), Password: password}
	err = a.print(at, func() { a.writeServed(at) })
	if host, _, _ := net.SplitHostPort(listener.Addr().String()); !isLoopback(host) {
		a.say("Other machines can reach this address and there is no TLS: the password and all pages can be intercepted.")
	}
	if err == nil {
		select {
		case <-ctx.Done():
			a.say("Stopping. Press Ctrl-C again to end inboxctl at once.")
		case err = <-failed:
			failed <- err
			err = fmt.Errorf("serve the dashboard: %w", err)
		}
	}
	return errors.Join(err, a.endServing(context.WithoutCancel(ctx), server, d, failed))
}

// endServing ends running requests and bulk actions before the database is closed.
func (a *app) endServing(ctx context.Context, server *http.Server, d *dashboard.Dashboard, failed chan error) error {
	ctx, cancel := context.WithTimeout(ctx, max(minStopTimeout, a.stepTimeout()))
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- d.Stop(ctx) }() // concurrently, because the page of a bulk action keeps sending requests
	err := server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("end running requests: %w", err), server.Close())
	}
	if ended := <-failed; !errors.Is(ended, http.ErrServerClosed) && err == nil {
		err = ended
	}
	if stop := <-stopped; stop != nil {
		err = errors.Join(err, fmt.Errorf("end running bulk actions: %w", stop))
	}
	return err
}

func (a *app) writeServed(at served) {
	fmt.Fprintf(a.out, "The dashboard of inbox %q is at %s\n", oneLine(at.Inbox), at.URL)
	fmt.Fprintf(a.out, "You act as %s, with the role %s.\n", oneLine(at.Actor), at.Role)
	if at.Password != "" {
		fmt.Fprintf(a.out, "Password: %s (any user name)\n", at.Password)
	}
	fmt.Fprintln(a.out, "Press Ctrl-C to stop it.")
}

// logger writes actions and errors to standard error, in lines that are safe for a terminal and contain no passwords.
func (a *app) logger() *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{TimeKey: "time",
		EncodeTime: zapcore.TimeEncoderOfLayout(time.TimeOnly), MessageKey: "message",
		EncodeDuration: zapcore.StringDurationEncoder, ConsoleSeparator: "  "})
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(lines{a}), zap.InfoLevel))
}

// lines is the log's output.
type lines struct{ a *app }

func (l lines) Write(p []byte) (int, error) {
	l.a.say("%s", errorLine(errors.New(strings.TrimSpace(string(p)))))
	return len(p), nil
}
