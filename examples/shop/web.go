package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"

	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// webNeeds is what the web server is about. Fx fills it in.
type webNeeds struct {
	fx.In

	Config   Config
	Orders   *inbox.Inbox `name:"orders"`
	Shipping *inbox.Inbox `name:"shipping"`
	Mailer   *shipping.Mailer

	Lifecycle  fx.Lifecycle
	Shutdowner fx.Shutdowner
}

// serveWeb serves dashboards, metrics and probes while the application runs.
func serveWeb(n webNeeds) error {
	mux := http.NewServeMux()
	for _, ib := range []*inbox.Inbox{n.Orders, n.Shipping} {
		dash, err := n.dashboardOf(ib)
		if err != nil {
			return err
		}
		// For the charts' last hour. It ends before the inbox does, and its database.
		n.Lifecycle.Append(fx.StartStopHook(dash.Start, dash.Stop))

		prefix := "/" + ib.Name()
		mux.Handle(prefix+"/inbox/", n.Config.Accounts.Ask(http.StripPrefix(prefix+"/inbox", dash)))
		mux.Handle("GET "+prefix+"/live", ib.LiveHandler())
		mux.Handle("GET "+prefix+"/ready", ib.ReadyHandler())
	}
	mux.Handle("GET /metrics", n.Config.Metrics.Handler)
	front{n.Mailer, n.Config.Accounts}.mount(mux)

	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, ErrorLog: zap.NewStdLog(n.Config.Log)}
	n.Lifecycle.Append(fx.StartStopHook(func() { go n.serve(server) }, func(ctx context.Context) error {
		// A request that took all the time for stopping would leave the inboxes none to give their claims back.
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if server.Shutdown(ctx) == nil {
			return nil
		}
		return server.Close()
	}))
	return nil
}

// dashboardOf makes an inbox's dashboard.
func (n webNeeds) dashboardOf(ib *inbox.Inbox) (*dashboard.Dashboard, error) {
	o, err := ib.Ops()
	if err != nil {
		return nil, err
	}
	dash, err := dashboard.New(o, func(o *dashboard.Options) {
		o.Authorizer = n.Config.Accounts.Principal
		o.ShowPayloads = true
		o.Logger = n.Config.Log
	})
	if err != nil {
		return nil, fmt.Errorf("inbox %q: %w", ib.Name(), err)
	}
	return dash, nil
}

// serve serves until the server is shut down. If it ends otherwise so does the
// application.
func (n webNeeds) serve(server *http.Server) {
	if err := server.Serve(n.Config.Listener); !errors.Is(err, http.ErrServerClosed) {
		n.Config.Log.Error("the web server has ended", zap.Error(err))
		if err := n.Shutdowner.Shutdown(fx.ExitCode(1)); err != nil {
			n.Config.Log.Error("shut down", zap.Error(err))
		}
	}
}
