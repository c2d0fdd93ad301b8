package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func (w *world) status(key, id string) models.HandlerStatus {
	w.t.Helper()
	return inboxtest.Status(w.t, w.ib, id, key)
}

// audited returns how often an action is in the audit.
func (w *world) audited(action ops.Action) int {
	w.t.Helper()
	page, err := w.ops.Audit(w.t.Context(), ops.AuditFilter{Actor: "ada@example.org", Action: action}, "", ops.MaxLimit)
	require.NoError(w.t, err)
	return len(page.Items)
}

// TestEveryActionWorksByClicking clicks through every action, from the overview to a cause, its
// group and one message.
func TestEveryActionWorksByClicking(t *testing.T) {
	for name, scripts := range map[string]bool{"with JavaScript": true, "without JavaScript": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.furnish()
			b := open(t)
			w.byClicking(t, b, scripts)
		})
	}
}

func (w *world) byClicking(t *testing.T, b *tab, scripts bool) {
	says := func(text string) { t.Helper(); require.Contains(t, b.text(), text) }
	// Disable the page's scripts. The test's own scripts still run.
	b.run(emulation.SetScriptExecutionDisabled(!scripts))

	b.visit(w.site)
	says("21 poisoned in 3 handlers.")
	b.click(`nav a[href="./failures"]`)
	says("mailbox # unavailable")
	b.click(`.group a.main[href*="orders.confirmation-mail"]`)
	says("Retry 14 poisoned statuses?")
	b.click(`main button.main`)
	require.Eventually(t, func() bool {
		if !scripts && strings.Contains(b.text(), "Refresh") {
			b.click(`main a.button[href^="./job"]`)
		}
		return strings.Contains(b.text(), "Done.")
	}, patience, 50*time.Millisecond)
	says("14")
	require.False(t, w.status(mail, "order-2026-00001").IsPoisoned)
	require.Equal(t, 3, w.audited(ops.ActionRetry), "what was counted for the question, what was done, and its end")
	b.click(`main a.button`)
	require.NotContains(t, b.text(), "mailbox # unavailable", "it is a cause no more")

	b.visit(w.site + "messages?state=poisoned&handler=" + invoice)
	says("6 match")
	if scripts {
		b.run(chromedp.Click("#select-all input", chromedp.ByQuery))
		says("6 selected")
		b.run(chromedp.Click("#select-all input", chromedp.ByQuery))
	}
	b.run(chromedp.Click(`tr:nth-child(1) input[name="ref"]`, chromedp.ByQuery),
		chromedp.Click(`tr:nth-child(2) input[name="ref"]`, chromedp.ByQuery))
	b.click(`button[name="action"][value="discard"]`)
	says("Discard 2 poisoned statuses?")
	b.click(`main button.bad`)
	says("Discarded. 2 done.")
	says("4 match")
	require.Equal(t, 2, w.audited(ops.ActionDiscard))
	b.click(`.summary a.button[href*="action=discard"]`)
	says("Discard 4 poisoned statuses?")
	b.click(`main a.button`) // leave them
	says("4 match")

	b.click(`td ~ th a[href^="./message?"], th a[href^="./message?"]`)
	says("ERP answered 409")
	says("4bf92f3577b34da6a3ce929d0e0e4736")
	says("Łukasiewicz")
	b.click(`.handler-status button.main`)
	says("Retried: due now.")
	b.visit(w.site + "message?id=order-c7-2")
	says("1 ahead in its lane. First is order-c7-1")
	b.click(`.lane-position a`)
	b.click(`.handler-status button[value="discard"]`)
	b.click(`main button.bad`)
	says("Discarded: it will not run again.")

	b.click(`nav a[href="./handlers"]`)
	b.click(`button[aria-label="Pause ` + mail + `"]`)
	says("Paused: workers stop claiming")
	b.click(`button[aria-label="Resume ` + mail + `"]`)
	says("Resumed:")

	b.click(`nav a[href="./consumers"]`)
	says("no worker has declared it since")
	b.click(`a[aria-label="Forget shop.orders-v1"]`)
	says("Forget this topic?")
	b.click(`main button.bad`)
	says("Forgotten: cleanup no longer waits for the topic.")
	require.NotContains(t, b.text(), "no worker has declared it since")

	b.click(`nav a[href="./rejected"]`)
	b.click(`tbody a[href*="5511"]`)
	says("the value is not JSON")
	b.click(`main button.main`)
	says("Accepted: the record is now a message")
	says("order-r5511")
	b.visit(w.site + "rejected-message?id=0190c1a2-1111-7000-8000-000000005512")
	b.click(`main a.bad`)
	b.run(chromedp.SendKeys(`input[name="confirmation"]`, "0190c1a2-1111-7000-8000-00000000551", chromedp.ByQuery))
	b.click(`main button.bad`)
	says("Wrong ID")
	b.wrong() // the browser logs the status 400
	b.visit(w.site + "delete-rejected?id=0190c1a2-1111-7000-8000-000000005512")
	b.run(chromedp.SendKeys(`input[name="confirmation"]`, "0190c1a2-1111-7000-8000-000000005512", chromedp.ByQuery))
	b.click(`main button.bad`)
	says("Deleted.")

	b.visit(w.site + "message?id=payment-0001")
	b.click(`a[href^="./replay"]`)
	b.run(chromedp.SetValue(`input[name="new-id"]`, "payment-0001-mended", chromedp.ByQuery),
		chromedp.Click(`input[name="change-content"]`, chromedp.ByQuery),
		chromedp.SendKeys(`textarea`, `{"period": "2026-11"}`, chromedp.ByQuery))
	b.click(`main button.bad`)
	says("Replayed: this is the new message.")
	says(`{"period": "2026-11"}`)
	b.click(`a.bad[href^="./delete"]`)
	b.run(chromedp.SendKeys(`input[name="confirmation"]`, "payment-0001-mended", chromedp.ByQuery))
	b.click(`main button.bad`)
	says("Deleted.")

	b.click(`nav a[href="./workers"]`)
	says("shop-7c9d8-x2x4q")
	b.click(`a[href="./cleanup"]`)
	b.click(`main button.bad`)
	require.Eventually(t, func() bool {
		if !scripts && strings.Contains(b.text(), "Refresh") {
			b.click(`main a.button[href^="./job"]`)
		}
		return strings.Contains(b.text(), "Done.")
	}, patience, 50*time.Millisecond)
	for _, action := range []ops.Action{ops.ActionPause, "resume", ops.ActionReAccept, "delete_rejected",
		ops.ActionReplay, "delete", ops.ActionView} {
		require.NotZero(t, w.audited(action), action)
	}
	b.click(`nav a[href="./audit"]`)
	says("delete_rejected")
	if scripts {
		b.photograph("audit-after")
	}
}

func TestLowerRolesAreOfferedAndAllowedLess(t *testing.T) {
	w := newWorld(t)
	w.furnish()
	b := open(t)
	buttons := func() int {
		return evaluate[int](b,
			`document.querySelectorAll("main form[method=post]:not(#selection) button, #selection button").length`)
	}
	for _, c := range []struct {
		role   dashboard.Role
		offers map[string]bool // whether a page has buttons that change something
	}{
		{dashboard.Viewer, map[string]bool{"messages?state=poisoned": false, "message?id=order-2026-00001": false,
			"handlers": false, "rejected-message?id=0190c1a2-1111-7000-8000-000000005511": false}},
		{dashboard.Operator, map[string]bool{"messages?state=poisoned": true, "message?id=order-2026-00001": true,
			"handlers": true, "rejected-message?id=0190c1a2-1111-7000-8000-000000005511": true}},
	} {
		w.as(c.role)
		for page, offered := range c.offers {
			b.visit(w.site + page)
			require.Equal(t, offered, buttons() > 0, "%s %s", c.role, page)
			require.Zero(t, evaluate[int](b,
				`document.querySelectorAll('main a[href^="./delete"], main a[href^="./replay"], main a[href="./cleanup"]').length`),
				"%s %s", c.role, page)
			require.Equal(t, c.role == dashboard.Operator,
				evaluate[bool](b, `!!document.querySelector('nav a[href="./audit"]')`))
		}
		b.visit(w.site + "message?id=order-2026-00001")
		require.Equal(t, c.role == dashboard.Operator, strings.Contains(b.text(), "Łukasiewicz"), "the payload")
		require.Empty(t, b.wrong())
		b.visit(w.site + "cleanup")
		require.Contains(t, b.text(), "This requires the role admin. Yours is "+c.role.String())
		b.wrong() // the browser logs the status 403
	}
	// An operator had this page open when the role was revoked.
	w.as(dashboard.Operator)
	b.visit(w.site + "message?id=order-2026-00001")
	w.as(dashboard.Viewer)
	b.click(`.handler-status button.main`)
	require.Contains(t, b.text(), "This requires the role operator. Yours is viewer.")
	require.True(t, w.status(mail, "order-2026-00001").IsPoisoned)
	b.wrong()
}

func TestOtherSitesCanNeitherSendFormsNorFrame(t *testing.T) {
	w := newWorld(t)
	w.furnish()
	b := open(t)
	// The browser's errors, about refusals and that site's icon, may arrive at any time.
	b.hostile = true
	b.visit(w.site + "handlers")
	token := evaluate[string](b, `document.querySelector('input[name="token"]').value`)
	s := w.status(mail, "order-2026-00001")
	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/form": // even with a leaked token
			fmt.Fprintf(rw,
				`<form method="post" action="%sretry"><input name="token" value="%s"><input name="ref" value="%s@%d"></form><script>document.forms[0].submit()</script>`, w.site, token, s.ID, s.Version)
		case "/frame":
			fmt.Fprintf(rw, `<iframe src="%shandlers"></iframe>`, w.site)
		case "/image":
			fmt.Fprintf(rw, `<img src="%smessage?id=order-2026-00001">`, w.site)
		}
	}))
	defer evil.Close()
	site := strings.Replace(evil.URL, "127.0.0.1", "localhost", 1) // another site, not only another origin
	for _, host := range []string{site, evil.URL} {
		b.run(chromedp.Navigate(host + "/form"))
		b.await(`document.body.innerText.includes("Request from another site")`, "the refusal")
		b.run(chromedp.Navigate(host + "/frame"))
		b.run(chromedp.Navigate(host + "/image"))
	}
	require.True(t, w.status(mail, "order-2026-00001").IsPoisoned)
	require.Zero(t, w.audited(ops.ActionRetry)+w.audited(ops.ActionView), "no look was taken in her name")
}

// hostile are texts that would become markup or code if they were not escaped.
var hostile = []string{
	`<script>window.pwned=1</script>`, `"><img src=x onerror=window.pwned=1>`, `'><svg/onload=window.pwned=1>`,
	`</title><script>window.pwned=1</script>`,
	`</textarea><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>`, `javascript:window.pwned=1`,
	`" autofocus onfocus=window.pwned=1 tabindex=1 x="`,
	`</pre><form action=//evil.example><button>x`, `<base href=//evil.example>`, `<style>*{display:none}</style>`,
	"\u202egnp.exe", `</script><script>alert(1)</script>`,
}

// together joins texts into fewer texts of at most so many bytes, because a page for each would
// take too long. Texts that must be at the start stay there.
func together(texts []string, most int) (all []string) {
	for _, text := range texts {
		last := len(all) - 1
		if last < 0 || strings.HasPrefix(text, "javascript:") || len(all[last])+len(text) > most {
			all = append(all, text)
			continue
		}
		all[last] += text
	}
	return all
}

func TestStoredTextIsNeverExecuted(t *testing.T) {
	w := newWorld(t)
	var pages []string
	for i, text := range together(hostile, 180) {
		id := text + fmt.Sprint(i)
		w.fail(mail, handler.Poison(errors.New(text)), id)
		w.accept("order.placed", func(m *handler.RawMessage) {
			m.Source, m.ContentType, m.Content, m.OrderingKey = text, "text/html", []byte(text), []byte(text)
			m.Properties = handler.Properties{Headers: []handler.Header{{Key: text, Value: []byte(text)}},
				Attributes: map[string]string{text: text}, Kafka: &handler.KafkaCoordinates{Topic: text}}
		}, id)
		rejected := w.reject(int64(i), text)
		require.NoError(t,
			w.db.Exec("UPDATE inbox_rejected_messages SET channel = ?, topic = ?, \"value\" = ?, \"key\" = ? WHERE id = ?", text,
				text, []byte(text), []byte(text), rejected).Error)
		q := url.QueryEscape(id)
		pages = append(pages, "message?id="+q, "delete?id="+q, "replay?id="+q, "rejected-message?id="+rejected,
			"messages?id="+q+"&handler="+q+"&type="+q+"&error="+q, "bulk?action=retry&id="+q, "message?id=nobody"+q,
			"rejected?reason="+q+"&topic="+q, "audit?target="+q)
	}
	w.process()
	pages = append(pages, "", "messages?limit=200", "failures", "rejected", "handlers", "audit?limit=200")
	b := open(t)
	for _, page := range pages {
		b.visit(w.site + page)
		require.False(t, evaluate[bool](b, `"pwned" in window`), page)
		require.Zero(t, evaluate[int](b,
			`document.querySelectorAll("img, iframe, style, base, object, embed, script:not([src$='dashboard.js']), [onfocus], [onload], [onerror], form:not([action^='./']), a[href^='javascript'], a[href*='//evil']").length`), page)
		for _, problem := range b.wrong() { // the policy had nothing to block
			require.NotContains(t, problem, "Content Security Policy", page)
			require.NotContains(t, problem, "TrustedHTML", page)
		}
	}
	require.Empty(t, b.dialogs)
}
