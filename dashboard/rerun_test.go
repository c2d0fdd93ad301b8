package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// addressIn returns the query of the page's link to a path.
func addressIn(t *testing.T, page, path string) url.Values {
	t.Helper()
	_, rest, found := strings.Cut(page, `href="./`+path+"?")
	require.True(t, found, "no link to %s", path)
	address, _, _ := strings.Cut(rest, `"`)
	values, err := url.ParseQuery(strings.ReplaceAll(address, "&amp;", "&"))
	require.NoError(t, err)
	return values
}

// TestOneEndedHandlerIsRunAgain proves contract 11.1.
func TestOneEndedHandlerIsRunAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		inboxtest.Accept(t, r.ib, "m1")
		require.NotContains(t, r.page("message?id=m1"), "Run again…")
		inboxtest.Process(t, r.ib)
		inboxtest.Accept(t, r.ib, "m2") // gives the page of handlers one, and a form
		at := addressIn(t, r.page("message?id=m1"), "rerun")
		asked := r.page("rerun?" + at.Encode())
		require.Contains(t, asked, "Run this handler again?")
		require.NotNil(t, inboxtest.Status(t, r.ib, "m1", "mail").CompletedAt, "asking does nothing")
		require.Equal(t, http.StatusBadRequest, r.post("rerun?"+at.Encode(), url.Values{}).Status, "without a reason")
		reason := url.Values{"reason": {"the mail server lost it"}}
		require.Contains(t, r.follow(r.post("rerun?"+at.Encode(), reason)), "Due now: the handler runs again.")
		got := r.post("rerun?"+at.Encode(), reason)
		require.Equal(t, http.StatusConflict, got.Status)
		require.Contains(t, got.Body, "Changed by someone else", "the form was sent twice")
		require.Equal(t, http.StatusBadRequest, r.post("rerun?id=m1&handler=mail&version=x", reason).Status)
		inboxtest.Process(t, r.ib)
		require.Contains(t, r.page("audit"), "the mail server lost it")
		require.Contains(t, actionsOf(r.audit()), "operator@example.org rerun handler")
		r.as(dashboard.Viewer)
		require.NotContains(t, r.page("message?id=m1"), "Run again…")
	})
}

// TestAStatusIsRescheduled proves contract 4.8, 11.1.
func TestAStatusIsRescheduled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		m := inboxtest.Message("m1")
		m.NotBefore = r.clock.Now().Add(25 * time.Hour)
		_, err := r.ib.Accept(t.Context(), m)
		require.NoError(t, err)
		require.Contains(t, r.page("messages"), "not before <time")
		page := r.page("message?id=m1")
		require.Contains(t, page, "Not before")
		require.NotContains(t, page, "Next attempt")
		at := addressIn(t, page, "reschedule")
		require.Contains(t, r.page("reschedule?"+at.Encode()), `type="datetime-local" name="at"`)
		next := r.clock.Now().AddDate(0, 0, 3).Truncate(time.Minute)
		require.Equal(t, http.StatusBadRequest, r.post("reschedule?"+at.Encode(), url.Values{"at": {"soon"}}).Status)
		form := url.Values{"at": {next.Format("2006-01-02T15:04")}}
		require.Contains(t, r.follow(r.post("reschedule?"+at.Encode(), form)), "Rescheduled: it is due at that time.")
		status := func() models.HandlerStatus { return inboxtest.Status(t, r.ib, "m1", at.Get("handler")) }
		require.Equal(t, next, status().NextAttemptAt.UTC())
		require.Equal(t, http.StatusConflict, r.post("reschedule?"+at.Encode(), form).Status, "the form was sent twice")
		at = addressIn(t, r.page("message?id=m1"), "reschedule")
		r.follow(r.post("reschedule?"+at.Encode(), url.Values{"at": {""}}))
		require.Equal(t, r.clock.Now(), status().NextAttemptAt.UTC(), "now")
		require.NotContains(t, r.page("messages"), "due <time datetime=\""+next.Format(time.RFC3339))
		require.Contains(t, actionsOf(r.audit()), "operator@example.org reschedule status")
		inboxtest.Process(t, r.ib)
		require.NotContains(t, r.page("message?id=m1"), "handler="+at.Get("handler")+"&amp;version=4", "it has ended")
		r.as(dashboard.Viewer)
		require.Equal(t, http.StatusForbidden, r.get("reschedule?"+at.Encode()).Status)
		require.NotContains(t, r.page("message?id=m1"), "Reschedule…")
	})
}

func TestAClaimIsReleased(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		inboxtest.Accept(t, r.ib, "m1")
		require.NotContains(t, r.page("message?id=m1"), "Release the claim…")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE handler_key = 'mail'`)
		at := addressIn(t, r.page("message?id=m1"), "release")
		require.Contains(t, r.page("release?"+at.Encode()), "may run twice at once")
		require.Contains(t, r.follow(r.post("release?"+at.Encode(), url.Values{})), "Released: due now.")
		require.Nil(t, inboxtest.Status(t, r.ib, "m1", "mail").ProcessingStartedAt)
		require.Equal(t, http.StatusConflict, r.post("release?"+at.Encode(), url.Values{}).Status)
		require.Contains(t, actionsOf(r.audit()), "operator@example.org release_claim status")
		r.as(dashboard.Viewer)
		require.Equal(t, http.StatusForbidden, r.get("release?"+at.Encode()).Status)
	})
}

// TestARunningCallIsCancelled proves contract 11.1: the request is stored, also if another process makes the call.
func TestARunningCallIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.as(dashboard.Operator)
		inboxtest.Accept(t, r.ib, "m1")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE handler_key = 'mail'`)
		require.NotContains(t, r.page("message?id=m1"), "Cancel the call…", "a ProcessPending makes it")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET worker_id = '00000000-0000-7000-8000-000000000001'
			WHERE handler_key = 'mail'`)
		at := addressIn(t, r.page("message?id=m1"), "cancel")
		require.Contains(t, r.page("cancel?"+at.Encode()), "Cancel this call?")
		require.Contains(t, r.follow(r.post("cancel?"+at.Encode(), url.Values{})), "Requested: its worker cancels the call")
		var asked models.Request
		require.NoError(t, r.d.DB.Take(&asked).Error)
		require.Equal(t, []string{"cancel", "mail", "operator@example.org"}, []string{asked.Kind, asked.Target, asked.Actor})
		at.Set("version", "99")
		require.Equal(t, http.StatusConflict, r.post("cancel?"+at.Encode(), url.Values{}).Status)
	})
}
