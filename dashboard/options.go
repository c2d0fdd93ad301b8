package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/logging"
)

const minSecret = 32

// Option configures a Dashboard.
type Option func(*settings)

type settings struct {
	authorize        func(*http.Request) (Principal, error)
	insecure         bool
	showPayloads     bool
	origins          []string
	secret           []byte
	deadline         time.Duration
	requests         int
	requestsPerActor int
	refresh          time.Duration
	log              *zap.Logger
	clock            clock.Clock
}

func defaults() settings {
	return settings{deadline: 15 * time.Second, requests: 32, requestsPerActor: 8, refresh: 5 * time.Second,
		log: zap.NewNop(), clock: clock.System{}}
}

// Authorizer returns who sent a request and which role they have. It is called once for every
// request, including those for the style sheet, and must be safe for concurrent use. Look the user
// up in the session or the context that your own middleware has made. An error is answered with
// 401, the zero Role with 403. The error is logged and not shown. To redirect people to a login
// page, use middleware before the dashboard (contract 11.4).
func Authorizer(f func(*http.Request) (Principal, error)) Option {
	return func(s *settings) { s.authorize = f }
}

// Insecure gives everybody who reaches the handler the role Admin, as the actor "anonymous". It is
// for a listener on your own machine's loopback and for tests. Requests are refused unless their
// Host header is localhost, a loopback address or one of Origins, because names of other sites can
// resolve to this machine.
//
// Never use it where anybody else can reach the port: not in a cluster, not behind a proxy, not
// "only inside our network". Anybody who reaches it can read and discard what your customers sent,
// and the audit will not know who it was.
func Insecure() Option { return func(s *settings) { s.insecure = true } }

// ShowPayloads shows operators and admins the payloads of messages and rejected records, after the
// redaction hook of ops. By default the dashboard shows payloads to no one. Leave it off where
// operators may not see what payloads hold.
func ShowPayloads() Option { return func(s *settings) { s.showPayloads = true } }

// Origins names further origins, such as "https://ops.example.org", whose pages may send forms
// here. The default is the request's own host. It is needed where a proxy changes the Host header.
// Don't name origins that serve other people's pages.
func Origins(origins ...string) Option {
	return func(s *settings) { s.origins = append(s.origins, origins...) }
}

// Secret is the key of the tokens that protect forms against forgery, 32 bytes or more. The default
// is a random key of this process. Where several processes serve one dashboard, give all of them
// the same key. Don't derive it from a password.
func Secret(key []byte) Option { return func(s *settings) { s.secret = append([]byte{}, key...) } }

// Deadline bounds the response to one request, including all of its queries and the rendering. The
// default is 15 s, allowed are 1 s to 5 m. Bulk actions and cleanups may take longer than it.
func Deadline(d time.Duration) Option { return func(s *settings) { s.deadline = d } }

// MaxRequests limits the requests in progress at once: of all actors, and of one actor. Further
// requests are refused with 503 and 429 and a Retry-After. Defaults are 32 and 8. Both must be 1 or
// more, and perActor no more than all. Two requests of one actor are served at a time while the
// others wait for them. The option ops.Connections sets how many database connections they share.
// Don't raise the limits for a script: use package ops there.
func MaxRequests(all, perActor int) Option {
	return func(s *settings) { s.requests, s.requestsPerActor = all, perActor }
}

// Refresh is how often an open page is updated. The default is 5 s, allowed are 1 s to 1 h.
func Refresh(d time.Duration) Option { return func(s *settings) { s.refresh = d } }

// Logger gets the error details that pages do not show, and the actions of actors. The default is
// no logging. Database errors in this log may name the database's host and user.
func Logger(log *zap.Logger) Option {
	return func(s *settings) {
		if s.log = log; log != nil { // New refuses nil
			s.log = logging.WithoutStacks(log)
		}
	}
}

// Clock replaces the clock that ages are computed with. It is for tests. The default is the
// system's clock.
func Clock(c clock.Clock) Option { return func(s *settings) { s.clock = c } }

func (s *settings) check() error {
	switch {
	case s.authorize == nil && !s.insecure:
		return errors.New("no Authorizer: set Authorizer, or Insecure where no one else can reach the dashboard")
	case s.authorize != nil && s.insecure:
		return errors.New("both Authorizer and Insecure: use one")
	case s.deadline < time.Second || s.deadline > 5*time.Minute:
		return fmt.Errorf("Deadline = %s: must be 1s to 5m", s.deadline)
	case s.requestsPerActor < 1 || s.requests < s.requestsPerActor:
		return fmt.Errorf("MaxRequests = %d, %d: both must be >= 1, and the second no more than the first",
			s.requests, s.requestsPerActor)
	case s.refresh < time.Second || s.refresh > time.Hour:
		return fmt.Errorf("Refresh = %s: must be 1s to 1h", s.refresh)
	case s.secret != nil && len(s.secret) < minSecret:
		return fmt.Errorf("Secret has %d bytes: must have %d or more", len(s.secret), minSecret)
	case s.log == nil:
		return errors.New("Logger is nil")
	case s.clock == nil:
		return errors.New("Clock is nil")
	}
	for _, origin := range s.origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
			return fmt.Errorf("Origins: %q is not an origin such as https://ops.example.org", origin)
		}
	}
	if s.insecure {
		s.authorize = s.anybody
	}
	return nil
}
