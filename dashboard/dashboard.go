// Package dashboard is the web face of package ops: what an inbox holds, what
// went wrong with it, and the actions to mend it, as an http.Handler for any
// mux (contract 11.1, 11.4). It is rendered by the server, loads nothing from
// elsewhere, and works without JavaScript but for live updates.
//
// Nobody sees anything without an Authorizer: it says who asks and whether they
// are viewer, operator or admin. One table says which role each route needs.
package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"
)

// Dashboard is an http.Handler over one inbox. It is safe for concurrent use.
//
// All of its links are relative and one level deep, so that it works under any
// prefix: mount it behind http.StripPrefix("/inbox", d) at "/inbox/". A request
// for the prefix without its slash is sent there.
//
// It has goroutines only between Start and Stop, which samples for the charts,
// and while a bulk action or a cleanup runs, which Stop ends.
type Dashboard struct {
	settings
	ops     *ops.Ops
	guard   guard
	views   views
	samples samples
	causes  causes
	jobs    jobs
	sampler routine.Loop

	inProgress inProgress
}

// New makes a dashboard of what o sees. It is an error to give neither
// Authorizer nor Insecure, or both. It reads nothing and starts nothing.
func New(o *ops.Ops, options ...Option) (*Dashboard, error) {
	if o == nil {
		return nil, errors.New("dashboard: the *ops.Ops is nil: see Inbox.Ops or ops.New")
	}
	d := &Dashboard{settings: defaults(), ops: o, samples: samples{turn: make(chan struct{}, 1)},
		causes: causes{turn: make(chan struct{}, 1)}}
	for _, option := range options {
		option(&d.settings)
	}
	if err := d.settings.check(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	if d.secret == nil {
		d.secret = make([]byte, minSecret)
		_, _ = rand.Read(d.secret) // never fails, see its doc
	}
	d.guard = guard{secret: d.secret, origins: d.origins}
	views, err := parseViews()
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d.views = views
	return d, nil
}

// forget has the next page show what was just done.
func (d *Dashboard) forget() {
	d.samples.forget()
	d.causes.forget()
}

// Start has the charts' samples taken in the background, so that whoever opens
// the dashboard sees the last hour. Without it they are taken while somebody
// looks. It may be called in any order with Stop, and twice.
func (d *Dashboard) Start(context.Context) error {
	d.jobs.reopen()
	d.sampler.Start(d.sample)
	return nil
}

// Stop ends the sampling and all bulk actions and cleanups under way, between
// two chunks, and waits for their end, but no longer than ctx. New ones are
// refused until Start. Call it before the database is closed.
func (d *Dashboard) Stop(ctx context.Context) error {
	d.jobs.close()
	return errors.Join(d.sampler.Stop(ctx), d.jobs.wait(ctx))
}

// writeFor is how long after the deadline a page that says so may be written.
const writeFor = 5 * time.Second

// ServeHTTP answers one request.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), d.deadline)
	defer cancel()
	// Who reads the answer slowly does not hold it for longer, either. It is not an
	// error that a writer has no deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d.deadline + writeFor))
	q := &request{d: d, w: w, r: r.WithContext(ctx)}
	if err := q.answer(); err != nil {
		q.fail(err)
	}
}
