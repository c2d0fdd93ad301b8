package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

const prefix = "/admin/inbox"

// rig is an inbox with handlers "mail" and "ship", which fail on demand, its dashboard served under
// a prefix, and a browser without JavaScript.
type rig struct {
	t     testing.TB
	d     *inboxtest.Database
	ib    *inbox.Inbox
	ops   *ops.Ops
	dash  *dashboard.Dashboard
	clock *fxtest.Clock
	site  string // with the prefix and a slash
	agent *http.Client

	mu    sync.Mutex
	who   dashboard.Principal // of the next request
	err   error               // of the authorizer
	fails map[string]error    // by "key/ID"
}

func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		test(t, newRig(t, d, allowReplay, func(o *dashboard.Options) { o.ShowPayloads = true }))
	})
}

func allowReplay(o *ops.Options) { o.AllowReplay = true }

func redactBy(hook redact.Hook) func(*ops.Options) {
	return func(o *ops.Options) { o.Redact = hook }
}

func newRig(t testing.TB, d *inboxtest.Database, of func(*ops.Options), options ...func(*dashboard.Options)) *rig {
	t.Helper()
	return newRigOf(t, d, nil, of, options...)
}

// newRigOf is like newRig, with options of the inbox.
func newRigOf(t testing.TB, d *inboxtest.Database, inboxOptions []inbox.Option, of func(*ops.Options),
	options ...func(*dashboard.Options)) *rig {
	t.Helper()
	r := &rig{t: t, d: d, clock: fxtest.NewClock(inboxtest.Noon), fails: map[string]error{}}
	run := func(_ context.Context, m inboxtest.Bytes) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.fails[m.HandlerKey+"/"+m.ID]
	}
	handlers := inboxtest.Handlers(inboxtest.Do("mail", run), inboxtest.Do("ship", run))
	r.ib = inboxtest.New(t, d.DB, append(inboxOptions, inbox.Configure(func(o *inbox.Options) { o.Clock = r.clock }),
		handlers)...)
	var err error
	r.ops, err = r.ib.Ops(of)
	require.NoError(t, err)
	r.serve(append([]func(*dashboard.Options){func(o *dashboard.Options) {
		o.Authorizer = r.authorize
		o.Clock = r.clock
	}}, options...)...)
	r.as(dashboard.Admin)
	return r
}

func (r *rig) serve(options ...func(*dashboard.Options)) {
	r.t.Helper()
	var err error
	r.dash, err = dashboard.New(r.ops, options...)
	require.NoError(r.t, err)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, r.dash))
	server := httptest.NewServer(mux)
	jar, err := cookiejar.New(nil)
	require.NoError(r.t, err)
	r.agent = server.Client()
	r.agent.Jar = jar
	r.agent.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r.site = server.URL + prefix + "/"
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
		defer cancel()
		require.NoError(r.t, r.dash.Stop(ctx))
		server.Close()
	})
}

func (r *rig) authorize(*http.Request) (dashboard.Principal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.who, r.err
}

// as sends the next requests as a principal of this role, named after the role.
func (r *rig) as(role dashboard.Role) *rig {
	return r.asWho(dashboard.Principal{Actor: role.String() + "@example.org", Role: role}, nil)
}

func (r *rig) asWho(who dashboard.Principal, err error) *rig {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.who, r.err = who, err
	return r
}

// answer is a response whose body has been read.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

func (r *rig) do(request *http.Request) answer {
	r.t.Helper()
	response, err := r.agent.Do(request)
	require.NoError(r.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(r.t, err)
	return answer{response.StatusCode, response.Header, string(body)}
}

func (r *rig) request(method, path string, body io.Reader) *http.Request {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.site+path, body)
	require.NoError(r.t, err)
	return request
}

func (r *rig) get(path string) answer {
	r.t.Helper()
	return r.do(r.request(http.MethodGet, path, nil))
}

// page loads a page that must exist.
func (r *rig) page(path string) string {
	r.t.Helper()
	a := r.get(path)
	require.Equal(r.t, http.StatusOK, a.Status, "%s: %s", path, headingOf(a.Body))
	return a.Body
}

var tokenInput = regexp.MustCompile(`name="token" value="([^"]+)"`)

// token returns the form token that this agent's pages currently carry.
func (r *rig) token() string {
	r.t.Helper()
	page := "handlers" // if there is a handler
	if who, _ := r.authorize(nil); who.Role == dashboard.Admin && r.ops.Can(ops.ActionCleanup) == nil {
		page = "cleanup"
	}
	found := tokenInput.FindStringSubmatch(r.page(page))
	if found == nil { // viewers get no form
		return "none"
	}
	return found[1]
}

// form returns a POST as a browser sends it from a page of the dashboard.
func (r *rig) form(path string, fields url.Values) *http.Request {
	r.t.Helper()
	sent := url.Values{"token": {r.token()}}
	for name, values := range fields {
		sent[name] = values
	}
	request := r.request(http.MethodPost, path, strings.NewReader(sent.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", strings.TrimSuffix(r.site, prefix+"/"))
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	return request
}

func (r *rig) post(path string, fields url.Values) answer {
	r.t.Helper()
	return r.do(r.form(path, fields))
}

var heading = regexp.MustCompile(`(?s)<h1.*?</h1>.*?</p>`)

// headingOf returns a page's heading, for failure messages.
func headingOf(page string) string { return heading.FindString(page) }

// follow loads the page that a form's response redirects to.
func (r *rig) follow(a answer) string {
	r.t.Helper()
	require.Equal(r.t, http.StatusSeeOther, a.Status, headingOf(a.Body))
	require.True(r.t, strings.HasPrefix(a.Header.Get("Location"), "./"), a.Header.Get("Location"))
	return r.page(strings.TrimPrefix(a.Header.Get("Location"), "./"))
}

// poison accepts messages and has a handler poison them.
func (r *rig) poison(key, text string, ids ...string) {
	r.t.Helper()
	r.fail(key, handler.Poison(errors.New(text)), ids...)
}

func (r *rig) fail(key string, err error, ids ...string) {
	r.t.Helper()
	r.mu.Lock()
	for _, id := range ids {
		r.fails[key+"/"+id] = err
	}
	r.mu.Unlock()
	r.clock.Advance(time.Second)
	inboxtest.Accept(r.t, r.ib, ids...)
	inboxtest.Process(r.t, r.ib)
}

// ref returns the value that forms use for a status.
func (r *rig) ref(key, id string) string {
	r.t.Helper()
	s := inboxtest.Status(r.t, r.ib, id, key)
	return fmt.Sprintf("%s@%d", s.ID, s.Version)
}

// reject stores a rejected record that could be accepted, and returns its ID.
func (r *rig) reject(offset int64, reason string, edit ...func(*models.RejectedMessage)) string {
	r.t.Helper()
	row := models.RejectedMessage{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", offset), Channel: "c", Topic: "orders",
		Offset: offset, Timestamp: inboxtest.Noon,
		Key: []byte("k"), Value: []byte(`{"a":1}`),
		Headers: properties.SerializeHeaders([]handler.Header{{Key: "ce_specversion",
			Value: []byte("1.0")}, {Key: "ce_id", Value: fmt.Appendf(nil, "r%d", offset)},
			{Key: "ce_type", Value: []byte("t")}, {Key: "ce_source", Value: []byte("/s")}}), Reason: reason,
		RejectedAt: r.clock.Now()}
	for _, e := range edit {
		e(&row)
	}
	require.NoError(r.t, r.d.DB.Create(&row).Error)
	return row.ID
}

// audit returns the audit entries, oldest first, as "actor action target".
func (r *rig) audit() (lines []string) {
	r.t.Helper()
	page, err := r.ops.Audit(r.t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
	require.NoError(r.t, err)
	for _, e := range page.Items {
		lines = append([]string{fmt.Sprintf("%s %s %s", e.Actor, e.Action, e.Target)}, lines...)
	}
	return lines
}
