package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// serving is a running "inboxctl dashboard", and a browser.
type serving struct {
	r        *rig
	at       served
	agent    *http.Client
	password string
	out      *sink
	errOut   *sink
	end      func() result // as Ctrl-C does
}

// sink is a buffer that may be read while it is written to.
type sink struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.String()
}

// dashboard starts the command on a free port.
func (r *rig) dashboard(env map[string]string, args ...string) *serving {
	r.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(r.t, err)
	transport := &http.Transport{}
	s := &serving{r: r, out: &sink{}, errOut: &sink{},
		agent: &http.Client{Jar: jar, Transport: transport, Timeout: inboxtest.Patience}, password: env[passwordVariable]}
	ctx, interrupt := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	args = append([]string{"dashboard", "--listen", "127.0.0.1:0", "-o", "json"}, args...)
	go func() {
		ended <- run(ctx, args, system{in: strings.NewReader(""), out: s.out, errOut: s.errOut,
			getenv: func(name string) string { return env[name] }})
	}()
	s.end = sync.OnceValue(func() result {
		transport.CloseIdleConnections()
		interrupt()
		select {
		case code := <-ended:
			return result{t: r.t, code: code, out: s.out.String(), errOut: s.errOut.String()}
		case <-time.After(inboxtest.Patience):
			r.t.Error("inboxctl dashboard does not end")
			return result{}
		}
	})
	r.t.Cleanup(func() { s.end() })
	inboxtest.Eventually(r.t, func() bool {
		text := s.out.String()
		return strings.Contains(text, "Press Ctrl-C to stop it.") || json.Unmarshal([]byte(text), &s.at) == nil ||
			len(ended) > 0
	}, "it listens")
	require.NotEmpty(r.t, s.out.String(), s.errOut)
	if s.at.Password != "" {
		s.password = s.at.Password
	}
	return s
}

// ask sends a request, changed by edit, and returns the status and the page.
func (s *serving) ask(
	method, path string, form url.Values, edit func(*http.Request),
) (status int, header http.Header, page string) {
	s.r.t.Helper()
	request, err := http.NewRequestWithContext(s.r.t.Context(), method, s.at.URL+path, strings.NewReader(form.Encode()))
	require.NoError(s.r.t, err)
	if s.password != "" {
		request.SetBasicAuth("anybody", s.password)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", strings.TrimSuffix(s.at.URL, "/"))
	}
	if edit != nil {
		edit(request)
	}
	response, err := s.agent.Do(request)
	require.NoError(s.r.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(s.r.t, err)
	return response.StatusCode, response.Header, string(body)
}

// page loads a page that must exist.
func (s *serving) page(path string) string {
	s.r.t.Helper()
	status, _, page := s.ask(http.MethodGet, path, nil, nil)
	require.Equal(s.r.t, http.StatusOK, status, page)
	return page
}

var token = regexp.MustCompile(`name="token" value="([^"]+)"`)

func TestDashboardIsServedToTheActor(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("smtp said 550", "a", "b")
		s := r.dashboard(r.env)
		require.Equal(t, "alice", s.at.Actor)
		require.Equal(t, "operator", s.at.Role)
		require.Contains(t, s.page(""), "2 poisoned in 1 handler.")
		message := s.page("message?id=a")
		require.Contains(t, message, "smtp said 550")
		require.Contains(t, message, "--show-payload", "unless asked for")
		require.Equal(t, []string{"alice view message a"}, r.audit())

		status := r.status("a")
		form := url.Values{"token": {token.FindStringSubmatch(message)[1]},
			"ref": {status.ID + "@" + jsonNumber(status.Version)}, "back": {"messages"}}
		code, _, page := s.ask(http.MethodPost, "retry", form, nil)
		require.Equal(t, http.StatusOK, code, page)
		require.False(t, r.status("a").IsPoisoned)
		require.Equal(t, "alice retry", strings.Join(strings.Fields(r.audit()[1])[:2], " "))
		require.Contains(t, s.errOut.String(), "dashboard action", "actions are logged as well")

		code, _, _ = s.ask(http.MethodGet, "delete?id=a", nil, nil)
		require.Equal(t, http.StatusForbidden, code, "an operator does not delete")

		ended := s.end()
		require.Zero(t, ended.code, ended.errOut)
		_, err := net.DialTimeout("tcp", strings.TrimSuffix(strings.TrimPrefix(s.at.URL, "http://"), "/"), time.Second)
		require.Error(t, err, "nothing listens any more")
	})
}

func jsonNumber(n any) string {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestDashboardIsClosedWithoutItsPassword(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("smtp said 550", "a")
		own := r.dashboard(r.env)
		require.GreaterOrEqual(t, len(own.at.Password), 26, "a new one has 128 bits or more")
		given := r.dashboard(r.with(passwordVariable, "correct horse battery"))
		require.Empty(t, given.at.Password)
		for _, s := range []*serving{own, given} {
			for name, edit := range map[string]func(*http.Request){
				"no password":         func(q *http.Request) { q.Header.Del("Authorization") },
				"an empty password":   func(q *http.Request) { q.SetBasicAuth("alice", "") },
				"a wrong password":    func(q *http.Request) { q.SetBasicAuth("alice", s.password+"x") },
				"another scheme":      func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+s.password) },
				"the user's password": func(q *http.Request) { q.SetBasicAuth(s.password, "") },
			} {
				for _, path := range []string{"", "message?id=a", "dashboard.css", "nothing"} {
					status, header, page := s.ask(http.MethodGet, path, nil, edit)
					require.Equal(t, http.StatusUnauthorized, status, "%s: %q", name, path)
					require.Contains(t, header.Get("WWW-Authenticate"), "Basic realm=", "browsers ask for it")
					require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'")
					require.NotContains(t, page, "poisoned")
				}
			}
			require.Contains(t, s.page(""), "1 poisoned in 1 handler.")
			ended := s.end()
			require.Contains(t, ended.errOut, "wrong password", "attempts are reported")
			require.NotContains(t, ended.errOut, s.password)
		}
		require.NotContains(t, given.end().out, "correct horse")
		denied := "(unknown) denied the dashboard"
		require.Equal(t, []string{denied, denied, denied, denied}, r.audit(), "of each, the first of the 20 and the 10th")
	})
}

// TestPasswordlessDashboardAcceptsOnlyItsHost covers DNS rebinding: a page of another site
// whose name resolves to this machine has the dashboard's origin.
func TestPasswordlessDashboardAcceptsOnlyItsHost(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		s := r.dashboard(r.env, "--insecure", "--origin", "https://ops.example.org", "--role", "admin", "--show-payload")
		inboxtest.Accept(t, r.ib, "a")
		require.Contains(t, s.page("message?id=a"), "Delete the message")
		require.NotContains(t, s.page("message?id=a"), "Not shown")
		for host, want := range map[string]int{"evil.example": 401, "evil.example:8420": 401, "127.0.0.1.evil.example": 401,
			"localhost.evil.example": 401, "10.0.0.1": 401,
			"localhost:8420": 200, "localhost": 200, "[::1]:8420": 200, "127.0.0.2:1": 200, "ops.example.org": 200,
			"ops.example.org:444": 401} {
			status, header, _ := s.ask(http.MethodGet, "", nil, func(q *http.Request) { q.Host = host })
			require.Equal(t, want, status, host)
			require.Empty(t, header.Get("WWW-Authenticate"))
		}
	})
}

func TestDashboardRefusesUnsafeFlags(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for want, args := range map[string][]string{
			"--insecure requires an address that only this machine can reach": {"--insecure", "--listen", "0.0.0.0:0"},
			"--insecure requires an address that only this machine":           {"--insecure", "--listen", ":0"},
			"--insecure requires an address that only this": {"--insecure", "--listen",
				"localhost.example.org:0"},
			"--role = \"root\": must be viewer, operator or": {"--role", "root"},
			"--role = \"\": must be":                         {"--role", ""},
			"--listen = \"8420\": must be":                   {"--listen", "8420"},
			"is not an origin such as": {"--listen", "127.0.0.1:0", "--origin",
				"ops.example.org"},
			"no actor":               {"--actor", " "},
			"has control characters": {"--actor", "a\x1bb"},
		} {
			out := r.run(append([]string{"dashboard"}, args...)...)
			require.Equal(t, exitMisuse, out.code, "%v: %s", args, out.errOut)
			require.Contains(t, out.errOut, want)
			require.Empty(t, out.out)
		}
		out := runWith(t, t.Context(), r.with(passwordVariable, "hunter2"), "", "dashboard")
		require.Equal(t, exitMisuse, out.code)
		require.Contains(t, out.errOut, passwordVariable+" has fewer than 12 characters")
		require.NotContains(t, out.errOut, "hunter2")
		out = runWith(t, t.Context(), r.with(passwordVariable, "correct horse battery"), "", "dashboard", "--insecure")
		require.Equal(t, exitMisuse, out.code)

		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer taken.Close()
		out = r.run("dashboard", "--listen", taken.Addr().String())
		require.Equal(t, exitFailed, out.code)
		require.Contains(t, out.errOut, "address already in use")
	})
	out := runWith(t, t.Context(), map[string]string{dsnVariable: "file:/nowhere/x.db", actorVariable: "alice"}, "",
		"dashboard", "--listen", "127.0.0.1:0")
	require.Equal(t, exitFailed, out.code)
	require.Contains(t, out.errOut, "does not exist")
}

func TestDashboardPrintsItsAddress(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		s := r.dashboard(r.with(actorVariable, "al\u202eice"), "-o", "table")
		text := regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(s.out.String(), "127.0.0.1:8420")
		golden(t, "dashboard", regexp.MustCompile(`[A-Z2-7]{26}`).ReplaceAllString(text, "(26 letters and digits)"))
	})
}
