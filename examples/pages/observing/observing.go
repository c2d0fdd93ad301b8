// Package observing is the code of docs/observability.md.
package observing

import (
	"log/slog"
	"net/http"

	"github.com/gorm-inbox/inbox"
)

func probes(mux *http.ServeMux, ib *inbox.Inbox) {
	mux.Handle("GET /live", ib.LiveHandler())   // Kubernetes: livenessProbe
	mux.Handle("GET /ready", ib.ReadyHandler()) // readinessProbe
}

// logTo is for programs that log with log/slog.
func logTo(log *slog.Logger) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Logger = inbox.Slog(log) })
}
