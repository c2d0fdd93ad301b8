package dashboard_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func TestEveryPageRendersEmptyAndFilled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		pages := []string{"", "messages", "messages?state=poisoned&handler=mail&limit=100", "failures", "rejected",
			"handlers", "consumers", "workers", "gaps", "markers", "markers?id=m1", "audit", "cleanup"}
		for _, page := range pages {
			require.Contains(t, r.page(page), "</html>", page)
		}
		r.poison("mail", "smtp said 550", "m1", "m2")
		rejected := r.reject(7, "no ce_id")
		pages = append(pages, "message?id=m1", "replay?id=m1", "delete?id=m1", "rejected-message?id="+rejected,
			"delete-rejected?id="+rejected, "handler?handler=mail",
			"bulk?action=retry&handler=mail", "bulk?action=discard&handler=mail", "backfill?handler=mail",
			"backfill?handler=mail&from=2026-01-01T11:00", "read-again?channel=c&topic=orders")
		for _, page := range pages {
			require.Contains(t, r.page(page), "</html>", page)
			require.NotContains(t, r.page(page), "no value", page)
		}
		for _, page := range []string{"", "messages", "failures", "rejected", "handlers", "consumers", "workers", "gaps", "markers",
			"audit"} {
			part := r.page(page + "?part=live")
			require.True(t, strings.HasPrefix(part, "<nav"), part)
			require.NotContains(t, part, "<html", page)
		}
		require.Equal(t, 400, r.get("message?id=m1&part=live").Status)
	})
}

func TestMarkersPageShowsInlineHandling(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.d.DB.Create(&models.Marker{MessageID: "m1", HandlerKey: "inline.mail", Namespace: "orders",
			MessageType: "order.placed", ProcessedAt: inboxtest.Noon, ExpiresAt: inboxtest.Noon}).Error)
		require.Contains(t, r.page("markers"), "Enter the ID")
		page := r.page("markers?id=m1")
		require.Contains(t, page, "inline.mail")
		require.Contains(t, page, "order.placed")
		require.Contains(t, r.page("markers?id=m1&handler=other"), "No marker.")
		require.Contains(t, r.page("markers?id=m2"), "No marker.")
		require.Equal(t, 400, r.get("markers?id="+strings.Repeat("x", 201)).Status)
	})
}

// ending is an application that counts ended attempts.
type ending struct {
	ops.Live
	since time.Time
}

func (e ending) Ended() (time.Time, map[string]ops.Ended) {
	return e.since, map[string]ops.Ended{"mail": {Completed: 12345, Failed: 67}}
}

func TestOverviewShowsEndedAttemptsWhenKnown(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		inboxtest.Accept(t, r.ib, "m1")
		require.NotContains(t, r.page(""), "Completed", "it does not run")
		var err error
		r.ops, err = ops.New(d.DB, func(o *ops.Options) { o.Live = ending{since: r.clock.Now().Add(-time.Hour)} })
		require.NoError(t, err)
		r.serve(func(o *dashboard.Options) {
			o.Insecure = true
			o.Clock = r.clock
		})
		page := r.page("")
		require.Contains(t, page, `<td class="number" data-label="Completed">12 345</td><td class="number" data-label="Failed"><span class="warn">67</span></td>`)
		require.Contains(t, page, "1h 00m ago")
	})
}

func TestMessagesAreFilteredAndPaged(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 60 {
			ids = append(ids, "m"+strings.Repeat("x", i))
		}
		r.poison("mail", "smtp said 550", ids...)
		page := r.page("messages?" + url.Values{"state": {"poisoned"}, "handler": {"mail"}, "type": {""}}.Encode())
		require.Equal(t, 50, strings.Count(page, `name="ref"`))
		require.Contains(t, page, "<strong>60</strong> match")
		for _, of := range []string{"state=poisoned", "state=poisoned&state=poisoned", "state=poisoned&state=pending",
			"state=poisoned&type=t", "state=poisoned&error=SMTP", "handler=mail"} {
			require.Contains(t, r.page("messages?"+of), "<strong>60</strong> match", of)
		}
		require.Contains(t, r.page("messages"), "<strong>120</strong> in total")
		require.Contains(t, r.page("messages?state=poisoned&handler=ship&handler=nobody"), "<strong>0</strong> match")
		next := strings.ReplaceAll(between(t, page, `href="./messages?after=`, `"`), "&amp;", "&")
		page = r.page("messages?after=" + next)
		require.Equal(t, 10, strings.Count(page, `name="ref"`))
		require.Contains(t, page, "First page")
		require.Equal(t, 400, r.get("messages?after=nonsense").Status)
		require.Equal(t, 400, r.get("messages?from=yesterday").Status)
		require.Contains(t, r.page("messages?id=nobody"), "No matches.")
	})
}

func between(t testing.TB, text, before, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, before)
	require.True(t, ok, "%s is not in %s", before, text)
	found, _, ok := strings.Cut(rest, after)
	require.True(t, ok)
	return found
}

// TestPagesShowCallsThatDoNotReturn proves contract 11.1: a call that does not return is shown on
// the page of its message, on the pages of messages that wait for its handler, and in the handler's
// row.
func TestPagesShowCallsThatDoNotReturn(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "hangs", "waits")
		worker := store.Worker{ID: uuid.NewString(), Host: "h", HandlerKeys: []string{"mail", "ship"}, Health: `[{"code":"long_running","state":"degraded",
			"handler_key":"mail","message_ids":["hangs"],"detail":"a call with message \"hangs\" has not returned for 5m"}]`}
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.Heartbeat(t.Context(), worker, r.clock.Now()))
		claimed, err := st.Claim(t.Context(), store.ClaimRequest{WorkerID: worker.ID, Now: r.clock.Now(),
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1}}})
		require.NoError(t, err)
		require.Equal(t, "hangs", claimed.Claims[0].MessageID)
		require.Contains(t, r.page("message?id=hangs"),
			"its call does not return; the overview&#39;s health section says for how long")
		require.Contains(t, r.page("message?id=waits"), "Waiting: a call does not return.")
		require.Contains(t, r.page("handlers"), "a call does not return")
		page := r.page("")
		require.Contains(t, page, `<span class="state paused">a call does not return</span>`)
		require.Contains(t, page, "has not returned for 5m")
	})
}

// TestOverviewShowsWorkerHealth proves contract 11.1: the overview shows the workers'
// health reasons before it reports a quiet inbox.
func TestOverviewShowsWorkerHealth(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		worker := store.Worker{ID: uuid.NewString(), Host: "h", HandlerKeys: []string{"mail", "ship"}}
		beat := func(health string) string {
			worker.Health = health
			require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), worker, r.clock.Now()))
			r.clock.Advance(2 * time.Second)
			return r.page("")
		}
		require.Contains(t, beat(""), "All is well: no work is pending.")
		page := beat(`[{"code":"open_circuit","state":"degraded","handler_key":"mail","detail":"its circuit breaker is open"}]`)
		require.Contains(t, page, "A worker is degraded: handler &#34;mail&#34;: its circuit breaker is open")
		require.Contains(t, page, `: its circuit breaker is open</li>`)
		require.Contains(t, page, `<span class="state paused">circuit breaker open</span>`)
		require.Contains(t, r.page("handlers"), `<span class="state paused">circuit breaker open</span>`)
		r.poison("mail", "no", "1")
		page = beat(`[{"code":"halted_partition","state":"unhealthy","channel":"<c>","detail":"orders/0 is halted before offset 1"}]`)
		require.Contains(t, page, "A partition of channel &lt;c&gt; is halted.",
			"worse than what is poisoned")
		require.Contains(t, r.page("workers"), "channel &#34;&lt;c&gt;&#34;: orders/0 is halted before offset 1")
		require.NotContains(t, beat("[]"), "unhealthy")
	})
}

// TestOpenCircuitIsShownOnEveryPageOfItsHandler proves contract 11.1: also on a message that waits
// for its next attempt.
func TestOpenCircuitIsShownOnEveryPageOfItsHandler(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.fail("mail", errors.New("smtp is down"), "m1")
		worker := store.Worker{ID: uuid.NewString(), Host: "h", HandlerKeys: []string{"mail", "ship"},
			Health: `[{"code":"open_circuit","state":"degraded","handler_key":"mail","detail":"its circuit breaker is open since <noon>"}]`}
		require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), worker, r.clock.Now()))
		const detail = "its circuit breaker is open since &lt;noon&gt;"
		require.Contains(t, r.page(""), detail)
		require.Contains(t, r.page("handlers"), detail)
		list := r.page("messages?handler=mail")
		require.Contains(t, list, detail)
		require.NotContains(t, r.page("messages?handler=ship"), "circuit breaker")
		require.Contains(t, r.page("message?id=m1"), "Its handler: circuit breaker open.")
	})
}

// TestMessageShowsEachAttemptAndRetry proves contract 5.5, 11.1.
func TestMessageShowsEachAttemptAndRetry(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		long := strings.Repeat("x", 400)
		r.fail("mail", errors.New("first <error>"), "m1")
		page := r.page("message?id=m1")
		require.Contains(t, page, "first &lt;error&gt;")
		require.Contains(t, page, "Retry now", "a failing status can be retried")
		require.Contains(t, page, "Discard…")
		ref := between(t, page, `name="ref" value="`, `"`)
		require.Equal(t, 303, r.post("retry", url.Values{"ref": {ref}}).Status)
		r.poison("mail", long, "m1")
		page = r.page("message?id=m1")
		require.Contains(t, page, "Retried by an operator")
		require.Contains(t, page, "first &lt;error&gt;", "the earlier attempt stays")
		require.Contains(t, page, "poison: "+long, "the last error is shown whole")
		require.Contains(t, between(t, page, `<span class="step-text">Poisoned</span>`, "</li>"), "<time ")
		require.NotContains(t, page, "before</span>", "nothing is older than what is listed")
	})
}

// TestGroupActionIncludesFailingStatuses proves contract 11.1.
func TestGroupActionIncludesFailingStatuses(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.fail("mail", errors.New("smtp is down"), "m1")
		r.clock.Advance(time.Minute)
		page := r.page("failures")
		require.Contains(t, page, "Discard all…")
		asked := strings.ReplaceAll(between(t, page, `<a class="button main" href="./`, `"`), "&amp;", "&")
		require.Contains(t, r.page(asked), "Retry 1 poisoned and failing status?")
		require.Contains(t, r.page("bulk?action=discard&state=failing&handler=mail"), "Discard 1 failing status?")
	})
}

// The workers' rows are in another table than the one that is locked.
func TestOverviewPageOfALockedTableShowsHealthAndQuestionMarks(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *ops.Options) { o.StatementTimeout = 500 * time.Millisecond })
		require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"mail"}, Health: `[{"code":"database","state":"degraded","detail":"the backlog cannot be read"}]`},
			r.clock.Now()))
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			inboxtest.Exec(t, tx, "LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE")
			page := r.page("")
			require.Contains(t, page, "Not everything could be counted.")
			require.Contains(t, page, "pg_blocking_pids")
			require.Contains(t, page, "the backlog cannot be read")
			require.Contains(t, page, `data-label="Poisoned"><span class="none">?</span>`)
			require.NotContains(t, page, "nothing is poisoned")
			return nil
		}))
		r.clock.Advance(2 * time.Second)
		require.NotContains(t, r.page(""), "Not everything could be counted.")
	})
}

// TestUnknownParametersAreRefused: a filter with a typo would show everything, with buttons that act on it.
func TestUnknownParametersAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for _, page := range []string{"", "messages", "failures", "rejected", "handlers", "consumers", "workers", "gaps",
			"markers", "audit", "bulk", "cleanup"} {
			got := r.get(page + "?handlr=mail")
			require.Equal(t, http.StatusBadRequest, got.Status, page)
			require.Contains(t, got.Body, "a parameter that this page does not have: “handlr”", page)
		}
		for _, page := range []string{"rerun", "release", "cancel", "reschedule"} {
			got := r.get(page + "?id=m1&namespace=&handler=mail&version=1&force=yes")
			require.Equal(t, http.StatusBadRequest, got.Status, page)
			require.Contains(t, got.Body, "a parameter that this page does not have: “force”", page)
			require.Contains(t, got.Body, "It has: id, namespace, handler, version", page)
		}
		require.Contains(t, r.get("failures?handlr=mail").Body, "It has: handler, type, from, to.")
		require.Contains(t, r.page("messages?state=poisoned&state=failing&handler=mail&id=&namespace=&type=&error=&from=&to="+
			"&limit=50&fingerprint=&notice=retried-some&done=1&left=0"), "</html>")
	})
}

// TestUnknownAddressesHaveStylesAtAnyDepth: relative links would miss the style sheet and the way back.
func TestUnknownAddressesHaveStylesAtAnyDepth(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for _, address := range []string{"nothing", "handlers/", "a/b/c", "a/b%2Fc/d", "dashboard.css/x/"} {
			got := r.get(address)
			require.Equal(t, http.StatusNotFound, got.Status, address)
			require.Contains(t, got.Body, "Page not found", address)
			for _, link := range []string{`rel="stylesheet" href="`, `class="brand" href="`, `class="button" href="`} {
				_, rest, found := strings.Cut(got.Body, link)
				require.True(t, found, "%s: %s", address, link)
				to, _, _ := strings.Cut(rest, `"`)
				from, err := url.Parse(r.site + address)
				require.NoError(t, err)
				led, err := from.Parse(to)
				require.NoError(t, err)
				require.Equal(t, r.site, strings.TrimSuffix(led.String(), "dashboard.css"), "%s: %s", address, link)
			}
		}
	})
}

func TestAuditShowsAnActionOnAllThatMatchAsOneEntryInWords(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1", "2")
		filter := ops.Filter{HandlerKeys: []string{"mail"}}
		for _, bulk := range []ops.Bulk{{DryRun: true}, {ChunkSize: 1}} {
			_, err := r.ops.RetryMatching(t.Context(), "ada", filter, bulk)
			require.NoError(t, err)
		}
		page := r.page("audit")
		require.Equal(t, 1, strings.Count(page, `<span class="action">retry</span>`))
		require.Contains(t, page, "ended, done 2, handler keys mail")
		require.Contains(t, page, "3 earlier entries")
		require.Contains(t, page, "counted 2, handler keys mail")
		require.Equal(t, 2, strings.Count(page, "changed 1, handler keys mail"))
		require.NotContains(t, page, "&#34;event&#34;")
	})
}
