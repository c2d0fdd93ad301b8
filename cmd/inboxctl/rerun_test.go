package main

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// TestRerunRunsOneHandlerAgain proves contract 11.1.
func TestRerunRunsOneHandlerAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "a")
		inboxtest.Process(t, r.ib)
		before := inboxtest.Status(t, r.ib, "a", fine)
		rerun := []string{"rerun", "a", "--handler", failing, "--reason", "the mail server lost it"}
		out := r.answer("no\n", rerun...)
		require.Equal(t, exitRefused, out.code)
		require.Contains(t, out.errOut, "orders.mail of message a is completed. What it did is done again.")
		require.NotNil(t, r.status("a").CompletedAt)
		require.Equal(t, "orders.mail of message a: made due\n", r.done(append(rerun, "--yes")...).out)
		require.Nil(t, r.status("a").CompletedAt)
		require.Equal(t, before, inboxtest.Status(t, r.ib, "a", fine), "only that handler")
		out = r.run(append(rerun, "--yes")...)
		require.Equal(t, exitRefused, out.code)
		require.Contains(t, out.errOut, "neither completed nor discarded but pending")
		inboxtest.Process(t, r.ib)
		require.Equal(t, 1, r.status("a").RequeuedCount)
		require.Equal(t, models.OutcomeProcessed, r.status("a").Outcome)
		require.Equal(t, []string{"alice rerun handler orders.mail of message a"}, r.audit())
		require.Contains(t, r.done("audit", "-o", "json").out, "the mail server lost it")

		require.Equal(t, exitMisuse, r.run("rerun", "a", "--handler", failing, "--yes").code, "without a reason")
		require.Equal(t, exitMisuse, r.run("rerun", "a", "--reason", "x").code, "without a handler")
		require.Equal(t, exitNotFound, r.run("rerun", "b", "--handler", failing, "--reason", "x", "--yes").code)
		require.Equal(t, exitNotFound, r.run("rerun", "a", "--handler", "unknown", "--reason", "x", "--yes").code)
	})
}

func TestReleaseTakesAClaimAway(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "a")
		require.Equal(t, exitRefused, r.run("release", "a", "--handler", failing, "--yes").code, "it is pending")
		worker := uuid.NewString()
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.Heartbeat(t.Context(), store.Worker{ID: worker, Host: "h", HandlerKeys: []string{failing}},
			inboxtest.Noon))
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at, worker_id = ? WHERE handler_key = ?`, worker,
			failing)
		out := r.answer("no\n", "release", "a", "--handler", failing)
		require.Equal(t, exitRefused, out.code)
		require.Contains(t, out.errOut, "by worker "+worker)
		require.Contains(t, out.errOut, "may run twice at once")
		require.Equal(t, "orders.mail of message a: released\n", r.done("release", "a", "--handler", failing, "--yes").out)
		require.Nil(t, r.status("a").WorkerID)
		require.Equal(t, 1, r.status("a").AbandonedCount)
		require.Equal(t, []string{"alice release_claim status " + r.status("a").ID}, r.audit())
	})
}
