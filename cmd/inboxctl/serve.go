package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/ops"
)

// served is the JSON output of a running dashboard.
type served struct {
	URL      string
	Inbox    string
	Actor    string
	Role     string
	Password string // empty unless it was generated
}

// serve serves until ctx ends or the server fails.
func (a *app) serve(ctx context.Context, o *ops.Ops, f *dashboardFlags, g *gate, password string) error {
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
	server := &http.Server{Handler: g.before(d), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: zap.NewStdLog(a.logger())}
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
	ctx, cancel := context.WithTimeout(ctx, max(endingFor, a.stepTimeout()))
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- d.Stop(ctx) }() // concurrently, because a job's page keeps sending requests
	err := server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("end requests under way: %w", err), server.Close())
	}
	if ended := <-failed; !errors.Is(ended, http.ErrServerClosed) && err == nil {
		err = ended
	}
	if stop := <-stopped; stop != nil {
		err = errors.Join(err, fmt.Errorf("end bulk actions under way: %w", stop))
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

// logger writes actions and errors to standard error, in lines that are safe for a terminal and
// contain no passwords.
func (a *app) logger() *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{TimeKey: "time",
		EncodeTime: zapcore.TimeEncoderOfLayout(time.TimeOnly), MessageKey: "message",
		EncodeDuration: zapcore.StringDurationEncoder, ConsoleSeparator: "  "})
	return zap.New(zapcore.NewCore(encoder, lines{a}, zap.InfoLevel))
}

// lines is the log's output.
type lines struct{ a *app }

func (l lines) Write(p []byte) (int, error) {
	l.a.say("%s", errorLine(errors.New(strings.TrimSpace(string(p)))))
	return len(p), nil
}

func (lines) Sync() error { return nil }
