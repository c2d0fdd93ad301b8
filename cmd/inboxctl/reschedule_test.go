package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// acceptLater accepts messages that do not run before a time.
func (r *rig) acceptLater(at time.Time, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.NotBefore = at
		_, err := r.ib.Accept(r.t.Context(), m)
		require.NoError(r.t, err)
	}
}

// TestTimesOfStatusesAreShownAndChanged proves contract 4.8, 11.1.
func TestTimesOfStatusesAreShownAndChanged(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		at := time.Now().Add(49 * time.Hour).UTC().Truncate(time.Second)
		text := instant(at)
		r.acceptLater(at, "a", "b")
		require.Equal(t, 4, strings.Count(r.done("list").out, "pending (not before "+text+")"))
		shown := r.done("show", "a").out
		require.Contains(t, shown, "  not before   "+text+", in 2d0")
		require.NotContains(t, shown, "next attempt")
		require.Regexp(t, failing+" +2 +0 ", r.done("status").out, "pending, and not due")

		id := r.status("a").ID
		require.Equal(t, "rescheduled "+id+"\n", r.done("reschedule", id, "--at", "2d").out)
		require.WithinDuration(t, time.Now().AddDate(0, 0, 2), *r.status("a").NextAttemptAt, time.Minute)
		r.done("reschedule", id, "--at", "90m")
		require.WithinDuration(t, time.Now().Add(90*time.Minute), *r.status("a").NextAttemptAt, time.Minute)
		r.done("reschedule", id, "--at", text)
		require.Equal(t, at, r.status("a").NextAttemptAt.UTC())
		r.done("reschedule", "a", "--at", "now", "--yes") // both handlers
		require.Equal(t, 2, inboxtest.Process(t, r.ib).Completed)

		out := r.done("reschedule", "--matching", "--handler", failing, "--at", "now", "--yes")
		require.Equal(t, "rescheduled 1, skipped 0\n", out.out)
		require.Contains(t, out.errOut, "Statuses that match (pending): 1")
		require.Equal(t, 1, inboxtest.Process(t, r.ib).Completed)
		require.Equal(t, "alice reschedule matching statuses", r.audit()[len(r.audit())-1])
		require.Contains(t, r.done("audit").out, "not before now")
	})
}

func TestRescheduleSaysWhyItDoesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a")
		before := r.status("a")
		for args, want := range map[string]int{
			before.ID + " --at now":                            exitRefused,
			"a --at now --yes":                                 exitRefused,
			before.ID:                                          exitMisuse,
			before.ID + " --at tomorrow":                       exitMisuse,
			before.ID + " --at -1h":                            exitMisuse,
			"--matching --at now":                              exitMisuse,
			"--matching --handler x --state pending":           exitMisuse,
			"--matching --handler x --state poisoned --at now": exitMisuse,
			before.ID + " --at 2100-01-01":                     exitMisuse,
			"0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --at now":    exitNotFound,
		} {
			out := r.run(append([]string{"reschedule"}, strings.Fields(args)...)...)
			require.Equal(t, want, out.code, "%s: %s", args, out.errOut)
			require.Empty(t, out.out)
		}
		require.Equal(t, before, r.status("a"))
		require.Contains(t, r.run("reschedule", "a", "--at", "now").errOut,
			"not pending: none of its statuses is pending or failing")
		require.Contains(t, r.run("reschedule", before.ID, "--at", "now").errOut, "not pending but poisoned: retry it")
		require.Empty(t, r.audit())
	})
}
