package ops_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// external returns an Ops as inboxctl has it, which has the tables only.
func (r *rig) external() *ops.Ops {
	r.t.Helper()
	o, err := ops.New(r.d.DB, patient, func(o *ops.Options) { o.Clock = r.clock })
	require.NoError(r.t, err)
	return o
}

// reAccepted returns the details of the audit rows of accepting again, the first one first.
func (r *rig) reAccepted() (details []string) {
	r.t.Helper()
	page, err := r.ops.Audit(r.t.Context(), ops.AuditFilter{Action: ops.ActionReAccept}, "", ops.MaxLimit)
	require.NoError(r.t, err)
	for i := range page.Items {
		e := page.Items[len(page.Items)-1-i]
		require.Equal(r.t, ada, e.Actor)
		details = append(details, e.Detail)
	}
	return details
}

// TestReAcceptRequestIsCarriedOutOnce proves contract 11.1.
func TestReAcceptRequestIsCarriedOutOnce(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		asking := r.external()
		good, bad := r.reject(0, "old"), r.reject(1, "old", withoutHeaders)
		other := r.reject(2, "old", func(m *models.RejectedMessage) { m.Channel = "other" })
		require.ErrorIs(t, asking.RequestReAccept(t.Context(), ada, "00000000-0000-7000-8000-000000000009"), ops.ErrNotFound)
		require.ErrorIs(t, asking.RequestReAccept(t.Context(), ada, "x"), ops.ErrBadInput)
		for _, id := range []string{good, bad, other} {
			require.NoError(t, asking.RequestReAccept(t.Context(), ada, id))
		}
		require.Len(t, rejected(r, ops.RejectedFilter{}, 10), 3, "asking does nothing")

		r.clock.Advance(time.Second) // audit rows are ordered by their time
		var programs sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs { // replicas poll at the same moment
			programs.Go(func() { errs[i] = r.ops.ReAcceptRequested(t.Context(), []string{"c"}) })
		}
		programs.Wait()
		require.Equal(t, make([]error, 4), errs)
		require.Equal(t, []int64{2, 1}, rejected(r, ops.RejectedFilter{}, 10))
		require.Equal(t, []int64{2}, rejected(r, ops.RejectedFilter{Reason: "old"}, 10), "the bad one has its new reason")
		require.Equal(t, 1, inboxtest.CountMessages(t, r.ib))
		const requested, accepted = `{"event":"requested"}`, `{}`
		require.Equal(t, []string{requested, requested, requested, accepted, accepted}, r.reAccepted())

		require.NoError(t, r.ops.ReAcceptRequested(t.Context(), []string{"c"}))
		require.Len(t, r.reAccepted(), 5, "a request is carried out once")
		r.clock.Advance(time.Second)
		require.NoError(t, r.ops.ReAcceptRequested(t.Context(), []string{"other"}))
		require.Contains(t, r.reAccepted()[5], `"event":"not accepted"`)
		require.NoError(t, asking.RequestReAccept(t.Context(), ada, bad))
		r.clock.Advance(time.Hour + time.Second)
		require.NoError(t, r.ops.ReAcceptRequested(t.Context(), []string{"c"}))
		require.Len(t, r.reAccepted(), 7, "it has expired")
	})
}

// TestWrongClockDoesNotExpireARequestEarly proves contract 3.5.
func TestWrongClockDoesNotExpireARequestEarly(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // a SQLite file is on one machine
		r := newRig(t, d, func(o *ops.Options) { o.Clock = clock.System{} })
		asking, err := ops.New(d.DB, patient, func(o *ops.Options) { o.Clock = clock.Offset(-2 * time.Hour) })
		require.NoError(t, err)
		require.NoError(t, asking.RequestReAccept(t.Context(), ada, r.reject(0, "old")))
		require.NoError(t, r.ops.ReAcceptRequested(t.Context(), []string{"c"}))
		require.Empty(t, rejected(r, ops.RejectedFilter{}, 10))
	})
}

// TestMatchingRejectedRecordsAreRequestedAfterADryRun proves contract 11.1 for a program that has the tables only.
func TestMatchingRejectedRecordsAreRequestedAfterADryRun(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		asking := r.external()
		for i := range int64(7) {
			r.reject(i, fmt.Sprintf("old %d", i))
		}
		r.reject(7, "unlike the others")
		filter := ops.RejectedFilter{Reason: "old"}
		_, err := asking.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		before := r.rows()
		counted, err := asking.RequestReAcceptMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.BulkResult{Matched: ops.Count{N: 7}}, counted)
		require.Equal(t, before, r.rows())
		result, err := asking.RequestReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 3, Max: 6})
		require.NoError(t, err)
		require.Equal(t, []any{int64(6), int64(0), true}, []any{result.Done, result.Duplicates, result.More})
		require.NoError(t, r.ops.ReAcceptRequested(t.Context(), []string{"c"}))
		require.Equal(t, []int64{7, 6}, rejected(r, ops.RejectedFilter{}, 10))
	})
}
