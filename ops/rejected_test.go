package ops_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func rejected(r *rig, filter ops.RejectedFilter, limit int) []int64 {
	offsets := []int64{}
	for cursor := ops.Cursor(""); ; {
		page, err := r.ops.ListRejected(r.t.Context(), filter, cursor, limit)
		require.NoError(r.t, err)
		for _, each := range page.Items {
			offsets = append(offsets, each.Offset)
		}
		if cursor = page.Next; cursor == "" {
			return offsets
		}
	}
}

func TestRejectedAreListedAndShown(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range int64(9) { // at :01, :02 and so on
			ids = append(ids, r.reject(i, fmt.Sprintf("reason %d", i), func(m *models.RejectedMessage) {
				if i%3 == 0 {
					m.Channel, m.Topic = "d", "letters"
				}
			}))
		}
		at := func(s int) time.Time { return inboxtest.Noon.Add(time.Duration(s) * time.Second) }
		for _, limit := range []int{1, 2, 100} {
			require.Equal(t, []int64{8, 7, 6, 5, 4, 3, 2, 1, 0}, rejected(r, ops.RejectedFilter{}, limit))
			require.Equal(t, []int64{6, 3, 0}, rejected(r, ops.RejectedFilter{Channel: "d"}, limit))
			require.Equal(t, []int64{6, 3, 0}, rejected(r, ops.RejectedFilter{Topic: "letters"}, limit))
			require.Equal(t, []int64{4}, rejected(r, ops.RejectedFilter{Reason: "REASON 4"}, limit))
			require.Equal(t, []int64{4, 3}, rejected(r, ops.RejectedFilter{From: at(4), To: at(6)}, limit))
		}
		shown, err := r.ops.Rejected(t.Context(), ada, ids[1])
		require.NoError(t, err)
		require.Equal(t, "k", string(shown.Key))
		require.Equal(t, `{"a":1}`, string(shown.Value))
		require.EqualValues(t, 8, shown.Size)
		require.Len(t, shown.Headers, 4)
		require.Equal(t, []any{"c", "orders", int64(1), "reason 1"},
			[]any{shown.Channel, shown.Topic, shown.Offset, shown.Reason})
		require.True(t, at(2).Equal(shown.RejectedAt))
		require.True(t, inboxtest.Noon.Equal(shown.Timestamp))
		require.Equal(t, []string{"ada view_rejected rejected message " + ids[1]}, r.audit())

		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_rejected_messages SET "key" = NULL, "value" = ?, headers = '{' WHERE id = ?`,
			[]byte{}, ids[1])
		shown, err = r.ops.Rejected(t.Context(), ada, ids[1])
		require.NoError(t, err)
		require.Nil(t, shown.Key)
		require.NotNil(t, shown.Value)
		require.NotEmpty(t, shown.HeadersProblem)
		_, err = r.ops.Rejected(t.Context(), ada, uuid.NewString())
		require.ErrorIs(t, err, ops.ErrNotFound)
	})
}

// TestRejectedRecordIsNotShownWithoutItsAuditRow proves contract 11.3.
func TestRejectedRecordIsNotShownWithoutItsAuditRow(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		id := r.reject(1, "bad")
		inboxtest.Exec(t, r.d.DB, `ALTER TABLE inbox_audit RENAME TO elsewhere`)
		shown, err := r.ops.Rejected(t.Context(), ada, id)
		require.ErrorIs(t, err, ops.ErrNotAudited)
		require.Zero(t, shown)
	})
}

// TestReAcceptAndDeleteRejected proves contract 7.4, 11.1.
func TestReAcceptAndDeleteRejected(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		good := r.reject(1, "no handler was there yet")
		bad := r.reject(2, "old reason", func(m *models.RejectedMessage) { m.Headers = "[]" })
		foreign := r.reject(3, "old reason", func(m *models.RejectedMessage) { m.Channel = "gone" })

		accepted, err := r.ops.ReAccept(t.Context(), ada, good)
		require.NoError(t, err)
		require.Equal(t, []ops.Accepted{{MessageID: "r1", Outcome: "accepted", Handlers: 2}}, accepted)
		require.Equal(t, []int64{3, 2}, rejected(r, ops.RejectedFilter{}, 10))
		r.process()
		require.Len(t, r.handled(), 2)
		_, err = r.ops.ReAccept(t.Context(), ada, good)
		require.ErrorIs(t, err, ops.ErrNotFound)

		var still *handler.StillBadError
		_, err = r.ops.ReAccept(t.Context(), ada, bad)
		require.ErrorAs(t, err, &still)
		require.NotErrorIs(t, err, ops.ErrBadInput)
		shown, err := r.ops.Rejected(t.Context(), ada, bad)
		require.NoError(t, err)
		require.NotEqual(t, "old reason", shown.Reason)
		_, err = r.ops.ReAccept(t.Context(), ada, foreign)
		require.ErrorIs(t, err, ops.ErrBadInput)

		require.ErrorIs(t, r.ops.DeleteRejected(t.Context(), ada, bad, good), ops.ErrBadInput)
		require.NoError(t, r.ops.DeleteRejected(t.Context(), ada, bad, bad))
		require.ErrorIs(t, r.ops.DeleteRejected(t.Context(), ada, bad, bad), ops.ErrNotFound)
		require.Equal(t, []int64{3}, rejected(r, ops.RejectedFilter{}, 10))
		require.Equal(t, []string{"ada re_accept rejected message " + good, "ada re_accept rejected message " + bad,
			"ada view_rejected rejected message " + bad,
			"ada delete_rejected rejected message " + bad}, r.audit())
	})
}

func TestGapsAreListed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range int64(5) {
			_, err := inboxtest.Store(t, r.d.DB).KeepGap(t.Context(), models.Gap{ID: uuid.Must(uuid.NewV7()).String(),
				Channel: "c", Topic: "orders", FromOffset: i, ToOffset: i + 10, Reason: "gone", FoundAt: r.clock.Now()})
			require.NoError(t, err)
		}
		var from []int64
		for cursor := ops.Cursor(""); ; {
			page, err := r.ops.ListGaps(t.Context(), cursor, 2)
			require.NoError(t, err)
			for _, g := range page.Items {
				require.Equal(t, g.FromOffset+10, g.ToOffset)
				require.True(t, r.clock.Now().Equal(g.FoundAt))
				from = append(from, g.FromOffset)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		require.Equal(t, []int64{4, 3, 2, 1, 0}, from)
	})
}
