package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/ops"
)

// addresses returns the address of every page, by name.
func addresses() map[string]string {
	return map[string]string{
		"overview": "", "messages": "messages", "messages-poisoned": "messages?state=poisoned&handler=" + mail,
		"messages-none": "messages?id=nobody",
		"message":       "message?id=order-2026-00003", "message-lane": "message?id=order-c7-2",
		"message-failing": "message?id=payment-4002", "message-breaker": "message?id=mail-down-01",
		"messages-breaker": "messages?handler=" + mail, "messages-failing": "messages?state=failing&handler=" + invoice,
		"failures": "failures", "rejected": "rejected",
		"rejected-message": "rejected-message?id=0190c1a2-1111-7000-8000-000000005511",
		"handlers":         "handlers", "handler": "handler?handler=" + mail, "handler-lanes": "handler?handler=" + ship, "consumers": "consumers", "workers": "workers", "gaps": "gaps", "markers": "markers?id=nobody",
		"audit":   "audit",
		"confirm": "bulk?action=retry&handler=" + mail, "confirm-discard": "bulk?action=discard&handler=" + mail,
		"delete": "delete?id=order-2026-00003", "delete-rejected": "delete-rejected?id=0190c1a2-1111-7000-8000-000000005511",
		"skip":   "skip-record?channel=orders&topic=orders.v1&partition=3&offset=1042",
		"replay": "replay?id=order-2026-00003", "cleanup": "cleanup",
	}
}

// anHour records samples of an hour, so that charts show a line.
func (w *world) anHour() {
	w.t.Helper()
	for i := range 120 {
		w.clock.Advance(20 * time.Second)
		if i%4 == 0 {
			w.accept("order.paid", nil, ids(fmt.Sprintf("payment-3%02d", i)+"%02d", 1+(i*7)%11)...)
		}
		if i%9 == 0 {
			w.process()
		}
		w.beat()
		response, err := http.Get(w.site)
		require.NoError(w.t, err)
		require.NoError(w.t, response.Body.Close())
	}
	w.fail(invoice, errors.New("post invoice: dial tcp 10.0.4.17:8443: connect: connection refused"),
		ids("payment-4%03d", 12)...)
	w.accept("order.paid", nil, ids("payment-4%03d", 12)...)
	w.process()
	w.accept("order.paid", nil, ids("payment-5%03d", 23)...)
	w.clock.Advance(11 * time.Second)
	w.beat()
}

// breakdown has the mail server fail several times, with a retry by an operator in between, until the
// circuit breaker of the mail handler is open.
func (w *world) breakdown() {
	w.t.Helper()
	lost := ids("mail-down-%02d", 3)
	for i := range 4 {
		w.fail(mail, fmt.Errorf("send mail: dial tcp 10.0.4.25:587: connect: connection refused (attempt %d; %s)", i,
			strings.Repeat("no route to the relay, ", i*4)), lost...)
		if i == 0 {
			w.accept("order.placed", nil, lost...)
		} else {
			w.clock.Advance(20 * time.Second)
		}
		w.process()
		if i == 1 {
			page, err := w.ops.List(w.t.Context(), ops.Filter{MessageID: lost[0], HandlerKeys: []string{mail}}, "", 1)
			require.NoError(w.t, err)
			require.NoError(w.t, w.ops.Retry(w.t.Context(), "grace@example.org", page.Items[0].Ref()))
		}
	}
	reasons, err := json.Marshal([]ops.HealthReason{{Code: "open_circuit", State: "degraded", HandlerKey: mail,
		Detail: "its circuit breaker is open since 2026-01-01T12:51:00Z, the next probe is at 2026-01-01T12:52:00Z; last failure: send mail: dial tcp 10.0.4.25:587: connect: connection refused",
		Since:  w.clock.Now().Add(-time.Minute), ProbeAt: w.clock.Now().Add(20 * time.Second)}, {Code: "stuck_handler", State: "degraded", HandlerKey: ship,
		Detail: "2 calls ignore their cancelled context"}, {Code: "no_progress", State: "degraded",
		Detail: "work is due and no attempt has ended since 2026-01-01T12:00:00Z; 2 calls are running"}})
	require.NoError(w.t, err)
	require.NoError(w.t, w.db.Exec("UPDATE inbox_workers SET health = ? WHERE host LIKE 'shop-7c9d8-%'", string(reasons)).Error)
	for i, worker := range []string{"0190c1a2-0000-7000-8000-000000000003", "0190c1a2-0000-7000-8000-000000000000"} {
		require.NoError(w.t, w.db.Exec("UPDATE inbox_handler_statuses SET processing_started_at = ?, worker_id = ? WHERE message_id = ? AND handler_key = ?",
			w.clock.Now().Add(-time.Duration(3-i)*time.Minute), worker, fmt.Sprintf("mail-down-%02d", 1+i), mail).Error)
	}
	w.beat()
}

// beat updates the heartbeats of the living workers.
func (w *world) beat() {
	w.t.Helper()
	require.NoError(w.t,
		w.db.Exec("UPDATE inbox_workers SET heartbeat_at = ? WHERE stopped_at IS NULL AND host <> 'shop-55bd1-0l9fa'",
			w.clock.Now().Add(-3*time.Second)).Error)
}

// prefer sets the browser's preferred theme, and makes pages change at once.
func (b *tab) prefer(theme string) {
	b.t.Helper()
	reduced := &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"} // no transition between colours
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme},
		reduced}))
}

func TestEveryPageRendersInLightAndDark(t *testing.T) {
	w := newWorld(t)
	w.furnish()
	w.anHour()
	w.breakdown()
	directory, err := photos()
	require.NoError(t, err)
	t.Logf("pictures are in %s", directory)
	b := open(t)
	for name, address := range addresses() {
		b.visit(w.site + address)
		require.Equal(t, 1, evaluate[int](b, "document.querySelectorAll('h1').length"), name)
		require.NotContains(t, b.text(), "Request failed", name)
		require.Empty(t, evaluate[[]string](b, unlabelled), "%s: controls without a name", name)
		require.LessOrEqual(t, evaluate[int](b, "document.documentElement.scrollWidth - innerWidth"), 0, "%s is too wide",
			name)
		for _, theme := range []string{"light", "dark"} {
			b.prefer(theme)
			require.Empty(t, evaluate[[]string](b, faint), "%s, %s: text too faint", name, theme)
			b.photograph(name + "-" + theme)
		}
		require.Empty(t, b.wrong(), name)
	}
	b.prefer("light")
	for _, width := range []int64{1280, 400} {
		b.run(chromedp.EmulateViewport(width, 800))
		for name, address := range addresses() {
			b.visit(w.site + address)
			require.LessOrEqual(t, evaluate[int](b, "document.documentElement.scrollWidth - innerWidth"), 0,
				"%s scrolls sideways at %d pixels", name, width)
			b.photograph(fmt.Sprintf("%s-%d", name, width))
		}
	}
}

func TestHandlerButtonsAreInOneRow(t *testing.T) {
	w := newWorld(t)
	w.furnish()
	b := open(t)
	b.run(chromedp.EmulateViewport(1280, 800))
	b.visit(w.site + "handlers")
	require.Equal(t, []int{1, 1, 1}, evaluate[[]int](b, `[...document.querySelectorAll("td.buttons")].slice(0, 3).map((cell) =>
		new Set([...cell.querySelectorAll("button, .button")].map((e) => e.getBoundingClientRect().top)).size)`))
	require.LessOrEqual(t, evaluate[int](b, `(() => { const e = document.querySelector(".scroll"); return e.scrollWidth - e.clientWidth; })()`), 0)
}

func TestUserSwitchesBetweenInboxes(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	w.furnish()
	both, err := dashboard.Several(map[string]*dashboard.Dashboard{"webshop": w.dash, "warehouse-and-returns": other.dash,
		"billing": other.dash})
	require.NoError(t, err)
	server := httptest.NewServer(both)
	t.Cleanup(server.Close)
	b := open(t)
	b.prefer("light")
	for _, width := range []int64{1280, 400} {
		b.run(chromedp.EmulateViewport(width, 800))
		b.visit(server.URL)
		require.Contains(t, b.text(), "nothing is poisoned")
		b.click(`.inboxes a[href="../webshop/"]`)
		require.Equal(t, server.URL+"/webshop/", evaluate[string](b, "location.href"))
		require.Contains(t, b.text(), "poisoned in 3 handlers")
		require.LessOrEqual(t, evaluate[int](b, "document.documentElement.scrollWidth - innerWidth"), 0)
		require.Empty(t, evaluate[[]string](b, faint))
		b.photograph(fmt.Sprintf("several-%d", width))
	}
}

const unlabelled = `[...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a")]
	.filter((e) => !e.closest("[hidden]") && !(e.getAttribute("aria-label") || e.innerText || (e.labels && e.labels.length)))
	.map((e) => e.outerHTML)`

// faint finds text whose contrast with its background is below 4.5, or below 3 if it is large (WCAG
// 2.2, 1.4.3).
const faint = `(() => {
	const parse = (c) => { const m = c.match(/^rgba?\(([^)]+)\)$/); return m ? m[1].split(/[ ,\/]+/).map(Number) : null; };
	const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c && (c[3] ?? 1) === 1) return c; } return [255, 255, 255]; };
	const found = [];
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = texts.nextNode());) {
		const e = n.parentElement, s = getComputedStyle(e);
		if (!n.data.trim() || !e.offsetParent || e.closest(".visually-hidden, .skip-link")) continue;
		const fore = parse(s.color);
		if (!fore) { found.push("cannot judge " + s.color); continue; }
		const [a, b] = [light(fore), light(behind(e))].sort((x, y) => y - x);
		const size = parseFloat(s.fontSize), large = size >= 24 || size >= 18.66 && s.fontWeight >= 700;
		if ((a + .05) / (b + .05) < (large ? 3 : 4.5)) found.push(n.data.trim().slice(0, 40) + " " + ((a + .05) / (b + .05)).toFixed(2));
	}
	return [...new Set(found)];
})()`

func TestPagesUpdateThemselvesAndStopWhenHidden(t *testing.T) {
	w := newWorld(t, refresh)
	b := open(t)
	b.visit(w.site)
	require.Contains(t, b.text(), "nothing is poisoned")
	w.fail(mail, poison("smtp said 550"), "m1")
	w.accept("order.placed", nil, "m1")
	w.process()
	w.clock.Advance(time.Minute)
	b.await(`document.body.innerText.includes("1 poisoned in 1 handler.")`, "the overview to say so by itself")
	b.await(`document.querySelector("nav .badge.bad")?.innerText.startsWith("1")`, "the navigation as well")

	b.run(chromedp.Evaluate(`Object.defineProperty(document, "hidden", { value: true, configurable: true }); document.dispatchEvent(new Event("visibilitychange"));`, nil))
	idle := w.asked.Load()
	b.run(chromedp.Evaluate(`new Promise((done) => setTimeout(done, 2500))`, nil, awaited))
	require.LessOrEqual(t, w.asked.Load(), idle+1, "a hidden tab asks no more; one may have been under way")
	b.run(chromedp.Evaluate(`Object.defineProperty(document, "hidden", { value: false, configurable: true }); document.dispatchEvent(new Event("visibilitychange"));`, nil))
	require.Eventually(t, func() bool {
		return w.asked.Load() > idle+1
	}, patience, 20*time.Millisecond, "shown again it asks at once")

	// A selection is not replaced by an update.
	b.visit(w.site + "messages?state=poisoned")
	// One script, because an update between two steps could replace the box.
	b.run(chromedp.Evaluate(`document.querySelector('input[name="ref"]').click()`, nil))
	b.await(`document.getElementById("update-status").innerText.includes("paused")`, "the notice that updates are paused")
	require.True(t, evaluate[bool](b, `document.querySelector('input[name="ref"]').checked`))
	require.Contains(t, b.text(), "1 selected")
}

func TestPageShowsItIsOutdatedAfterSignOut(t *testing.T) {
	w := newWorld(t, refresh)
	b := open(t)
	b.visit(w.site)
	w.out.Store(true)
	b.await(`document.getElementById("update-status").innerText.includes("no longer signed in")`, "the notice that updates have ended")
}

func TestThemeIsSwitchedAndRemembered(t *testing.T) {
	w := newWorld(t)
	b := open(t)
	b.prefer("light")
	b.visit(w.site)
	background := func() string { return evaluate[string](b, "getComputedStyle(document.body).backgroundColor") }
	light := background()
	b.run(chromedp.Click("#theme", chromedp.ByQuery))
	dark := background()
	require.NotEqual(t, light, dark)
	b.visit(w.site + "messages")
	require.Equal(t, dark, background())
	b.run(chromedp.Click("#theme", chromedp.ByQuery))
	require.Equal(t, light, background())
}

func TestKeyboardReachesContentAndActions(t *testing.T) {
	w := newWorld(t)
	w.furnish()
	b := open(t)
	b.visit(w.site + "handlers")
	b.run(chromedp.KeyEvent("\t"))
	require.Equal(t, "Skip to the content", evaluate[string](b, "document.activeElement.innerText"))
	b.run(chromedp.KeyEvent("\r"))
	require.Equal(t, "main", evaluate[string](b, "document.activeElement.id"))
	for range 60 {
		b.run(chromedp.KeyEvent("\t"))
		if evaluate[string](b, "document.activeElement.getAttribute('aria-label')") == "Pause "+mail {
			require.True(t, strings.HasPrefix(evaluate[string](b, "getComputedStyle(document.activeElement).outlineStyle"),
				"solid"), "the focus can be seen")
			b.run(chromedp.Evaluate("window.clicked = true", nil), chromedp.KeyEvent("\r"))
			b.await("!window.clicked && document.readyState === 'complete'", "the page after Enter")
			require.Contains(t, b.text(), "Paused: workers stop claiming")
			return
		}
	}
	t.Fatal("the Tab key did not reach the button")
}
