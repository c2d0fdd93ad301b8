package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestRunningApplicationCarriesRequestsOut proves contract 11.1, with the operators' role.
func TestRunningApplicationCarriesRequestsOut(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Ops = func(o *ops.Options) { o.AllowReplay = true }
			o.Cleanup.Retention = time.Hour
		}))
		inboxtest.Accept(t, r.ib, "a", "b")
		inboxtest.Process(t, r.ib)
		inboxtest.Exec(t, d.DB, `DELETE FROM inbox_handler_statuses WHERE handler_key = ?`, fine)
		late := r.run("backfill", fine, "--from", "1h", "--dry-run", "--wait", "1ms")
		require.Equal(t, exitNotYet, late.code)
		require.Contains(t, late.errOut, "no living worker that can do it has taken it")

		inboxtest.Start(t, r.ib)
		require.Equal(t, "added 2, skipped 0\n", r.done("backfill", fine, "--from", "1h", "--yes").out)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, r.ib) }, "the backfilled to complete")
		require.Equal(t, exitMisuse, r.run("backfill", fine, "--yes").code, "since when")

		file := filepath.Join(t.TempDir(), "fixed.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"fixed":true}`), 0o600))
		require.Equal(t, exitRefused, r.answer("no\n", "replay", "a", "--content", file).code)
		require.Contains(t, r.done("replay", "a", "--content", file, "--id", "copy", "--yes").out, `"Outcome":"accepted"`)
		shown := r.done("show", "copy", "--show-payload").out
		require.Contains(t, shown, `{"fixed":true}`)
		again := r.run("replay", "a", "--id", "copy", "--yes")
		require.Equal(t, exitFailed, again.code)
		require.Contains(t, again.errOut, "copy")
		require.Equal(t, exitMisuse, r.run("replay", "a", "--content", file+"x").code)
		require.Equal(t, exitNotFound, r.run("replay", "unknown", "--yes").code)

		out := r.done("cleanup", "--application", "--yes")
		require.Contains(t, out.out, "deleted 0 statuses")
		require.Equal(t, exitMisuse, r.run("cleanup", "--application", "--retention", "1h").code)
		require.Equal(t, exitMisuse, r.run("cleanup", "--retention", "1h", "--wait", "1m").code)
		require.Contains(t, r.audit(), "alice cleanup inbox")
	})
}

// TestCancelEndsARunningCall proves contract 11.1.
func TestCancelEndsARunningCall(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began := make(chan struct{}, 10)
		r := newRig(t, d, inboxtest.Brisk(), inbox.Channel("slow", inbox.On("slow", inboxtest.Do("slow",
			func(ctx context.Context, _ inboxtest.Bytes) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}))))
		inboxtest.Start(t, r.ib)
		m := inboxtest.Message("a")
		m.Channel, m.Type = "slow", "slow"
		_, err := r.ib.Accept(t.Context(), m)
		require.NoError(t, err)
		inboxtest.Receive(t, began, "the call")
		out := r.answer("no\n", "cancel", "a", "--handler", "slow")
		require.Equal(t, exitRefused, out.code)
		require.Contains(t, out.errOut, "slow of message a is processing. Cancel its call")
		var ended struct {
			ID, Kind, TakenBy string
			Result            struct{ Cancelled bool }
		}
		r.done("cancel", "a", "--handler", "slow", "--yes", "-o", "json").json(&ended)
		require.True(t, ended.Result.Cancelled)
		require.Contains(t, r.done("request", ended.ID).out, "cancel slow")
		inboxtest.Eventually(t, func() bool {
			s := inboxtest.Status(t, r.ib, "a", "slow")
			return s.ErrorCount == 1 && *s.LastError == "cancelled by operator alice: context canceled"
		}, "the failure")
		require.Equal(t, exitNotFound, r.run("cancel", "b", "--handler", "slow", "--yes").code)
		require.Equal(t, exitMisuse, r.run("cancel", "a").code)
		require.Equal(t, exitNotFound, r.run("request", "00000000-0000-7000-8000-000000000009").code)
	})
}
