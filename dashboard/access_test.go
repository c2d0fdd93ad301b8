package dashboard_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// allowed repeats the role that each route needs, so that a change of the route table fails here
// until it is repeated.
var allowed = map[string]dashboard.Role{
	"GET ": dashboard.Viewer, "GET messages": dashboard.Viewer, "GET message": dashboard.Viewer,
	"GET failures": dashboard.Viewer,
	"GET rejected": dashboard.Viewer, "GET rejected-message": dashboard.Viewer, "GET handlers": dashboard.Viewer,
	"GET handler":   dashboard.Viewer,
	"GET consumers": dashboard.Viewer, "GET workers": dashboard.Viewer, "GET markers": dashboard.Viewer,
	"GET gaps": dashboard.Viewer, "GET dashboard.css": dashboard.Viewer, "GET dashboard.js": dashboard.Viewer,
	"GET dashboard.svg": dashboard.Viewer,

	"GET audit": dashboard.Operator, "POST retry": dashboard.Operator, "POST discard": dashboard.Operator,
	"GET reschedule": dashboard.Operator, "POST reschedule": dashboard.Operator,
	"GET rerun": dashboard.Operator, "POST rerun": dashboard.Operator, "GET release": dashboard.Operator,
	"GET cancel": dashboard.Operator, "POST cancel": dashboard.Operator,
	"POST release": dashboard.Operator, "POST selected": dashboard.Operator,
	"GET bulk": dashboard.Operator, "POST bulk": dashboard.Operator, "GET job": dashboard.Operator,
	"POST job-stop":        dashboard.Operator,
	"GET resume-partition": dashboard.Operator, "POST resume-partition": dashboard.Operator,
	"GET skip-record": dashboard.Operator, "POST skip-record": dashboard.Operator,
	"POST pause": dashboard.Operator, "POST resume": dashboard.Operator, "POST accept": dashboard.Operator,
	"GET accept-all": dashboard.Operator, "POST accept-all": dashboard.Operator,

	"GET delete": dashboard.Admin, "POST delete": dashboard.Admin, "GET delete-rejected": dashboard.Admin,
	"POST delete-rejected": dashboard.Admin,
	"GET replay":           dashboard.Admin, "POST replay": dashboard.Admin, "GET cleanup": dashboard.Admin,
	"POST cleanup": dashboard.Admin, "GET backfill": dashboard.Admin, "POST backfill": dashboard.Admin,
	"GET read-again": dashboard.Admin, "POST read-again": dashboard.Admin,
	"GET forget-topic": dashboard.Admin, "POST forget-topic": dashboard.Admin,
}

func TestRoutesHaveTheirAgreedRoles(t *testing.T) {
	table := map[string]dashboard.Role{}
	for _, r := range dashboard.Routes() {
		table[r.Method+" "+r.Path] = r.Role
	}
	require.Equal(t, allowed, table)
}

// TestUnauthorizedUserIsRefusedOnEveryRoute requests every path with every method as every principal. A
// principal without the role is refused before anything is read, and only what the route table has
// is answered.
func TestUnauthorizedUserIsRefusedOnEveryRoute(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1") // gives the page a handler and a form
		methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"}
		paths := []string{"nothing", "messages/", "assets/dashboard.css", "../retry", "retry/x", "%2e%2e/retry", "MESSAGES",
			"templates/layout.html"}
		for _, route := range dashboard.Routes() {
			if !slices.Contains(paths, route.Path) {
				paths = append(paths, route.Path)
			}
		}
		for _, role := range []dashboard.Role{dashboard.Viewer, dashboard.Operator, dashboard.Admin} {
			r.as(role)
			token := r.token()
			for _, path := range paths {
				for _, method := range methods {
					name := role.String() + " " + method + " " + path
					need, known := allowed[strings.Replace(method, "HEAD", "GET", 1)+" "+path]
					got := r.bare(method, path, token)
					switch {
					case !known && allowed["GET "+path]+allowed["POST "+path] == 0:
						require.Contains(t, []int{http.StatusNotFound, http.StatusTemporaryRedirect, http.StatusMovedPermanently},
							got.Status, name)
						require.NotContains(t, got.Body, "Token", name)
					case !known:
						require.Equal(t, http.StatusMethodNotAllowed, got.Status, name)
						require.NotEmpty(t, got.Header.Get("Allow"), name)
					case role < need:
						require.Equal(t, http.StatusForbidden, got.Status, name)
						if method != "HEAD" {
							require.Contains(t, got.Body, "This requires the role "+need.String(), name)
						}
					default:
						require.NotEqual(t, http.StatusForbidden, got.Status, name)
						require.NotEqual(t, http.StatusMethodNotAllowed, got.Status, name)
						require.NotEqual(t, http.StatusUnauthorized, got.Status, name)
						require.NotEqual(t, http.StatusInternalServerError, got.Status, "%s: %s", name, got.Body)
					}
					if got.Header.Get("Location") == "" || known {
						requireHardened(t, got, name)
					}
				}
			}
		}
		for name, nobody := range map[string]dashboard.Principal{
			"no role": {Actor: "x"}, "a role too high": {Actor: "x", Role: 4}, "a negative role": {Actor: "x", Role: -1},
			"no actor":     {Role: dashboard.Admin},
			"a long actor": {Actor: strings.Repeat("x", 201), Role: dashboard.Admin},
			"a line end":   {Actor: "x\ny", Role: dashboard.Admin}, "no text": {Actor: "\xff", Role: dashboard.Admin},
		} {
			r.asWho(nobody, nil)
			for _, path := range paths {
				for _, method := range methods[:4] {
					got := r.bare(method, path, "")
					if got.Status != http.StatusTemporaryRedirect && got.Status != http.StatusMovedPermanently { // ServeMux
						require.Equal(t, http.StatusForbidden, got.Status, "%s: %s %s", name, method, path)
						requireHardened(t, got, name)
					}
				}
			}
		}
		r.asWho(dashboard.Principal{Actor: "x", Role: dashboard.Admin},
			errors.New("session 4711 of postgres://secret has run out"))
		for _, path := range paths {
			for _, method := range methods[:4] {
				got := r.bare(method, path, "")
				if got.Status != http.StatusTemporaryRedirect && got.Status != http.StatusMovedPermanently {
					require.Equal(t, http.StatusUnauthorized, got.Status, method+" "+path)
					require.NotContains(t, got.Body, "secret", "what the authorizer says is not shown")
					requireHardened(t, got, path)
				}
			}
		}
		denied := 0
		require.Empty(t, slices.DeleteFunc(r.audit(), func(line string) bool {
			if strings.Contains(line, " denied ") {
				denied++
			}
			return strings.Contains(line, " cleanup ") || strings.Contains(line, " denied ")
		}), "nothing but cleanups was started")
		require.Positive(t, denied)
	})
}

// bare returns a request with everything that the guard requires.
func (r *rig) bare(method, path, token string) answer {
	r.t.Helper()
	request := r.request(method, path, nil)
	if method != "GET" && method != "HEAD" {
		request = r.request(method, path, strings.NewReader(url.Values{"token": {token}}.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	request.Header.Set("Origin", strings.TrimSuffix(r.site, prefix+"/"))
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	return r.do(request)
}

func requireHardened(t testing.TB, a answer, name string) {
	t.Helper()
	csp := a.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'",
		"base-uri 'none'", "form-action 'self'"} {
		require.Contains(t, csp, want, name)
	}
	for _, never := range []string{"unsafe", "*", "data:", "http"} {
		require.NotContains(t, csp, never, name)
	}
	require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"), name)
	require.Equal(t, "same-origin", a.Header.Get("Referrer-Policy"), name)
	require.Equal(t, "no-store", a.Header.Get("Cache-Control"), name)
	require.Empty(t, a.Header.Values("Access-Control-Allow-Origin"), name)
	require.NotContains(t, a.Body, "<script>", name)
	require.NotContains(t, a.Body, " style=", name)
	require.NotContains(t, a.Body, " onclick=", name)
}

// TestUnauthorizedRequestsAreAudited proves contract 11.3: refused requests are audited.
func TestUnauthorizedRequestsAreAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Viewer)
		for range 3 {
			require.Equal(t, http.StatusForbidden, r.get("audit").Status)
		}
		require.Equal(t, http.StatusNotFound, r.get("nothing").Status)
		require.Equal(t, http.StatusOK, r.get("messages").Status)
		r.as(dashboard.Operator)
		require.Equal(t, http.StatusForbidden, r.bare("POST", "delete", r.token()).Status)
		r.asWho(dashboard.Principal{Actor: "eve"}, nil)
		require.Equal(t, http.StatusForbidden, r.get("messages").Status)
		require.Equal(t, http.StatusForbidden, r.get("whatever/it/asks").Status)
		r.asWho(dashboard.Principal{}, errors.New("no session"))
		require.Equal(t, http.StatusUnauthorized, r.get("messages").Status)
		require.Equal(t, []string{"viewer@example.org denied GET audit", "operator@example.org denied POST delete",
			"eve denied the dashboard",
			"(unknown) denied the dashboard"}, r.audit())

		inboxtest.Exec(t, r.d.DB, "ALTER TABLE inbox_audit RENAME TO elsewhere")
		r.asWho(dashboard.Principal{Actor: "mallory"}, nil)
		require.Equal(t, http.StatusForbidden, r.get("messages").Status, "the refusal does not depend on the audit")
	})
}

func TestFormsOfOtherSitesAndSessionsAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "smtp said 550", "m1")
		ref := url.Values{"ref": {r.ref("mail", "m1")}}
		own := strings.TrimSuffix(r.site, prefix+"/")
		for name, edit := range map[string]func(*http.Request){
			"another origin":   func(q *http.Request) { q.Header.Set("Origin", "https://evil.example") },
			"another port":     func(q *http.Request) { q.Header.Set("Origin", own+"1") },
			"an opaque origin": func(q *http.Request) { q.Header.Set("Origin", "null") },
			"an origin of another scheme": func(q *http.Request) {
				q.Header.Set("Origin", strings.Replace(own, "http", "ftp", 1))
			},
			"two origins":           func(q *http.Request) { q.Header.Add("Origin", own) },
			"another site":          func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "cross-site") },
			"a sibling of the site": func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "same-site") },
			"another site, own origin not named": func(q *http.Request) {
				q.Header.Del("Origin")
				q.Header.Set("Sec-Fetch-Site", "cross-site")
			},
			"no word on where it is from": func(q *http.Request) { q.Header.Del("Origin"); q.Header.Del("Sec-Fetch-Site") },
			"no cookie":                   func(q *http.Request) { r.agent.Jar = nil },
		} {
			t.Run(name, func(t *testing.T) {
				q := r.form("retry", ref)
				jar := r.agent.Jar
				edit(q)
				got := r.do(q)
				r.agent.Jar = jar
				require.Equal(t, http.StatusForbidden, got.Status)
			})
		}
		for name, token := range map[string][]string{"no token": {}, "an empty token": {""},
			"a made-up token": {strings.Repeat("A", 43)}, "two tokens": {r.token(), r.token()}} {
			require.Equal(t, http.StatusForbidden, r.post("retry", url.Values{"ref": ref["ref"], "token": token}).Status, name)
		}
		theirs := r.token()
		r.asWho(dashboard.Principal{Actor: "mallory", Role: dashboard.Admin}, nil)
		require.Equal(t, http.StatusForbidden, r.post("retry", url.Values{"ref": ref["ref"], "token": {theirs}}).Status,
			"another principal's token")
		r.as(dashboard.Admin)
		require.Equal(t, http.StatusForbidden, r.do(r.form("retry?token="+url.QueryEscape(theirs)+"&"+ref.Encode(),
			url.Values{"token": {}})).Status, "a token in the address")
		require.True(t, inboxtest.Status(t, r.ib, "m1", "mail").IsPoisoned)
		require.Empty(t, r.audit())

		for name, edit := range map[string]func(*http.Request){
			"Sec-Fetch-Site alone": func(q *http.Request) { q.Header.Del("Origin") },
			"Origin alone":         func(q *http.Request) { q.Header.Del("Sec-Fetch-Site") },
		} {
			q := r.form("pause", url.Values{"handler": {"mail"}})
			edit(q)
			require.Equal(t, http.StatusSeeOther, r.do(q).Status, name)
		}
		require.Equal(t, http.StatusSeeOther, r.post("retry", ref).Status, "and the real one is taken")
	})
}

func TestNamedOriginsMaySendForms(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, func(o *dashboard.Options) { o.Origins = []string{"https://ops.example.org"} })
		inboxtest.Accept(t, r.ib, "m1")
		for origin, want := range map[string]int{"https://ops.example.org": 303, "http://ops.example.org": 403,
			"https://ops.example.org.evil": 403} {
			q := r.form("pause", url.Values{"handler": {"mail"}})
			q.Header.Set("Origin", origin)
			require.Equal(t, want, r.do(q).Status, origin)
		}
	})
}

func TestPagesAreNotLoadedFromOtherSites(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "smtp said 550", "m1")
		clicked := ""
		ask := func(site, mode, dest string) int {
			q := r.request("GET", "message?id=m1", nil)
			q.Header.Set("Sec-Fetch-Site", site)
			q.Header.Set("Sec-Fetch-Mode", mode)
			q.Header.Set("Sec-Fetch-Dest", dest)
			if clicked != "" {
				q.Header.Set("Sec-Fetch-User", clicked)
			}
			return r.do(q).Status
		}
		require.Equal(t, 403, ask("cross-site", "no-cors", "image"))
		require.Equal(t, 403, ask("same-site", "cors", "empty"))
		require.Equal(t, 403, ask("cross-site", "navigate", "iframe"))
		ahead := r.request("GET", "message?id=m1", nil)
		ahead.Header.Set("Sec-Purpose", "prefetch;prerender")
		require.Equal(t, 403, r.do(ahead).Status)
		require.Equal(t, 403, ask("cross-site", "navigate", "document"), "a script elsewhere goes to the page")
		require.Empty(t, r.audit(), "another site leaves no row in a visitor's name")
		clicked = "?1"
		require.Equal(t, 200, ask("cross-site", "navigate", "document"), "a person's click on a link does")
		require.Equal(t, []string{"admin@example.org view message m1"}, r.audit())
	})
}

// TestOtherSitesWriteNoAuditRowInAVisitorsName proves contract 11.4 for every route and role: neither a
// page that writes a row when it is shown, nor a refusal.
func TestOtherSitesWriteNoAuditRowInAVisitorsName(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "smtp said 550", "m1")
		rejected := r.reject(1, "bad")
		queries := map[string]string{"message": "id=m1", "rejected-message": "id=" + rejected, "replay": "id=m1",
			"bulk": "action=retry&handler=mail", "accept-all": "channel=c", "delete": "id=m1", "delete-rejected": "id=" + rejected,
			"backfill": "handler=mail&from=2020-01-01T00:00:00Z"}
		navigate := func(path string, clicked bool) answer {
			q := r.request("GET", path, nil)
			q.Header.Set("Sec-Fetch-Site", "cross-site")
			q.Header.Set("Sec-Fetch-Mode", "navigate")
			q.Header.Set("Sec-Fetch-Dest", "document")
			if clicked {
				q.Header.Set("Sec-Fetch-User", "?1")
			}
			return r.do(q)
		}
		for _, who := range []dashboard.Principal{{Actor: "eve"}, {Actor: "viewer", Role: dashboard.Viewer},
			{Actor: "operator", Role: dashboard.Operator}, {Actor: "admin", Role: dashboard.Admin}} {
			r.asWho(who, nil)
			for _, route := range dashboard.Routes() {
				path := route.Path + "?" + queries[route.Path]
				if route.Method == "GET" {
					got := navigate(path, false)
					require.Equal(t, who.Role < route.Role || who.Role == 0 || route.Audited, got.Status == 403, path)
				} else {
					q := r.request("POST", path, nil)
					q.Header.Set("Origin", "https://evil.example")
					q.Header.Set("Sec-Fetch-Site", "cross-site")
					require.Equal(t, 403, r.do(q).Status, path)
				}
				require.Empty(t, r.audit(), "%s as %s", path, who.Actor)
			}
		}
		for _, route := range dashboard.Routes() { // as an admin
			if !route.Audited {
				continue
			}
			before := len(r.audit())
			got := navigate(route.Path+"?"+queries[route.Path], true)
			require.Equal(t, 200, got.Status, "%s: %s", route.Path, got.Body)
			require.Len(t, r.audit(), before+1, "%s by a person's click", route.Path)
		}
	})
}

// TestInsecureAcceptsOnlyItsHosts covers DNS rebinding: when another site's name resolves to this
// machine, its pages have the same origin as an insecure dashboard. Only the Host header reveals
// it.
func TestInsecureAcceptsOnlyItsHosts(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1")
		dash, err := dashboard.New(r.ops, func(o *dashboard.Options) {
			o.Insecure = true
			o.Origins = []string{"https://ops.example.org"}
		})
		require.NoError(t, err)
		for host, want := range map[string]int{"localhost": 200, "LOCALHOST:8080": 200, "127.0.0.1:8080": 200,
			"127.9.9.9": 200, "[::1]:8080": 200, "::1": 200, "ops.example.org": 200,
			"evil.example": 401, "evil.example:8080": 401, "localhost.evil.example": 401, "127.0.0.1.evil.example:8080": 401,
			"10.0.0.1": 401, "0.0.0.0:80": 401, "": 401, "ops.example.org:8": 401, "ops.example.org.evil": 401} {
			request := httptest.NewRequestWithContext(t.Context(), "GET", "/message?id=m1", nil)
			request.Host = host
			answer := httptest.NewRecorder()
			dash.ServeHTTP(answer, request)
			require.Equal(t, want, answer.Code, host)
		}
	})
}

func TestDashboardRequiresAnAuthorizer(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		o, err := ops.New(d.DB)
		require.NoError(t, err)
		somebody := func(o *dashboard.Options) {
			o.Authorizer = func(*http.Request) (dashboard.Principal, error) {
				return dashboard.Principal{}, nil
			}
		}
		for name, c := range map[string]struct {
			o       *ops.Ops
			options []func(*dashboard.Options)
			want    string
		}{
			"no authorizer": {o, nil, "no Authorizer"},
			"a nil authorizer": {o, []func(*dashboard.Options){func(o *dashboard.Options) { o.Authorizer = nil }},
				"no Authorizer"},
			"both": {o, []func(*dashboard.Options){somebody,
				func(o *dashboard.Options) { o.Insecure = true }}, "both Authorizer and Insecure"},
			"no ops": {nil, []func(*dashboard.Options){somebody}, "*ops.Ops is nil"},
			"a short secret": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) {
				o.Secret = []byte("x")
			}}, "Secret has 1 bytes"},
			"an origin with a path": {o, []func(*dashboard.Options){somebody,
				func(o *dashboard.Options) { o.Origins = []string{"https://a/b"} }}, "Origins"},
			"an origin without host": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) {
				o.Origins = []string{"null"}
			}}, "Origins"},
			"a deadline too short": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) {
				o.Deadline = time.Millisecond
			}}, "Deadline"},
			"no requests": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) {
				o.MaxRequests, o.MaxRequestsPerActor = 8, 0
			}}, "MaxRequests"},
			"more of one than of all": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) {
				o.MaxRequests, o.MaxRequestsPerActor = 8, 9
			}}, "MaxRequests"},
			"a refresh too short": {o, []func(*dashboard.Options){somebody, func(o *dashboard.Options) { o.Refresh = 0 }},
				"Refresh"},
		} {
			dash, err := dashboard.New(c.o, c.options...)
			require.ErrorContains(t, err, c.want, name)
			require.Nil(t, dash, name)
		}
		_, err = dashboard.New(o, func(o *dashboard.Options) { o.Insecure = true })
		require.NoError(t, err)
	})
}
