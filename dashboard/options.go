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

// Option adjusts a Dashboard.
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

// Authorizer says who asks and what they may do. It is called once for every
// request, the style sheet's included, and must be safe for concurrent use: look
// the user up in the session or the context that your own middleware has made.
// An error is answered with 401, the zero Role with 403; what the error says is
// logged and not shown. To send people to a login page, do so in middleware
// before the dashboard (contract 11.4).
func Authorizer(f func(*http.Request) (Principal, error)) Option {
	return func(s *settings) { s.authorize = f }
}

// Insecure lets everybody who reaches the handler do everything, as the actor
// "anonymous". It is for a listener on your own machine's loopback and for
// tests; requests whose Host header is neither localhost, a loopback address nor
// one of Origins are refused, as other sites' names could lead here. Never use it where anybody else can reach the
// port: not in a cluster, not behind a proxy, not "only inside our network". Who reaches it can read and
// discard what your customers sent, and the audit will not know who it was.
func Insecure() Option { return func(s *settings) { s.insecure = true } }

// ShowPayloads shows operators and admins the payloads of messages and rejected
// records, as the redaction hook of ops leaves them. Default: nobody sees them
// here. Leave it off where payloads hold what operators may not know.
func ShowPayloads() Option { return func(s *settings) { s.showPayloads = true } }

// Origins names further origins, such as "https://ops.example.org", whose pages
// may send forms here. Default: the request's own host. Needed where a proxy
// changes the Host header. Don't name origins that serve other people's pages.
func Origins(origins ...string) Option {
	return func(s *settings) { s.origins = append(s.origins, origins...) }
}

// Secret is the key of the tokens that forms carry against forgery, 32 bytes or
// more. Default: a random one of this process. Needed where several processes
// serve one dashboard, the same in each. Don't derive it from a password.
func Secret(key []byte) Option { return func(s *settings) { s.secret = append([]byte{}, key...) } }

// Deadline bounds the answer to one request with all of its queries. Default
// 15 s, allowed 1 s to 5 m. Rendering ends with it, too. Bulk actions and cleanups go on behind it.
func Deadline(d time.Duration) Option { return func(s *settings) { s.deadline = d } }

// MaxRequests bounds the requests under way at once, of all and of one actor; more
// are refused with 503 and 429 and a Retry-After. Default 32 and 8, allowed 1 or more,
// of one actor no more than of all. Two of one actor are answered at a time, the
// others wait for them. How many connections to the database they
// share is ops.Connections. Don't raise it for a script: give it package ops.
func MaxRequests(all, perActor int) Option {
	return func(s *settings) { s.requests, s.requestsPerActor = all, perActor }
}

// Refresh is how often a page that is looked at is brought up to date. Default
// 5 s, allowed 1 s to 1 h.
func Refresh(d time.Duration) Option { return func(s *settings) { s.refresh = d } }

// Logger gets what went wrong in words that pages do not show, and what actors
// did. Default: none. Errors of the database may name its host and user there.
func Logger(log *zap.Logger) Option {
	return func(s *settings) {
		if s.log = log; log != nil { // New refuses nil
			s.log = logging.WithoutStacks(log)
		}
	}
}

// Clock is what ages are told by. It is for tests; default: the machine's.
func Clock(c clock.Clock) Option { return func(s *settings) { s.clock = c } }

func (s *settings) check() error {
	switch {
	case s.authorize == nil && !s.insecure:
		return errors.New("no Authorizer: say who may look and act, or Insecure where nobody else can reach it")
	case s.authorize != nil && s.insecure:
		return errors.New("both Authorizer and Insecure: use one")
	case s.deadline < time.Second || s.deadline > 5*time.Minute:
		return fmt.Errorf("Deadline is %s: 1s to 5m is allowed", s.deadline)
	case s.requestsPerActor < 1 || s.requests < s.requestsPerActor:
		return fmt.Errorf("MaxRequests is %d, and %d of one actor: 1 or more is allowed, of one actor no more than of all",
			s.requests, s.requestsPerActor)
	case s.refresh < time.Second || s.refresh > time.Hour:
		return fmt.Errorf("Refresh is %s: 1s to 1h is allowed", s.refresh)
	case s.secret != nil && len(s.secret) < minSecret:
		return fmt.Errorf("Secret has %d bytes: %d or more are needed", len(s.secret), minSecret)
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
