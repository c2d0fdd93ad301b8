package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/idempotent"
)

// requests is how many deliveries each worker handles at once, handleTimeout how long one may take.
const (
	requests      = 4
	handleTimeout = 30 * time.Second
)

// Point is where a delivery kills its worker, for the demonstration.
type Point string

// The points, in the order in which a delivery reaches them.
const (
	beforeHandler Point = "before the handler"
	inHandler     Point = "in the handler, between two writes"
	afterHandler  Point = "after the handler, before its marker is stored"
	afterMarker   Point = "after the marker is stored, before the acknowledgement"
)

var points = []Point{beforeHandler, inHandler, afterHandler, afterMarker}

// reach kills this process if the payment says so.
func (p Payment) reach(at Point) {
	if p.KillAt == at {
		demo.KillSelf()
	}
}

// Config is what a worker gets at its start.
type Config struct {
	Database string // a DSN, see demo.Open
	Calls    string // the file in which the handler notes its calls
	Redis    string // the URL of the markers; empty: they are in the database
	Prefix   string // of the run's keys in Redis
}

// RunWorker handles the deliveries that are posted to the inherited listener, until ctx ends. The end of the
// process closes what it opens.
func RunWorker(ctx context.Context, cfg Config) error {
	connections := requests
	if demo.OnSQLite(cfg.Database) {
		// Requests queue for the one connection in order. For the file's lock they would wait by chance.
		connections = 1
	}
	db, err := demo.Open(cfg.Database, connections)
	if err != nil {
		return err
	}
	calls, err := demo.OpenLines(cfg.Calls)
	if err != nil {
		return err
	}
	markers, err := (&Handler{calls}).OpenMarkers(db, cfg.Redis, cfg.Prefix)
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: Receiver(markers.Handle), ReadHeaderTimeout: handleTimeout}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		stopped <- server.Shutdown(stopping)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// Receiver handles posted payments. Only status 200 acknowledges one.
func Receiver(handle handleFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p Payment
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), handleTimeout)
		defer cancel()
		p.reach(beforeHandler)
		switch err := handle(ctx, p); {
		case errors.Is(err, idempotent.ErrLost):
			http.Error(w, err.Error(), http.StatusConflict)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			p.reach(afterMarker)
		}
	})
}
