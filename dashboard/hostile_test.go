package dashboard_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// hostile are texts that would become markup or code, or end a quoted value, if they were not
// escaped.
var hostile = []string{
	`<script>window.pwned=1</script>`, `"><img src=x onerror=window.pwned=1>`, `'><svg/onload=window.pwned=1>`,
	`</title><script>window.pwned=1</script>`,
	`</textarea><iframe srcdoc="<script>parent.pwned=1</script>">`, `javascript:window.pwned=1`,
	`" autofocus onfocus=window.pwned=1 x="`,
	`{{.Token}}{{printf "%s" "x"}}`, `<!--<script>`, `&lt;script&gt;window.pwned=1&lt;/script&gt;`, "\u202egnp.exe",
	`</pre><form action=//evil><button>`, `<base href=//evil>`, `<meta http-equiv=refresh content="0;url=//evil">`,
	"../../retry?x=", "https://evil.example/\"'", `\u003cscript\u003e`, "<\u200bscript>",
}

func TestStoredTextIsNeverMarkup(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i, text := range hostile {
			id := text + " id"
			r.fail("mail", nil, id)
			r.mu.Lock()
			r.fails["mail/m"+id] = handler.Poison(errors.New(text))
			r.mu.Unlock()
			_, err := r.ib.Accept(t.Context(), handler.RawMessage{Channel: "c", ID: "m" + id, Type: "t", Source: text,
				ContentType: "text/plain", Content: []byte(text), OrderingKey: []byte(text),
				Properties: handler.Properties{Headers: []handler.Header{{Key: text, Value: []byte(text)}},
					Attributes: map[string]string{text: text}, Kafka: &handler.KafkaCoordinates{Topic: text}}})
			require.NoError(t, err)
			rejected := r.reject(int64(i), text, func(m *models.RejectedMessage) {
				m.Channel, m.Topic, m.Key, m.Value = text, text, []byte(text), []byte(text)
				m.Headers = properties.SerializeHeaders([]handler.Header{{Key: text, Value: []byte(text)}})
			})
			inboxtest.Process(t, r.ib)
			for _, page := range []string{
				"message?" + url.Values{"id": {"m" + id}}.Encode(), "rejected-message?id=" + rejected, "replay?" +
					url.Values{"id": {"m" + id}}.Encode(),
				"delete?" + url.Values{"id": {text}}.Encode(), "messages?" +
					url.Values{"id": {text}, "type": {text}, "error": {text}, "handler": {text}}.Encode(),
				"audit?" + url.Values{"actor": {short(text)}, "target": {text}}.Encode(), "rejected?" +
					url.Values{"channel": {text}, "reason": {text}}.Encode(),
			} {
				requireText(t, r.get(page).Body, page)
			}
		}
		for _, page := range []string{"", "messages?limit=200", "messages?state=poisoned&handler=mail", "failures",
			"rejected", "audit", "bulk?action=discard&handler=mail"} {
			requireText(t, r.page(page), page)
		}
	})
}

func short(s string) string { return s[:min(len(s), 40)] }

var fieldValue = regexp.MustCompile(` value="[^"]*"`)

// requireText fails if the page contains anything that shows that a hostile text became markup.
func requireText(t testing.TB, page, name string) {
	t.Helper()
	page = fieldValue.ReplaceAllString(page, "") // form fields return values unchanged
	lower := strings.ToLower(page)
	require.Equal(t, strings.Count(lower, "<script"), strings.Count(lower, `<script src="./dashboard.js"></script>`), name)
	for _, never := range []string{"<img", "<iframe", "<base", "<svg/", "<!--", "\u202e", "\u200b", `href="javascript`,
		`action="javascript`, `href="//`, `action="//`, "<meta http"} {
		require.NotContains(t, page, never, name)
	}
	require.NotContains(t, page, "<no value>", name)
}

func TestHostileActorStaysText(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for _, text := range hostile {
			r.asWho(dashboard.Principal{Actor: text, Role: dashboard.Admin}, nil)
			for _, page := range []string{"", "handlers", "nothing"} {
				requireText(t, r.get(page).Body, text)
			}
		}
	})
}

func TestRedirectsStayInTheDashboard(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1")
		for _, back := range []string{"https://evil.example/", "//evil.example", `\\evil.example`, "/etc", "../x",
			"javascript:1", "./../x", "messages/../../x", "https:messages", "user@messages", "retry", "./\t/evil"} {
			got := r.post("selected", url.Values{"action": {"retry"}, "back": {back}})
			require.Equal(t, "./messages?notice=nothing-chosen", got.Header.Get("Location"), back)
		}
		require.Equal(t, "./messages?notice=nothing-chosen&state=poisoned", r.post("selected",
			url.Values{"action": {"retry"}, "back": {"messages?state=poisoned&notice=deleted"}}).Header.Get("Location"))
	})
}

func TestViewersSeeNeitherValuesNorPayloads(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for name, c := range map[string]struct {
			option []func(*dashboard.Options)
			sees   map[dashboard.Role][]string
		}{
			"by default": {nil, map[dashboard.Role][]string{dashboard.Viewer: nil, dashboard.Operator: {"VALUE"},
				dashboard.Admin: {"VALUE"}}},
			"with ShowPayloads": {[]func(*dashboard.Options){func(o *dashboard.Options) { o.ShowPayloads = true }},
				map[dashboard.Role][]string{dashboard.Viewer: nil, dashboard.Operator: {"VALUE", "PAYLOAD"},
					dashboard.Admin: {"VALUE", "PAYLOAD"}}},
		} {
			r := newRig(t, d, nil, c.option...)
			id := strings.ReplaceAll(name, " ", "-")
			_, err := r.ib.Accept(t.Context(), handler.RawMessage{Channel: "c", ID: id, Type: "t", Content: []byte("PAYLOAD"),
				OrderingKey: []byte("VALUE-of-key"),
				Properties: handler.Properties{Headers: []handler.Header{{Key: "header", Value: []byte("VALUE-of-header")}},
					Attributes: map[string]string{"attribute": "VALUE-of-attribute"}}})
			require.NoError(t, err)
			rejected := r.reject(int64(len(id)), "bad", func(m *models.RejectedMessage) {
				m.Key, m.Value, m.Headers = []byte("VALUE-of-key"), []byte("PAYLOAD"),
					properties.SerializeHeaders([]handler.Header{{Key: "header", Value: []byte("VALUE-of-header")}})
			})
			for role, sees := range c.sees {
				r.as(role)
				for _, page := range []string{r.page("message?id=" + id), r.page("rejected-message?id=" + rejected)} {
					for _, what := range []string{"VALUE", "PAYLOAD"} {
						require.Equal(t, contains(sees, what), strings.Contains(page, what), "%s %s %s", name, role, what)
					}
				}
			}
		}
	})
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func TestRedactionHookReplacesShownText(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(func(v redact.Value) []byte {
			return []byte("hidden " + string(v.Part))
		}), func(o *dashboard.Options) { o.ShowPayloads = true })
		r.poison("mail", "SECRET in error", "SECRET-free")
		for _, page := range []string{"message?id=SECRET-free", "failures", "messages"} {
			require.NotContains(t, r.page(page), "SECRET in error")
		}
		require.Contains(t, r.page("message?id=SECRET-free"), "hidden payload")
	})
}

// TestErrorsShowNeitherSQLNorDSN checks that database errors, which name hosts, users and tables,
// stay off the pages.
func TestErrorsShowNeitherSQLNorDSN(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.InfoLevel)
		r := newRig(t, d, nil, func(o *dashboard.Options) { o.Logger = zap.New(core) })
		r.poison("mail", "smtp said 550", "m1")
		retry := r.form("retry", url.Values{"ref": {r.ref("mail", "m1")}})
		inboxtest.Exec(t, d.DB, "DROP TABLE inbox_handler_statuses")
		inboxtest.Exec(t, d.DB, "DROP TABLE inbox_audit")
		for _, page := range []string{"messages", "message?id=m1", "failures", "bulk?action=retry&handler=mail", "audit"} {
			r.clock.Advance(time.Minute)
			got := r.get(page)
			require.GreaterOrEqual(t, got.Status, 500, page)
			requireDiscreet(t, got.Body, page)
		}
		got := r.do(retry)
		require.GreaterOrEqual(t, got.Status, 500)
		requireDiscreet(t, got.Body, "retry")
		require.NotZero(t, logs.FilterMessage("dashboard request refused").Len(), "the log has what it was")
	})
}

func requireDiscreet(t testing.TB, body, name string) {
	t.Helper()
	for _, never := range []string{"SELECT", "UPDATE", "inbox_", "no such table", "does not exist", "SQLSTATE", "postgres",
		"sqlite", "file:", "127.0.0.1", "relation"} {
		require.NotContains(t, body, never, name)
	}
	require.Contains(t, body, "Log reference", name)
}

func TestResponsesHaveADeadline(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // on SQLite no lock blocks a reader
		r := newRig(t, d, func(o *ops.Options) { o.StatementTimeout = time.Hour }, func(o *dashboard.Options) {
			o.Deadline = time.Second
		})
		r.agent.Timeout = inboxtest.Patience
		r.poison("mail", "smtp said 550", "m1")
		tx := d.Another(t).Begin()
		require.NoError(t, tx.Exec("LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE").Error)
		defer tx.Rollback()
		got := r.get("messages")
		require.Equal(t, http.StatusGatewayTimeout, got.Status)
		require.Contains(t, got.Body, "Timed out")
	})
}

func TestWorksUnderAnyPrefix(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		for _, under := range []string{"", "/inbox", "/a/b/c", "/with space", "/ümlaut"} {
			server := httptest.NewServer(http.StripPrefix(under, r.dash))
			defer server.Close()
			escaped := (&url.URL{Path: under}).EscapedPath()
			for path, want := range map[string]int{"/": 200, "/messages": 200, "/dashboard.css": 200, "/nothing": 404} {
				response, err := server.Client().Get(server.URL + escaped + path)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, want, response.StatusCode, under+path)
			}
			if under == "" {
				continue
			}
			response, err := server.Client().Get(server.URL + escaped)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, 200, response.StatusCode)
			require.Equal(t, under+"/", response.Request.URL.Path, "the slash was added")
		}
		request := httptest.NewRequestWithContext(context.Background(), "GET", "/x//evil.example", nil)
		request.URL.Path = ""
		answer := httptest.NewRecorder()
		r.dash.ServeHTTP(answer, request)
		require.Equal(t, "./evil.example/", answer.Header().Get("Location"))
	})
}
