// Package dashboard is the web UI of package ops, as an http.Handler for any mux (contract 11.1, 11.4). It shows what
// an inbox holds and what failed, and offers the actions of operators. Pages are rendered on the server and load
// nothing from other sites. They work without JavaScript, except for live updates.
//
// Nothing is shown without an Authorizer, which returns the user and the role: viewer, operator or admin. One table
// names the role that each route needs.
package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"
)

// Dashboard is an http.Handler for one inbox. It is safe for concurrent use.
//
// All of its links are relative and one level deep, so it works under any prefix: mount http.StripPrefix("/inbox", d)
// at "/inbox/". A request for the prefix without its slash is redirected there.
//
// It has goroutines only between Start and Stop, which sample for the charts, and while a bulk action or a cleanup
// runs. Stop ends them all.
type Dashboard struct {
	opts      Options
	log       *zap.Logger
	clock     clock.Clock
	authorize func(*http.Request) (Principal, error)
	ops       *ops.Ops
	guard     guard
	views     views
	samples   samples
	groupings slowCache[ops.Failures]      // by filter
	details   slowCache[ops.HandlerDetail] // by handler key
	jobs      jobs
	sampler   routine.Loop

	replica *condition.Condition // that the read replica cannot be read

	denying    chan struct{} // a semaphore of deniedInBackground
	inProgress inProgress
}

// New returns a dashboard of the inbox that o operates on. Each function of configure may change the options, which
// start as their defaults. It is an error to set neither Authorizer nor Insecure, or both. New reads nothing and starts
// nothing.
func New(o *ops.Ops, configure ...func(o *Options)) (*Dashboard, error) {
	if o == nil {
		return nil, errors.New("dashboard: the *ops.Ops is nil: see Inbox.Ops or ops.New")
	}
	d := &Dashboard{opts: defaults(), ops: o, samples: samples{asking: routine.NewLock()},
		groupings: slowCache[ops.Failures]{asking: routine.NewLock()},
		details:   slowCache[ops.HandlerDetail]{asking: routine.NewLock()}, denying: make(chan struct{}, maxDenying)}
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
	d.replica = condition.New(d.log, d.clock, zap.WarnLevel, "read replica", "pages read the primary")
	if d.authorize = d.opts.Authorizer; d.opts.Insecure {
		d.authorize = d.opts.anybody
	}
	secret := slices.Clone(d.opts.Secret)
	if secret == nil {
		secret = make([]byte, minSecret)
		_, _ = rand.Read(secret) // never fails, see its doc
	}
	d.guard = guard{secret: secret, origins: d.opts.Origins}
	var err error
	if d.views, err = parseViews(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	return d, nil
}

// forget drops cached data, so that the next page shows the action that was just done.
func (d *Dashboard) forget() {
	d.samples.forget()
	d.groupings.forget()
	d.details.forget()
}

// Start takes the charts' samples in the background, so that a page opened later shows the last hour. Without Start,
// samples are taken only while pages are open. Start and Stop may be called in any order, and repeatedly.
func (d *Dashboard) Start(context.Context) error {
	d.jobs.reopen()
	d.sampler.Start(d.sample)
	return nil
}

// Stop ends the sampling and all running bulk actions and cleanups, between two chunks. It waits for them until ctx
// ends. New ones are refused until Start. Call Stop before you close the database.
func (d *Dashboard) Stop(ctx context.Context) error {
	d.jobs.close()
	return errors.Join(d.sampler.Stop(ctx), d.jobs.wait(ctx), d.deniedAll(ctx))
}

// writeFor is the extra time, after the deadline, to write the page that reports the timeout.
const writeFor = 5 * time.Second

// ServeHTTP serves one page, action or file of the dashboard.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.serve(w, r, nil, "") }

// serve serves a request. If several is not nil, this is its dashboard of that name.
func (d *Dashboard) serve(w http.ResponseWriter, r *http.Request, several *several, name string) {
	ctx, cancel := context.WithTimeout(r.Context(), d.opts.Deadline)
	defer cancel()
	// A client that reads slowly does not hold the response for longer, either. A writer may have no deadlines.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d.opts.Deadline + writeFor))
	q := &request{d: d, w: w, r: r.WithContext(ctx), several: several, name: name}
	if err := q.answer(); err != nil {
		q.fail(err)
	}
}

const minSecret = 32

// Options configure a Dashboard. The functions that New gets may change them.
type Options struct {
	// Authorizer returns who sent a request and which role they have. It is called once for every request, including
	// those for the style sheet, and must be safe for concurrent use. Look the user up in the session or the context
	// that your own middleware has made. An error is answered with 401, the zero Role with 403. The error is logged and
	// not shown. To redirect people to a login page, use middleware before the dashboard (contract 11.4).
	Authorizer func(*http.Request) (Principal, error)
	// Insecure gives everybody who reaches the handler the role Admin, as the actor "anonymous". It is for a listener
	// on your own machine's loopback and for tests. Requests are refused unless their Host header is localhost, a
	// loopback address or one of Origins, because names of other sites can resolve to this machine.
	//
	// Never use it where anybody else can reach the port: not in a cluster, not behind a proxy, not "only inside our
	// network". Anybody who reaches it can read and discard what your customers sent, and the audit will not know who
	// it was.
	Insecure bool
	// ShowPayloads shows operators and admins the payloads of messages and rejected records, after the redaction hook
	// of ops. Leave it off where operators may not see what payloads hold. Default off: the dashboard shows payloads to
	// no one.
	ShowPayloads bool
	// Origins names further origins, such as "https://ops.example.org", whose pages may send forms here. It is needed
	// where a proxy changes the Host header. Don't name origins that serve other people's pages. Default none, only the
	// request's own host.
	Origins []string
	// Secret is the key of the tokens that protect forms against forgery, 32 bytes or more. Where several processes
	// serve one dashboard, give all of them the same key. Don't derive it from a password. Default nil, a random key of
	// this process.
	Secret []byte
	// Deadline bounds the response to one request, including all of its queries and the rendering. Bulk actions and
	// cleanups may take longer than it. 1 s to 5 m; default 15 s.
	Deadline time.Duration
	// MaxRequests limits the requests in progress at once, MaxRequestsPerActor limits each actor's. Further requests
	// are refused with 503 and 429 and a Retry-After. Both must be 1 or more, and the second no more than the first.
	// Two requests of one actor are served at a time while the others wait for them. The option Connections of
	// ops.Options sets how many database connections they share. Don't raise the limits for a script: use package ops
	// there. Defaults 32 and 8.
	MaxRequests, MaxRequestsPerActor int
	// Refresh is how often an open page is updated. 1 s to 1 h; default 5 s.
	Refresh time.Duration
	// Logger gets the error details that pages do not show, and the actions of actors. Database errors in this log may
	// name the database's host and user. Default nil, no logging.
	Logger *zap.Logger
	// Clock replaces the clock that ages are computed with, for tests. Default nil, the system's.
	Clock clock.Clock
}

func defaults() Options {
	return Options{Deadline: 15 * time.Second, MaxRequests: 32, MaxRequestsPerActor: 8, Refresh: 5 * time.Second}
}

func (o Options) check() error {
	switch {
	case o.Authorizer == nil && !o.Insecure:
		return errors.New("no Authorizer: set Authorizer, or Insecure where no one else can reach the dashboard")
	case o.Authorizer != nil && o.Insecure:
		return errors.New("both Authorizer and Insecure: use one")
	case o.Deadline < time.Second || o.Deadline > 5*time.Minute:
		return fmt.Errorf("option Deadline = %s: must be 1s to 5m", o.Deadline)
	case o.MaxRequestsPerActor < 1 || o.MaxRequests < o.MaxRequestsPerActor:
		return fmt.Errorf("options MaxRequests = %d, MaxRequestsPerActor = %d: must be 1 or more, and 1 to MaxRequests",
			o.MaxRequests, o.MaxRequestsPerActor)
	case o.Refresh < time.Second || o.Refresh > time.Hour:
		return fmt.Errorf("option Refresh = %s: must be 1s to 1h", o.Refresh)
	case o.Secret != nil && len(o.Secret) < minSecret:
		return fmt.Errorf("option Secret has %d bytes: must have %d or more", len(o.Secret), minSecret)
	}
	for _, origin := range o.Origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
			return fmt.Errorf("option Origins: %q is not an origin such as https://ops.example.org", origin)
		}
	}
	return nil
}
