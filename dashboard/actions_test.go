package dashboard_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

func TestOneOrSelectedStatusesAreRetriedAndDiscarded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		r.poison("mail", "smtp said 550", "m1", "m2", "m3", "m4", "m5")
		page := r.follow(r.post("retry", url.Values{"ref": {r.ref("mail", "m1")}, "back": {"message?id=m1"}}))
		require.Contains(t, page, "Retried: due now.")
		require.Contains(t, page, "<bdi>m1</bdi>", "it is back on the message's page")
		require.False(t, inboxtest.Status(t, r.ib, "m1", "mail").IsPoisoned)

		refs := []string{r.ref("mail", "m2"), r.ref("mail", "m3"), r.ref("mail", "m4")}
		asked := r.post("selected", url.Values{"ref": refs, "action": {"discard"}, "back": {"messages?state=poisoned"}})
		require.Equal(t, http.StatusOK, asked.Status)
		require.Contains(t, asked.Body, "Discard 3 poisoned statuses?")
		require.True(t, inboxtest.Status(t, r.ib, "m2", "mail").IsPoisoned, "asking does nothing")
		require.NoError(t, r.ops.Retry(t.Context(), "grace", ops.Ref{StatusID: inboxtest.Status(t, r.ib, "m3", "mail").ID}),
			"somebody is faster")
		page = r.follow(r.post("discard", url.Values{"ref": refs, "back": {"./messages?state=poisoned"}}))
		require.Contains(t, page, "Discarded. 2 done, 1 skipped")
		require.Contains(t, page, `value="poisoned" checked`, "with the filter it came from")

		got := r.post("retry", url.Values{"ref": {refs[1]}})
		require.Equal(t, http.StatusConflict, got.Status)
		got = r.post("retry", url.Values{"ref": {strings.Split(r.ref("mail", "m1"), "@")[0] + "@0"}})
		require.Equal(t, http.StatusConflict, got.Status)
		require.Contains(t, got.Body, "Nothing to retry")
		got = r.post("retry", url.Values{"ref": {strings.Split(refs[0], "@")[0] + "@0"}})
		require.Equal(t, http.StatusNotFound, got.Status)
		require.Contains(t, got.Body, "It may have been completed")
		got = r.post("retry", url.Values{"ref": {"00000000-0000-0000-0000-000000000000@0"}})
		require.Equal(t, http.StatusNotFound, got.Status)
		require.Equal(t, http.StatusBadRequest, r.post("retry", url.Values{"ref": {"nonsense"}}).Status)
		require.Equal(t, http.StatusBadRequest, r.post("retry", url.Values{"ref": make([]string, 201)}).Status)
		require.Contains(t, r.follow(r.post("selected", url.Values{"action": {"retry"}})), "Nothing was selected.")

		require.Equal(t, []string{
			"operator@example.org retry status", "operator@example.org view message", "grace retry status",
			"operator@example.org discard status", "operator@example.org discard status",
		}, actionsOf(r.audit()))
	})
}

// TestPendingWorkIsDiscarded proves contract 11.1: one pending status from its message's page, and all of a handler's
// after they were counted and named.
func TestPendingWorkIsDiscarded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		r.poison("mail", "smtp said 550", "poisoned")
		inboxtest.Accept(t, r.ib, "m1", "m2", "m3")
		r.clock.Advance(time.Second)
		page := r.page("message?id=m1")
		require.Contains(t, page, `<input type="hidden" name="state" value="pending">`)
		require.NotContains(t, page, `action="./retry"`, "it has not failed")
		ref := url.Values{"ref": {r.ref("mail", "m1")}, "state": {"pending"}, "back": {"message?id=m1"}}
		ref.Set("action", "discard")
		require.Contains(t, r.post("selected", ref).Body, "Discard 1 pending status?")
		require.Contains(t, r.follow(r.post("discard", ref)), "Discarded: it will not run again.")
		require.Equal(t, models.OutcomeDiscarded, inboxtest.Status(t, r.ib, "m1", "mail").Outcome)

		page = r.page("messages?state=pending&handler=mail")
		require.Contains(t, page, `./bulk?action=discard&amp;handler=mail&amp;state=pending`)
		require.NotContains(t, page, "action=retry")
		require.Contains(t, r.page("messages?state=pending"), "Narrow the filter")
		page = r.page("bulk?action=discard&state=pending&handler=mail")
		require.Contains(t, page, "Discard 2 pending statuses?")
		filter, fields := sent(t, page, "./bulk")
		maps.Copy(fields, filter)
		require.Contains(t, page, `name="reason"`)
		fields.Set("reason", "the shop is closed")
		started := r.post("bulk", fields)
		require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
		address := strings.TrimPrefix(started.Header.Get("Location"), "./")
		inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), "Done.") }, "the end of it")
		require.Contains(t, r.page(address), `<dt>Discarded</dt><dd class="figure">2</dd>`)
		require.Contains(t, r.page("audit?action=discard"), "reason the shop is closed")
		require.True(t, inboxtest.Status(t, r.ib, "poisoned", "mail").IsPoisoned)
		require.Nil(t, inboxtest.Status(t, r.ib, "m2", "ship").CompletedAt)
		require.Contains(t, r.page("bulk?action=discard&handler=mail"), "Discard 1 poisoned status?", "the default")
	})
}

// actionsOf cuts the parts of audit lines that differ between runs.
func actionsOf(lines []string) (all []string) {
	for _, line := range lines {
		words := strings.Fields(line)
		all = append(all, strings.Join(words[:3], " "))
	}
	return all
}

func TestBulkActionIsCountedConfirmedAndFollowed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		var ids []string
		for i := range 230 {
			ids = append(ids, fmt.Sprintf("m%03d", i))
		}
		r.poison("mail", "smtp said 550", ids...)
		r.poison("ship", "no stock", "other")
		r.clock.Advance(time.Second)
		group := between(t, r.page("failures?handler=mail"), "fingerprint=", `&amp;`)
		page := r.page("bulk?action=retry&handler=mail&fingerprint=" + group)
		require.Contains(t, page, "Retry 230 poisoned statuses?")
		require.Len(t, r.audit(), 1, "the count, which does nothing")
		filter, fields := sent(t, page, "./bulk")
		maps.Copy(fields, filter)
		require.NotEmpty(t, fields.Get("to"), "what comes after the count is left out")
		r.poison("mail", "smtp said 551", "late")

		started := r.post("bulk", fields)
		require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
		address := strings.TrimPrefix(started.Header.Get("Location"), "./")
		inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), "Done.") }, "the end of it")
		require.Contains(t, r.page(address), `<dd class="figure">230</dd>`)
		require.False(t, inboxtest.Status(t, r.ib, "m000", "mail").IsPoisoned)
		require.True(t, inboxtest.Status(t, r.ib, "late", "mail").IsPoisoned)
		require.True(t, inboxtest.Status(t, r.ib, "other", "ship").IsPoisoned)
		require.Len(t, r.audit(), 1+2+1, "the count, a row per chunk, the end")

		require.Equal(t, http.StatusBadRequest, r.get("bulk?action=retry").Status, "not everything")
		require.Equal(t, http.StatusBadRequest, r.get("bulk?action=drop&handler=mail").Status)
		require.Equal(t, http.StatusBadRequest, r.post("bulk", url.Values{"action": {"retry"}}).Status)
		require.Equal(t, http.StatusNotFound, r.get("job?id=unknown").Status)
		require.Contains(t, r.follow(r.post("job-stop", url.Values{"id": {strings.TrimPrefix(address, "job?id=")}})),
			"It had already ended.")
		require.Contains(t, r.page("bulk?action=discard&handler=nobody"), "No matches any more.")

		require.NoError(t, r.dash.Stop(t.Context()))
		fields.Set("token", r.token())
		require.Equal(t, http.StatusTooManyRequests, r.post("bulk", fields).Status, "a stopped dashboard starts nothing")
	})
}

// TestHandlerIsBackfilledAfterACount proves contract 11.1: what another program accepted without the
// handler is counted, confirmed and added.
func TestHandlerIsBackfilledAfterACount(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		old := inboxtest.New(t, r.d.Another(t), inbox.Configure(func(o *inbox.Options) { o.Clock = r.clock }),
			inboxtest.Handlers(inboxtest.Do("mail", inboxtest.Nothing)))
		inboxtest.Accept(t, old, "m1", "m2", "m3")
		inboxtest.Accept(t, r.ib, "m3")
		r.clock.Advance(time.Second)
		require.Contains(t, r.page("handlers"), `href="./backfill?handler=ship"`)
		require.Contains(t, r.page("backfill?handler=ship"), `type="datetime-local" name="from"`)
		page := r.page("backfill?handler=ship&from=2026-01-01T11:00")
		require.Contains(t, page, "2 messages?")
		filter, fields := sent(t, page, "./backfill")
		maps.Copy(fields, filter)
		inboxtest.Accept(t, old, "late")
		started := r.post("backfill", fields)
		require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
		address := strings.TrimPrefix(started.Header.Get("Location"), "./")
		inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), "Done.") }, "the end of it")
		require.Contains(t, r.page(address), `<dt>Added</dt><dd class="figure">2</dd>`)
		require.Equal(t, "m2", inboxtest.Status(t, r.ib, "m2", "ship").MessageID)
		require.Len(t, inboxtest.Statuses(t, r.ib), 4+3, "not the late message's")
		require.Contains(t, r.page("backfill?handler=ship&from=2026-01-01T11:00&to=2026-01-01T12:00:01"), "Nothing is missing.")

		require.Equal(t, http.StatusBadRequest, r.get("backfill").Status)
		require.Equal(t, http.StatusBadRequest, r.post("backfill", url.Values{"handler": {"ship"}, "count": {"1"}}).Status)
		fields.Del("count")
		require.Equal(t, http.StatusBadRequest, r.post("backfill", fields).Status)
		require.Equal(t, http.StatusNotFound, r.get("backfill?handler=nobody&from=2026-01-01T11:00").Status)
	})
}

// TestLowerRoleCannotStopActionsItMayNotStart proves contract 11.4.
func TestLowerRoleCannotStopActionsItMayNotStart(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1") // gives operators a form
		started := r.as(dashboard.Admin).post("cleanup", nil)
		require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
		stop := url.Values{"id": {strings.TrimPrefix(started.Header.Get("Location"), "./job?id=")}}
		got := r.as(dashboard.Operator).post("job-stop", stop)
		require.Equal(t, http.StatusForbidden, got.Status)
		require.Contains(t, got.Body, "Who may not start this may not stop it.")
		require.Contains(t, r.audit(), "operator@example.org denied POST job-stop cleanup")
		r.as(dashboard.Admin).follow(r.post("job-stop", stop))
	})
}

func TestHandlersArePausedAndResumed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		inboxtest.Accept(t, r.ib, "m1")
		require.Contains(t, r.follow(r.post("pause", url.Values{"handler": {"mail"}})), `aria-label="Resume mail"`)
		require.Contains(t, r.page(""), `<span class="state paused">paused; no living worker lists it</span>`)
		require.Contains(t, r.follow(r.post("resume", url.Values{"handler": {"mail"}})), `aria-label="Pause mail"`)
		require.Equal(t, http.StatusNotFound, r.post("pause", url.Values{"handler": {"nobody"}}).Status)
		require.Equal(t, []string{"operator@example.org pause handler", "operator@example.org resume handler"},
			actionsOf(r.audit()))
	})
}

func TestRejectedRecordsAreReAcceptedAndDeleted(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		id := r.reject(1, "no ce_id")
		require.Contains(t, r.follow(r.post("accept", url.Values{"id": {id}})), "Accepted: the record is now a message")
		require.Equal(t, "mail", inboxtest.Status(t, r.ib, "r1", "mail").HandlerKey)
		require.Equal(t, http.StatusNotFound, r.post("accept", url.Values{"id": {id}}).Status)
		bad := r.reject(2, "old reason", func(m *models.RejectedMessage) { m.Headers = "[]" })
		got := r.post("accept", url.Values{"id": {bad}})
		require.Equal(t, http.StatusConflict, got.Status)
		require.Contains(t, got.Body, "The record is still bad")

		got = r.post("delete-rejected", url.Values{"id": {bad}, "confirmation": {"wrong"}})
		require.Equal(t, http.StatusBadRequest, got.Status)
		require.Contains(t, got.Body, "Wrong ID")
		require.Contains(t, r.follow(r.post("delete-rejected", url.Values{"id": {bad}, "confirmation": {" " + bad}})),
			"Deleted.")
		require.Equal(t, http.StatusNotFound, r.get("rejected-message?id="+bad).Status)
	})
}

// TestMatchingRejectedRecordsAreReAccepted proves contract 11.1: counted, confirmed and followed.
func TestMatchingRejectedRecordsAreReAccepted(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		for i := range int64(12) {
			r.reject(i, "no ce_id", func(m *models.RejectedMessage) {
				if m.Partition = int32(i % 2); i == 4 {
					m.Headers = "[]"
				}
			})
		}
		r.clock.Advance(time.Second)
		require.NotContains(t, r.page("rejected"), "accept-all", "not all of everything")
		listed := r.page("rejected?topic=orders&partition=0&reason=CE_ID")
		require.Contains(t, listed, `href="./accept-all?partition=0&amp;reason=CE_ID&amp;topic=orders"`)
		page := r.page("accept-all?topic=orders&partition=0&reason=CE_ID")
		require.Contains(t, page, "Accept 6 rejected messages again?")
		require.Len(t, r.audit(), 1, "the count, which does nothing")
		filter, fields := sent(t, page, "./accept-all")
		maps.Copy(fields, filter)
		require.NotEmpty(t, fields.Get("to"), "what is rejected after the count is left out")

		started := r.post("accept-all", fields)
		require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
		address := strings.TrimPrefix(started.Header.Get("Location"), "./")
		inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), "Done.") }, "the end of it")
		page = r.page(address)
		require.Contains(t, page, `<dt>Accepted</dt><dd class="figure">5</dd>`)
		require.Contains(t, page, "<dt>Still bad</dt><dd>1</dd>")
		require.Contains(t, page, "message type is missing")
		require.Equal(t, "mail", inboxtest.Status(t, r.ib, "r0", "mail").HandlerKey)
		require.Len(t, r.audit(), 1+6+1, "the count, each record, the end")

		require.Equal(t, http.StatusBadRequest, r.get("accept-all").Status, "not everything")
		require.Equal(t, http.StatusBadRequest, r.get("accept-all?partition=0").Status)
		require.Equal(t, http.StatusBadRequest, r.get("rejected?topic=orders&partition=x").Status)
		require.Equal(t, http.StatusBadRequest, r.post("accept-all", url.Values{"channel": {"c"}}).Status)
		require.Contains(t, r.page("accept-all?channel=nobody"), "No matches any more.")
	})
}

func TestMessagesAreDeletedAndReplayed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "smtp said 550", "m1")
		page := r.follow(r.post("replay", url.Values{"id": {"m1"}, "new-id": {"m1-again"}, "change-content": {"1"},
			"content": {"better\r\nlines"}, "type": {"not ticked"}}))
		require.Contains(t, page, "Replayed: this is the new message.")
		require.Contains(t, page, "better\nlines")
		require.Contains(t, page, `a replay of <a class="data" href="./message?id=m1&amp;namespace=c">`)
		require.Equal(t, http.StatusBadRequest, r.post("delete", url.Values{"id": {"m1"}, "confirmation": {"m2"}}).Status)
		require.Contains(t, r.follow(r.post("delete", url.Values{"id": {"m1"}, "confirmation": {"m1"}})), "Deleted.")
		require.Equal(t, http.StatusNotFound, r.get("message?id=m1").Status)
	})
}

func TestDisabledReplayIsRefused(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.poison("mail", "smtp said 550", "m1")
		got := r.post("replay", url.Values{"id": {"m1"}})
		require.Equal(t, http.StatusForbidden, got.Status)
		require.Contains(t, got.Body, "Replay is off")
	})
}

func TestCleanupReportsWhatItDeleted(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1")
		started := r.post("cleanup", nil)
		require.Equal(t, http.StatusSeeOther, started.Status)
		address := strings.TrimPrefix(started.Header.Get("Location"), "./")
		inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), "Done.") }, "the end of it")
		require.Contains(t, r.page(address), "<dt>Messages</dt>")
	})
}

// TestBlockedCleanupShowsItsReason proves contract 6.5: neither a wait nor another worker's run is a failure.
func TestBlockedCleanupShowsItsReason(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRigOf(t, d, []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Cleanup.Retention = time.Hour })}, nil)
		run := func(want string) {
			address := strings.TrimPrefix(r.post("cleanup", nil).Header.Get("Location"), "./")
			inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(address), want) }, want)
		}
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.RecordProgress(t.Context(), []models.Partition{{Channel: "c", GroupID: "g", Topic: "orders"}}, nil,
			r.clock.Now()))
		run("orders/0 has never been read to its end")
		held, err := st.AcquireLease(t.Context(), "cleanup", "0197a1c2-0000-7000-8000-000000000001", time.Hour, r.clock.Now())
		require.NoError(t, err)
		require.True(t, held)
		run("Another cleanup is running")
	})
}

// TestActionsThatNeedTheApplicationReturnATypedError opens a dashboard on the database alone, without the
// application.
func TestActionsThatNeedTheApplicationReturnATypedError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		o, err := ops.New(d.DB)
		require.NoError(t, err)
		id := r.reject(1, "no ce_id")
		r.ops = o
		r.serve(func(o *dashboard.Options) { o.Authorizer = r.authorize })
		inboxtest.Accept(t, r.ib, "m1")
		for _, got := range []answer{r.post("accept", url.Values{"id": {id}}), r.get("accept-all?channel=c"), r.get("cleanup"),
			r.get("replay?id=m1"),
			r.get("backfill?handler=mail"), r.bare("POST", "cleanup", r.token()), r.bare("POST", "replay", r.token()),
			r.bare("POST", "backfill", r.token()), r.get("read-again?channel=c&topic=orders"),
			r.bare("POST", "read-again", r.token())} {
			require.Equal(t, http.StatusNotImplemented, got.Status)
			require.Contains(t, got.Body, "Available in the application only")
		}
	})
}

// TestUnavailableActionsAreNotOffered checks that an unavailable action is not offered. Users
// whose role would allow it see where it is available, unless it was turned off on purpose.
func TestUnavailableActionsAreNotOffered(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, allowReplay)
		inboxtest.Accept(t, r.ib, "m1")
		id := r.reject(1, "no ce_id")
		now := r.clock.Now()
		require.NoError(t, inboxtest.Store(t, d.DB).RecordProgress(t.Context(), []models.Partition{{Channel: "c",
			GroupID: "g", Topic: "orders", CaughtUpAt: &now}}, nil, now))
		alone, err := ops.New(d.DB)
		require.NoError(t, err)
		off, err := r.ib.Ops()
		require.NoError(t, err)
		whole := r.ops
		for _, c := range []struct {
			page, offer, lack string
			ops               *ops.Ops
			told              dashboard.Role // the lowest role that is told; 0 for none
		}{
			{"rejected-message?id=" + id, `action="./accept"`,
				"It cannot be accepted again here. This dashboard has access to the database only.", alone, dashboard.Operator},
			{"rejected?channel=c", `href="./accept-all`,
				"They cannot be accepted again here. This dashboard has access to the database only.", alone, dashboard.Operator},
			{"message?id=m1", `href="./replay`, "<code>inboxctl replay</code> requests it of the application", alone,
				dashboard.Admin},
			{"message?id=m1", `href="./replay`, "It cannot be replayed here.", off, 0},
			{"workers", `href="./cleanup"`, "<code>inboxctl cleanup --application</code> requests it of the application", alone,
				dashboard.Admin},
			{"handlers", `href="./backfill?handler=mail"`,
				"<code>inboxctl backfill</code> requests it of the application", alone, dashboard.Admin},
			{"consumers", `href="./read-again?channel=c&amp;topic=orders"`,
				"<code>inboxctl read-again</code> requests it of the application", alone, dashboard.Admin},
		} {
			r.ops = whole
			r.serve(func(o *dashboard.Options) { o.Authorizer = r.authorize })
			page := r.page(c.page)
			require.Contains(t, page, c.offer)
			require.NotContains(t, page, c.lack)

			r.ops = c.ops
			r.serve(func(o *dashboard.Options) { o.Authorizer = r.authorize })
			for _, role := range []dashboard.Role{dashboard.Viewer, dashboard.Operator, dashboard.Admin} {
				page = r.as(role).page(c.page)
				require.NotContains(t, page, c.offer)
				require.Equal(t, c.told > 0 && role >= c.told, strings.Contains(page, c.lack), "%s: %s", c.page, role)
			}
		}
	})
}

// TestConcurrentRequestsShareASlowFailuresQuery checks that many concurrent viewers cost the
// database as much as one.
func TestConcurrentRequestsShareASlowFailuresQuery(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var queries atomic.Int64
		hook := func(v redact.Value) []byte {
			if queries.Add(1); v.HandlerKey == "mail" {
				<-time.After(120 * time.Millisecond) // a slow search
			}
			return v.Bytes
		}
		r := newRig(t, d, redactBy(hook))
		r.poison("mail", "smtp said 550", "m1", "m2", "m3", "m4")
		ref := r.ref("mail", "m1")
		looks := func(page string) int64 {
			before := queries.Load()
			require.Contains(t, r.page(page), "smtp said #")
			return queries.Load() - before
		}
		require.NotZero(t, looks("failures"))
		require.Zero(t, looks("failures"), "what was found just now is shown again")
		require.Zero(t, looks("failures?part=live"))
		require.NotZero(t, looks("failures?handler=mail"), "another filter is another question")
		require.Equal(t, http.StatusSeeOther, r.post("retry", url.Values{"ref": {ref}}).Status)
		require.NotZero(t, looks("failures"), "what was just done is seen at once")
	})
}

func TestSamplesAreTakenBetweenStartAndStop(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.NoError(t, r.dash.Start(t.Context()))
		require.NoError(t, r.dash.Start(t.Context()))
		require.NoError(t, r.dash.Stop(context.Background()))
		require.NoError(t, r.dash.Stop(context.Background()))
		require.NoError(t, r.dash.Start(t.Context()))
		inboxtest.Eventually(t, func() bool { return dashboard.Samples(r.dash) > 0 }, "a sample without a viewer")
	})
}
