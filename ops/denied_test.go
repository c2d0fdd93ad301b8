package ops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestDeniedRequestsAreAuditedAndDoNotFillTheTable proves contract 11.3.
func TestDeniedRequestsAreAuditedAndDoNotFillTheTable(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		began := r.clock.Now()
		ended, cancel := context.WithCancel(t.Context())
		cancel() // a client that hangs up is noted all the same
		for range 120 {
			require.NoError(t, r.ops.Denied(ended, ada, "POST delete"))
		}
		require.NoError(t, r.ops.Denied(t.Context(), ada, "GET audit"))
		require.NoError(t, r.ops.Denied(t.Context(), "", "POST delete"))
		require.Equal(t, []string{"ada denied POST delete", "ada denied POST delete", "ada denied POST delete",
			"ada denied GET audit", "(unknown) denied POST delete"}, r.audit())
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Actor: ada, Action: "denied", Target: "POST delete"},
			"", 0)
		require.NoError(t, err)
		counts := []int64{}
		for _, entry := range page.Items {
			var detail struct {
				Requests int64     `json:"requests"`
				Since    time.Time `json:"since"`
			}
			require.NoError(t, json.Unmarshal([]byte(entry.Detail), &detail))
			require.True(t, began.Equal(detail.Since))
			counts = append(counts, detail.Requests)
		}
		require.Equal(t, []int64{100, 10, 1}, counts)

		r.clock.Advance(10 * time.Minute)
		require.NoError(t, r.ops.Denied(t.Context(), ada, "POST delete"))
		require.Len(t, r.audit(), 6, "after a while they are counted again")
		for _, target := range []string{"", strings.Repeat("x", 501), "a\x00"} {
			require.ErrorIs(t, r.ops.Denied(t.Context(), ada, target), ops.ErrBadInput)
		}
	})
}

func TestDisabledReplayIsDenied(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		for range 3 {
			_, err := r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{})
			require.ErrorIs(t, err, ops.ErrReplayOff)
		}
		require.Equal(t, []string{"ada denied replay"}, r.audit())
	})
}

// TestAuditShowsTheDatabaseRole proves that the row has the role of its writer's login, whatever
// the actor is.
func TestAuditShowsTheDatabaseRole(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		_, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		role := ""
		switch r.d.Dialect {
		case "postgres":
			require.NoError(t, r.ib.DB().Raw("SELECT session_user").Scan(&role).Error)
			require.Contains(t, role, "inbox_test_")
		case "mysql":
			require.NoError(t, r.ib.DB().Raw("SELECT substring_index(user(), '@', 1)").Scan(&role).Error)
			require.NotEmpty(t, role)
		}
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{}, "", 0)
		require.NoError(t, err)
		require.Equal(t, role, page.Items[0].DatabaseRole)
	})
}

// TestDryRunsAndEndsOfBulkActionsAreAudited proves contract 11.3.
func TestDryRunsAndEndsOfBulkActionsAreAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		poisonMany(r, 10)
		filter := ops.Filter{HandlerKeys: []string{"mail"}}
		details := func() (all []string) {
			page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Target: "matching statuses"}, "", 0)
			require.NoError(t, err)
			for _, entry := range page.Items {
				var detail map[string]any
				require.NoError(t, json.Unmarshal([]byte(entry.Detail), &detail))
				if detail["event"] != nil {
					delete(detail, "filter")
					all = append(all, fmt.Sprint(entry.Action, " ", detail))
				}
			}
			return all
		}
		counted, err := r.ops.RetryMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 10, counted.Matched.N)
		require.Equal(t, []string{"retry map[capped:false event:counted matched:10]"}, details())

		ctx, cancel := context.WithCancel(t.Context())
		_, err = r.ops.RetryMatching(ctx, ada, filter, ops.Bulk{ChunkSize: 3, Progress: func(ops.BulkResult) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, "retry map[done:3 error:context canceled event:ended more:false skipped:0]", details()[0])
		_, err = r.ops.DiscardMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 3, Max: 4})
		require.NoError(t, err)
		require.Equal(t, "discard map[done:4 event:ended more:true skipped:0]", details()[0])
		require.Len(t, details(), 3)

		inboxtest.Exec(t, r.d.DB, `ALTER TABLE inbox_audit RENAME TO elsewhere`)
		counted, err = r.ops.RetryMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.ErrorIs(t, err, ops.ErrNotAudited)
		require.Zero(t, counted, "what is not audited is not told")
	})
}
