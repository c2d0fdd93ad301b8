package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// removed stores the progress of a topic that no worker has declared for an hour.
func (r *rig) removed() {
	r.t.Helper()
	at := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	require.NoError(r.t, inboxtest.Store(r.t, r.ib.DB()).RecordProgress(r.t.Context(), []models.Partition{
		{Channel: "c", GroupID: "g", Topic: "removed", CaughtUpAt: &at}}, nil, at))
}

func TestProgressListsAndForgetsRemovedTopics(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.Contains(t, r.done("progress").out, "No topics")
		st, now := inboxtest.Store(t, r.ib.DB()), time.Now().UTC().Truncate(time.Second)
		r.removed()
		require.NoError(t, st.RecordProgress(t.Context(), []models.Partition{{Channel: "c", GroupID: "g", Topic: "orders",
			CaughtUpAt: &now}}, nil, now))
		out := r.done("progress").out
		require.Contains(t, out, "no worker has declared it since")
		out = r.done("consumers").out
		require.Contains(t, out, "forget-topic CHANNEL GROUP TOPIC")
		require.NotContains(t, out, "orders", "it holds nothing back")
		require.Equal(t, exitMisuse, r.run("forget-topic", "c", "g").code)
		require.Equal(t, exitRefused, r.answer("no\n", "forget-topic", "c", "g", "removed").code)
		require.Equal(t, exitRefused, r.run("forget-topic", "c", "g", "orders", "--yes").code)
		require.Equal(t, exitNotFound, r.run("forget-topic", "c", "g", "other", "--yes").code)
		require.Equal(t, "forgot topic removed\n", r.answer("yes\n", "forget-topic", "c", "g", "removed").out)
		require.NotContains(t, r.done("consumers").out, "forget-topic")
		require.NotContains(t, r.done("progress", "-o", "json").out, `"topic": "removed"`)
		require.Equal(t, []string{"alice forget_topic topic removed of channel c in group g"}, r.audit())
	})
}
