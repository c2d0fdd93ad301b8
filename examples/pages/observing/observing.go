// Package observing is the code of docs/observability.md.
package observing

import (
	"net/http"

	"github.com/gorm-inbox/inbox"
)

func probes(mux *http.ServeMux, ib *inbox.Inbox) {
	mux.Handle("GET /live", ib.LiveHandler())   // Kubernetes: livenessProbe
	mux.Handle("GET /ready", ib.ReadyHandler()) // readinessProbe
}
