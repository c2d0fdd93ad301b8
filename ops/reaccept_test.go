package ops_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// withoutHeaders makes a rejected record one of which no message can be made.
func withoutHeaders(m *models.RejectedMessage) { m.Headers = "[]" }

// TestMatchingRejectedRecordsAreReAcceptedAfterADryRun proves contract 11.1: each is taken once, and
// one that is still bad does not keep the others from being accepted.
func TestMatchingRejectedRecordsAreReAcceptedAfterADryRun(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const n = 25
		for i := range int64(n) {
			r.reject(i, fmt.Sprintf("Old reason %d", i), func(m *models.RejectedMessage) {
				switch i % 5 {
				case 1:
					withoutHeaders(m)
				case 2:
					m.Channel = "gone"
				case 3:
					m.Topic, m.Partition = "letters", 7
				}
			})
		}
		r.reject(n, "unlike the others")
		r.accept("r0")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_messages SET source = '/s'`)
		filter := ops.RejectedFilter{Reason: "OLD REASON"}
		before := r.rows()
		counted, err := r.ops.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ops.BulkResult{Matched: ops.Count{N: n}}, counted)
		require.Equal(t, before, r.rows())

		var reported []ops.BulkResult
		result, err := r.ops.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 10, Max: n,
			Progress: func(b ops.BulkResult) { reported = append(reported, b) }})
		require.NoError(t, err)
		require.Equal(t, []int64{15, 1, 5, 5}, []int64{result.Done, result.Duplicates, result.StillBad, result.Skipped})
		require.False(t, result.More)
		require.Len(t, reported, 3)
		require.EqualValues(t, 10, reported[0].Done+reported[0].StillBad+reported[0].Skipped)
		require.Len(t, result.Reasons, 2, "%v", result.Reasons)
		for _, each := range result.Reasons {
			require.EqualValues(t, 5, each.N)
		}
		require.Equal(t, []int64{25, 22, 21, 17, 16, 12, 11, 7, 6, 2, 1}, rejected(r, ops.RejectedFilter{}, 100))
		require.Equal(t, []int64{22, 17, 12, 7, 2}, rejected(r, ops.RejectedFilter{Reason: "old reason"}, 100),
			"the others have their new reason")

		// Each has an audit row, as have the count and the end.
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Actor: ada, Action: ops.ActionReAccept}, "", 100)
		require.NoError(t, err)
		require.Len(t, page.Items, 1+15+5+1)
		var end struct {
			Event               string
			Filter              ops.RejectedFilter
			Done                int64
			Duplicates, Skipped int64
			StillBad            int64 `json:"still_bad"`
		}
		require.NoError(t, json.Unmarshal([]byte(page.Items[0].Detail), &end))
		require.Equal(t, []any{"ended", "OLD REASON", int64(15), int64(1), int64(5), int64(5)},
			[]any{end.Event, end.Filter.Reason, end.Done, end.Duplicates, end.StillBad, end.Skipped})
		require.Equal(t, "matching rejected messages", page.Items[0].Target)
	})
}

// TestReAcceptKeepsTheOrderOfRejection proves contract 11.1: messages of one lane
// keep their order.
func TestReAcceptKeepsTheOrderOfRejection(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range int64(5) {
			r.reject(i, "bad")
		}
		_, err := r.ops.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{ChunkSize: 2})
		require.NoError(t, err)
		var ids []string
		require.NoError(t, r.d.DB.Model(&models.Message{}).Order("number").Pluck("id", &ids).Error)
		require.Equal(t, []string{"r0", "r1", "r2", "r3", "r4"}, ids)
	})
}

func TestReAcceptTakesNoMoreThanWasConfirmed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range int64(8) {
			r.reject(i, "bad", func(m *models.RejectedMessage) {
				if i == 1 {
					withoutHeaders(m)
				}
			})
		}
		filter := ops.RejectedFilter{Channel: "c"}
		result, err := r.ops.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 2, Max: 5})
		require.NoError(t, err)
		require.Equal(t, []any{int64(4), int64(1), true}, []any{result.Done, result.StillBad, result.More})
		require.Equal(t, []int64{7, 6, 5, 1}, rejected(r, filter, 10))
	})
}

// TestReAcceptLeavesOutNewlyRejectedRecords proves that the action ends although records are
// rejected all the time.
func TestReAcceptLeavesOutNewlyRejectedRecords(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range int64(4) {
			r.reject(i, "bad", withoutHeaders)
		}
		late := int64(4)
		result, err := r.ops.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Topic: "orders"}, ops.Bulk{ChunkSize: 1,
			Progress: func(ops.BulkResult) {
				r.reject(late, "bad", withoutHeaders)
				late++
			}})
		require.NoError(t, err)
		require.EqualValues(t, 4, result.StillBad)
	})
}

func TestReAcceptEndsBetweenRecordsAndReportsProgress(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for i := range int64(6) {
			r.reject(i, "bad")
		}
		filter := ops.RejectedFilter{Channel: "c"}
		ctx, cancel := context.WithCancel(t.Context())
		result, err := r.ops.ReAcceptMatching(ctx, ada, filter, ops.Bulk{ChunkSize: 2, Progress: func(ops.BulkResult) {
			cancel()
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 2, result.Done)
		require.Len(t, rejected(r, filter, 10), 4)
		require.Len(t, r.audit(), 2+1, "two records and the end")

		result, err = r.ops.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 2, Progress: func(ops.BulkResult) {
			inboxtest.Exec(t, r.d.DB, `ALTER TABLE inbox_audit RENAME TO elsewhere`)
		}})
		require.ErrorIs(t, err, ops.ErrNotAudited)
		require.EqualValues(t, 2, result.Done)
		require.Len(t, rejected(r, filter, 10), 2, "nothing is done without its audit row")
	})
}

// TestReAcceptSkipsARecordThatTimesOut proves contract 11.1: those after it are accepted, and only the end of
// the caller's own context ends the action.
func TestReAcceptSkipsARecordThatTimesOut(t *testing.T) {
	testenv.Long(t)
	onEach(t, func(t *testing.T, r *rig) {
		hang := []string{`CREATE VIEW endless AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c`,
			`CREATE TRIGGER hang BEFORE INSERT ON inbox_messages WHEN NEW.id = 'r1' BEGIN SELECT count(*) FROM endless; END`}
		if r.d.Dialect == "postgres" {
			hang = []string{
				`CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); RETURN NEW; END'`,
				`CREATE TRIGGER hang BEFORE INSERT ON inbox_messages FOR EACH ROW WHEN (NEW.id = 'r1') EXECUTE FUNCTION hang()`}
		}
		if r.d.Dialect == "mysql" {
			hang = []string{`CREATE TRIGGER hang BEFORE INSERT ON inbox_messages FOR EACH ROW SET @hang = CASE WHEN NEW.id = 'r1' THEN SLEEP(3600) END`}
		}
		for _, statement := range hang {
			inboxtest.Exec(t, r.d.DB, statement)
		}
		for i := range int64(3) {
			r.reject(i, "bad")
		}
		hasty := inboxtest.New(t, r.d.AsApplication(t), inbox.Configure(func(o *inbox.Options) {
			o.Clock = r.clock
			o.Processor.StatementTimeout = 2 * time.Second
		}), inbox.Channel("c", inbox.On("t", inboxtest.Do("mail", inboxtest.Nothing))))
		o, err := hasty.Ops(patient)
		require.NoError(t, err)
		filter := ops.RejectedFilter{Channel: "c"}
		result, err := o.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{})
		require.NoError(t, err)
		require.Equal(t, []int64{2, 1}, []int64{result.Done, result.Skipped})
		require.Len(t, result.Reasons, 1)
		require.Equal(t, []int64{1}, rejected(r, filter, 10), "it stays")
		require.Len(t, r.audit(), 3+1, "each record and the end")

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		result, err = o.ReAcceptMatching(ctx, ada, filter, ops.Bulk{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, result.Skipped)
	})
}

func TestReAcceptAllRefusesBadInputAndNeedsTheApplication(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		partition, negative := int32(3), int32(-1)
		for name, filter := range map[string]ops.RejectedFilter{
			"takes every": {}, "without a topic": {Partition: &partition},
			"must be 0 or more": {Topic: "t", Partition: &negative},
			"is not before":     {From: inboxtest.Noon.Add(time.Hour), To: inboxtest.Noon},
		} {
			_, err := r.ops.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{})
			require.ErrorIs(t, err, ops.ErrBadInput, name)
			require.ErrorContains(t, err, name)
		}
		_, err := r.ops.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{Max: -1})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.ReAcceptMatching(t.Context(), "", ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.Empty(t, r.audit())

		alone, err := ops.New(r.d.DB)
		require.NoError(t, err)
		r.reject(1, "bad")
		_, err = alone.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		counted, err := alone.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c",
			To: r.clock.Now().Add(time.Second)}, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, counted.Matched.N)
	})
}

// TestReasonsOfRejectedAreBoundedAndRedacted proves contract 11.1, 11.6.
func TestReasonsOfRejectedAreBoundedAndRedacted(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *ops.Options) {
			o.Redact = func(v redact.Value) []byte { return bytes.ReplaceAll(v.Bytes, []byte("secret"), []byte("[hidden]")) }
		})
		for i := range int64(30) {
			r.reject(i, "bad", func(m *models.RejectedMessage) {
				m.Headers = fmt.Sprintf(`[{"k":"content-type","v":"application/cloudevents+secret%c"}]`, 'a'+i)
			})
		}
		result, err := r.ops.ReAcceptMatching(t.Context(), ada, ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 30, result.StillBad)
		require.LessOrEqual(t, len(result.Reasons), 20)
		require.NotContains(t, fmt.Sprint(result.Reasons), "secret")
	})
}
