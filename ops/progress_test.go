package ops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// reads stores what the partitions of a topic have caught up to, as a consumer does; the zero time is
// never. The first moment is that of the topic itself.
func (r *rig) reads(topic string, caughtUp ...time.Time) {
	r.t.Helper()
	var rows []models.Partition
	for i, at := range caughtUp {
		p := models.Partition{Channel: "c", GroupID: "g", Topic: topic, Partition: int32(i - 1)}
		if !at.IsZero() {
			p.CaughtUpAt = &at
		}
		rows = append(rows, p)
	}
	require.NoError(r.t, inboxtest.Store(r.t, r.d.DB).RecordProgress(r.t.Context(), rows, nil, r.clock.Now()))
}

// removed stores the progress of a topic that no worker declares.
func (r *rig) removed() {
	r.t.Helper()
	r.reads("removed", inboxtest.Noon.Add(-time.Hour))
	inboxtest.Exec(r.t, r.d.DB, `UPDATE inbox_partitions SET declared_at = ?`, inboxtest.Noon.Add(-24*time.Hour))
}

// TestRemovedTopicIsListedAndForgotten proves contract 6.5 and 11.1: operators see what cleanup waits
// for, and end waiting for what was removed.
func TestRemovedTopicIsListedAndForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		noon := inboxtest.Noon
		r.reads("removed", noon, noon.Add(-time.Hour), noon)
		r.clock.Advance(15 * time.Minute)
		now := r.clock.Now()
		r.reads("new", now, now, time.Time{})
		r.reads("orders", now, now)
		topics, err := r.ops.Progress(t.Context())
		require.NoError(t, err)
		require.Equal(t, []ops.TopicProgress{
			{Channel: "c", GroupID: "g", Topic: "new", Partitions: 2, Unread: 1, DeclaredAt: now,
				Obstacle: "1 of its partitions have never been read to the end"},
			{Channel: "c", GroupID: "g", Topic: "removed", Partitions: 2, CaughtUpAt: noon.Add(-time.Hour), DeclaredAt: noon,
				Removed: true, UndeclaredFor: 15 * time.Minute, Obstacle: "it is read up to what it held at " +
					"2026-01-01T11:00:00Z, and no worker has declared it since 2026-01-01T12:00:00Z"},
			{Channel: "c", GroupID: "g", Topic: "orders", Partitions: 1, CaughtUpAt: now, DeclaredAt: now},
		}, topics)

		forget := func(topic string) error {
			return r.ops.ForgetTopic(t.Context(), ada, ops.TopicRef{Channel: "c", GroupID: "g", Topic: topic})
		}
		require.ErrorIs(t, forget("orders"), ops.ErrStillDeclared)
		require.ErrorIs(t, forget("nothing"), ops.ErrNotFound)
		require.ErrorIs(t, forget(""), ops.ErrBadInput)
		require.Empty(t, r.audit())
		require.NoError(t, forget("removed"))
		require.Equal(t, []string{"ada forget_topic topic removed of channel c in group g"}, r.audit())
		topics, err = r.ops.Progress(t.Context())
		require.NoError(t, err)
		require.Len(t, topics, 2)
	})
}
