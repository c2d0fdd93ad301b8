// Package dashboard is the web UI of package ops, as an http.Handler for any mux (contract 11.1,
// 11.4). It shows what an inbox holds and what failed, and offers the actions of operators. Pages
// are rendered on the server and load nothing from other sites. They work without JavaScript,
// except for live updates.
//
// Nothing is shown without an Authorizer, which returns the user and the role: viewer, operator or
// admin. One table names the role that each route needs.
package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"

	"go.uber.org/zap"
)

// Dashboard is an http.Handler for one inbox. It is safe for concurrent use.
//
// All of its links are relative and one level deep, so it works under any prefix: mount it behind
// http.StripPrefix("/inbox", d) at "/inbox/". A request for the prefix without its slash is
// redirected there.
//
// It has goroutines only between Start and Stop, which sample for the charts, and while a bulk
// action or a cleanup runs. Stop ends them all.
type Dashboard struct {
	opts      Options
	log       *zap.Logger
	clock     clock.Clock
	authorize func(*http.Request) (Principal, error)
	ops       *ops.Ops
	guard     guard
	views     views
	samples   samples
	groupings groupingCache
	jobs      jobs
	sampler   routine.Loop

	inProgress inProgress
}

// New returns a dashboard of the inbox that o operates on. Each function of configure may change
// the options, which start as their defaults. It is an error to set neither Authorizer nor Insecure,
// or both. New reads nothing and starts nothing.
func New(o *ops.Ops, configure ...func(o *Options)) (*Dashboard, error) {
	if o == nil {
		return nil, errors.New("dashboard: the *ops.Ops is nil: see Inbox.Ops or ops.New")
	}
	d := &Dashboard{opts: defaults(), ops: o, samples: samples{sem: make(chan struct{}, 1)},
		groupings: groupingCache{sem: make(chan struct{}, 1)}}
	for _, set := range configure {
		if set != nil {
			set(&d.opts)
		}
	}
	d.opts.Origins = slices.Clone(d.opts.Origins)
	if err := d.opts.check(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d.log = logging.WithoutStacks(d.opts.Logger)
	if d.clock = d.opts.Clock; d.clock == nil {
		d.clock = clock.System{}
	}
	if d.authorize = d.opts.Authorizer; d.opts.Insecure {
		d.authorize = d.opts.anybody
	}
	secret := slices.Clone(d.opts.Secret)
	if secret == nil {
		secret = make([]byte, minSecret)
		_, _ = rand.Read(secret) // never fails, see its doc
	}
	d.guard = guard{secret: secret, origins: d.opts.Origins}
	views, err := parseViews()
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d.views = views
	return d, nil
}

// forget drops cached data, so that the next page shows the action that was just done.
func (d *Dashboard) forget() {
	d.samples.forget()
	d.groupings.forget()
}

// Start takes the charts' samples in the background, so that a page opened later shows the last
// hour. Without Start, samples are taken only while pages are open. Start and Stop may be called in
// any order, and repeatedly.
func (d *Dashboard) Start(context.Context) error {
	d.jobs.reopen()
	d.sampler.Start(d.sample)
	return nil
}

// Stop ends the sampling and all running bulk actions and cleanups, between two chunks. It waits
// for them until ctx ends. New ones are refused until Start. Call Stop before you close the
// database.
func (d *Dashboard) Stop(ctx context.Context) error {
	d.jobs.close()
	return errors.Join(d.sampler.Stop(ctx), d.jobs.wait(ctx))
}

// writeFor is the extra time, after the deadline, to write the page that reports the timeout.
const writeFor = 5 * time.Second

// ServeHTTP serves one page, action or file of the dashboard.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), d.opts.Deadline)
	defer cancel()
	// A client that reads slowly does not hold the response for longer, either. A writer that has
	// no deadlines is fine, so the error is ignored.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d.opts.Deadline + writeFor))
	q := &request{d: d, w: w, r: r.WithContext(ctx)}
	if err := q.answer(); err != nil {
		q.fail(err)
	}
}
