package dashboard_test

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// previewLimit is what a preview of ops reads whole.
const previewLimit = 1 << 20

func (r *rig) accept(m handler.RawMessage) {
	r.t.Helper()
	m.Channel, m.Type = "c", "t"
	results, err := r.ib.Accept(r.t.Context(), m)
	require.NoError(r.t, err)
	require.NoError(r.t, results[0].Err)
}

// allocated returns how many bytes do allocated in this process.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestMessageOfAnySizeIsShownInLittleMemory(t *testing.T) {
	inboxtest.OnEachAlone(t, func(t *testing.T, d *inboxtest.Database) {
		// The timeouts are generous, so that the test does not depend on how fast the machine reads
		// 64 MB.
		r := newRig(t, d, func(o *ops.Options) { o.AllowReplay, o.StatementTimeout = true, inboxtest.Patience },
			func(o *dashboard.Options) {
				o.ShowPayloads = true
				o.Deadline = 5 * time.Minute
			})
		const size = 64 << 20
		large := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		r.accept(handler.RawMessage{ID: "large", Content: large, OrderingKey: large[:size/4]})
		rejected := r.reject(1, "too large", func(m *models.RejectedMessage) { m.Key, m.Value = large[:size/4], large })
		large = nil
		pages := []string{"message?id=large", "rejected-message?id=" + rejected}
		r.as(dashboard.Admin)
		pages = append(pages, "replay?id=large")
		for _, role := range []dashboard.Role{dashboard.Admin, dashboard.Operator, dashboard.Viewer} {
			if r.as(role); role != dashboard.Admin {
				pages = pages[:2]
			}
			for _, at := range pages {
				var page string
				require.Less(t, allocated(func() { page = r.page(at) }), uint64(size/8), at)
				require.Less(t, len(page), 1<<20, "%s as %s", at, role)
				if role != dashboard.Viewer && !strings.HasPrefix(at, "replay") {
					require.Contains(t, page, "0123456789abcdef")
					require.Contains(t, page, "only the beginning is shown")
					require.Contains(t, page, "67\u202f108\u202f864 bytes")
				}
			}
		}
		require.Contains(t, r.page("message?id=large"), "Not shown: 67\u202f108\u202f864 bytes", "viewers see the size")
	})
}

func TestTextCutInsideACharacterIsShownAsText(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range 4 { // the cut falls inside a character
			id := fmt.Sprint("m", i)
			r.accept(handler.RawMessage{ID: id, Content: []byte(strings.Repeat("x", i) + strings.Repeat("\U0001f4ec", 20_000))})
			page := r.page("message?id=" + id)
			require.Contains(t, page, "\U0001f4ec\U0001f4ec")
			require.NotContains(t, page, "hex dump")
			require.NotContains(t, page, "\ufffd")
		}
		r.accept(handler.RawMessage{ID: "whole", Content: []byte(strings.Repeat("y", 64<<10))})
		require.NotContains(t, r.page("message?id=whole"), "only the beginning")
		r.accept(handler.RawMessage{ID: "empty", Content: []byte{}, OrderingKey: []byte{}})
		require.Contains(t, r.page("message?id=empty"), "Empty.")
		require.Contains(t, r.page("message?id=empty"), `<span class="none">empty</span>`)
	})
}

func TestRedactionHookSeesOnlyWholeValues(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var seen []int
		r := newRig(t, d, redactBy(func(v redact.Value) []byte {
			if v.Part == redact.PartPayload || v.Part == redact.PartKey {
				seen = append(seen, len(v.Bytes))
			}
			return append([]byte("hidden "), v.Bytes[len(v.Bytes)-1])
		}), func(o *dashboard.Options) { o.ShowPayloads = true })
		small, large := bytes.Repeat([]byte("s"), previewLimit), bytes.Repeat([]byte("s"), previewLimit+1)
		r.accept(handler.RawMessage{ID: "small", Content: small, OrderingKey: []byte("k")})
		r.accept(handler.RawMessage{ID: "large", Content: large, OrderingKey: large})
		page := r.page("message?id=small")
		require.Contains(t, page, "hidden s")
		require.Equal(t, []int{previewLimit, 1}, seen)
		page = r.page("message?id=large")
		require.NotContains(t, page, "hidden s")
		require.NotContains(t, page, "sss")
		require.Contains(t, page, "exceed the limit of the redaction hook")
		require.Len(t, seen, 2)
		rejected := r.reject(1, "bad", func(m *models.RejectedMessage) { m.Key, m.Value = large, large })
		require.NotContains(t, r.page("rejected-message?id="+rejected), "sss")
		require.Len(t, seen, 2)
	})
}

func TestHeadersAreListedUpToABound(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		many := make([]handler.Header, 150)
		attributes := map[string]string{}
		for i := range many {
			many[i] = handler.Header{Key: fmt.Sprintf("header-%03d", i), Value: []byte("v")}
			attributes[fmt.Sprintf("attribute%03d", i)] = "v"
		}
		r.accept(handler.RawMessage{ID: "many", Content: []byte("x"),
			Properties: handler.Properties{Headers: many, Attributes: attributes}})
		rejected := r.reject(1, "bad", func(m *models.RejectedMessage) { m.Headers = properties.SerializeHeaders(many) })
		page := r.page("message?id=many")
		require.Contains(t, page, "attribute099")
		require.NotContains(t, page, "attribute100")
		require.Equal(t, 2, strings.Count(page, "50 more are not shown."))
		for _, page := range []string{page, r.page("rejected-message?id=" + rejected)} {
			require.Contains(t, page, "header-099")
			require.NotContains(t, page, "header-100")
			require.Contains(t, page, "50 more are not shown.")
		}
		long := []handler.Header{{Key: "long", Value: bytes.Repeat([]byte("v"), previewLimit)}}
		r.accept(handler.RawMessage{ID: "long", Content: []byte("x"), Properties: handler.Properties{Headers: long}})
		rejected = r.reject(2, "bad", func(m *models.RejectedMessage) { m.Headers = properties.SerializeHeaders(long) })
		for _, at := range []string{"message?id=long", "rejected-message?id=" + rejected} {
			page := r.page(at)
			require.Contains(t, page, "more than are shown here", at)
			require.NotContains(t, page, "vvvv", at)
		}
	})
}

func TestOversizedAddressIsRefusedWithAPlainMessage(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "x", "m1")
		many := func(name string, n int) string {
			values := url.Values{}
			for i := range n {
				values.Add(name, fmt.Sprint("k", i))
			}
			return values.Encode()
		}
		r.page("messages?" + many("handler", 20))
		for at, want := range map[string]string{
			"messages?" + many("handler", 21):                       "21 handlers are named: at most 20 can be shown at once.",
			"messages?" + many("state", 12):                         "12 states are named: there are",
			"failures?" + many("handler", 21):                       "21 handlers are named",
			"bulk?action=retry&" + many("handler", 21):              "21 handlers are named",
			"messages?" + many("handler", 1000):                     "The address has 1000 parameters: at most 50 are allowed.",
			"handlers?" + many("x", 51):                             "The address has 51 parameters",
			"workers?x=" + strings.Repeat("y", 33<<10):              "The address is too long",
			"messages?part=live&error=" + strings.Repeat("y", 3000): "malformed, too long or out of range",
		} {
			got := r.get(at)
			require.Equal(t, http.StatusBadRequest, got.Status, "%.60s", at)
			require.Contains(t, html.UnescapeString(got.Body), want)
		}
		handlers := url.Values{"action": {"retry"}, "count": {"1"}}
		for i := range 21 {
			handlers.Add("handler", fmt.Sprint("k", i))
		}
		got := r.post("bulk", handlers)
		require.Equal(t, http.StatusBadRequest, got.Status)
		require.Contains(t, got.Body, "21 handlers are named")
		got = r.post("retry", url.Values{"ref": {strings.Repeat("x", 300<<10)}})
		require.Equal(t, http.StatusBadRequest, got.Status)
		require.Contains(t, got.Body, "larger than 256 KiB")
	})
}

// TestDeadlineEndsRendering has the authorizer return after the deadline, so that only the
// rendering of a page without queries is left.
func TestDeadlineEndsRendering(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, allowReplay)
		r.serve(func(o *dashboard.Options) {
			o.Clock = r.clock
			o.Deadline = time.Second
			o.Authorizer = func(q *http.Request) (dashboard.Principal, error) {
				<-q.Context().Done()
				return dashboard.Principal{Actor: "ada", Role: dashboard.Admin}, nil
			}
		})
		got := r.get("delete?id=m1")
		require.Equal(t, http.StatusGatewayTimeout, got.Status)
		require.Contains(t, got.Body, "Timed out")
	})
}

func TestConcurrentRequestsAreLimitedPerActorAndInTotal(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.serve(func(o *dashboard.Options) {
			o.Clock = r.clock
			o.MaxRequests, o.MaxRequestsPerActor = 3, 2
			o.Authorizer = func(q *http.Request) (dashboard.Principal, error) {
				return dashboard.Principal{Actor: q.Header.Get("Actor"), Role: dashboard.Operator}, nil
			}
		})
		get := func(actor, path string) answer {
			q := r.request(http.MethodGet, path, nil)
			q.Header.Set("Actor", actor)
			return r.do(q)
		}
		// An incomplete form counts as in progress. The client sends its body once the server has
		// admitted the request, because it expects 100-continue.
		r.agent.Transport.(*http.Transport).ExpectContinueTimeout = inboxtest.Patience
		const form = "ref=a@1"
		var ends []func()
		ended := make(chan error)
		hold := func(actor string) {
			asked, goOn := make(chan struct{}), make(chan struct{})
			rest := strings.NewReader(form)
			q := r.request(http.MethodPost, "retry", reader(func(p []byte) (int, error) {
				if rest.Len() == len(form) {
					close(asked)
				}
				<-goOn
				return rest.Read(p)
			}))
			q.ContentLength = int64(len(form))
			q.Header = http.Header{"Actor": {actor}, "Expect": {"100-continue"}, "Sec-Fetch-Site": {"same-origin"},
				"Content-Type": {"application/x-www-form-urlencoded"}}
			go func() {
				response, err := r.agent.Do(q)
				if err == nil {
					err = response.Body.Close()
				}
				ended <- err
			}()
			inboxtest.Receive(t, asked, "the form is read")
			ends = append(ends, func() { close(goOn) })
		}
		hold("ada")
		hold("ada")
		got := get("ada", "handlers")
		require.Equal(t, http.StatusTooManyRequests, got.Status)
		require.Contains(t, got.Body, "You have 2 requests in progress.")
		require.Equal(t, "2", got.Header.Get("Retry-After"))
		require.Equal(t, http.StatusOK, get("ada", "dashboard.css").Status, "files cost nothing")
		require.Equal(t, http.StatusOK, get("bob", "handlers").Status, "others are not concerned")
		hold("bob")
		got = get("eve", "handlers")
		require.Equal(t, http.StatusServiceUnavailable, got.Status)
		require.Contains(t, got.Body, "The dashboard is busy")
		require.Equal(t, "2", got.Header.Get("Retry-After"))
		for _, end := range ends {
			end()
			require.NoError(t, <-ended)
		}
		for range 4 {
			require.Equal(t, http.StatusOK, get("ada", "handlers").Status)
		}
	})
}

type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

func TestRequestsOfOneActorLeaveConnectionsToOthers(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		var mu sync.Mutex
		now, most := 0, 0
		letGo := make(chan struct{})
		hook := func(v redact.Value) []byte { // runs while a statement's rows are open
			if v.HandlerKey != "mail" {
				return v.Bytes
			}
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			select {
			case <-letGo:
			case <-t.Context().Done():
			}
			mu.Lock()
			now--
			mu.Unlock()
			return v.Bytes
		}
		r := newRig(t, d, func(o *ops.Options) {
			o.Redact, o.Connections, o.StatementTimeout = hook, 4, inboxtest.Patience
		})
		r.poison("mail", "smtp said 550", "m1")
		r.poison("ship", "no stock", "s1")
		r.serve(func(o *dashboard.Options) {
			o.Clock = r.clock
			o.Deadline = 5 * time.Minute
			o.Authorizer = func(q *http.Request) (dashboard.Principal, error) {
				return dashboard.Principal{Actor: q.Header.Get("Actor"), Role: dashboard.Viewer}, nil
			}
		})
		get := func(actor, path string) int {
			q := r.request(http.MethodGet, path, nil)
			q.Header.Set("Actor", actor)
			response, err := r.agent.Do(q)
			if err != nil {
				return 0
			}
			_ = response.Body.Close()
			return response.StatusCode
		}
		answers := make(chan int, 9)
		for range cap(answers) {
			go func() { answers <- get("ada", "messages?state=poisoned&handler=mail") }()
		}
		require.Equal(t, http.StatusTooManyRequests, inboxtest.Receive(t, answers, "the ninth answer"), "eight are under way")
		for range 20 {
			require.Equal(t, http.StatusOK, get("bob", "messages?state=poisoned&handler=ship"))
		}
		inboxtest.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return now == 2
		}, "two of the actor's requests read at once")
		close(letGo)
		for range cap(answers) - 1 {
			require.Equal(t, http.StatusOK, inboxtest.Receive(t, answers, "an answer"))
		}
		require.Equal(t, 2, most)
	})
}

func TestRequestWaitingTooLongForItsActorIsRefused(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		held, letGo := make(chan struct{}, 2), make(chan struct{})
		hook := func(v redact.Value) []byte {
			select {
			case held <- struct{}{}:
			default: // runs after the release, too
			}
			<-letGo
			return v.Bytes
		}
		r := newRig(t, d, redactBy(hook), func(o *dashboard.Options) { o.Deadline = time.Second })
		r.poison("mail", "smtp said 550", "m1")
		r.as(dashboard.Viewer)
		ended := make(chan error, 2)
		for range cap(ended) {
			q := r.request(http.MethodGet, "messages?state=poisoned", nil)
			go func() {
				response, err := r.agent.Do(q)
				if err == nil {
					err = response.Body.Close()
				}
				ended <- err
			}()
			inboxtest.Receive(t, held, "a request that reads")
		}
		got := r.get("handlers")
		require.Equal(t, http.StatusServiceUnavailable, got.Status)
		require.Contains(t, got.Body, "Your other requests took too long")
		require.Equal(t, "2", got.Header.Get("Retry-After"))
		close(letGo)
		for range cap(ended) {
			require.NoError(t, inboxtest.Receive(t, ended, "its end"))
		}
	})
}
