package ops_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// overlapping is a rig with failing statuses of "mail". Two processes act on all of them at once: ada discards
// what a list by due time finds, bob retries what a list by ID finds, which is in the opposite order.
type overlapping struct {
	*rig
	n        int
	ids      []string // of the statuses of "mail", ascending
	before   map[string]models.HandlerStatus
	ada, bob <-chan overlapped
}

type overlapped struct {
	result ops.BulkResult
	err    error
}

// onOverlap begins both actions while the row in the middle is locked by the returned transaction.
func onOverlap(t *testing.T, d *inboxtest.Database, prepare func(o *overlapping)) (*overlapping, *gorm.DB) {
	o := &overlapping{rig: newRig(t, d, nil), n: 12, before: map[string]models.HandlerStatus{}}
	var messages []string
	for i := range o.n {
		messages = append(messages, fmt.Sprint(i))
		o.fail("mail", messages[i], errors.New("no such order"))
	}
	o.accept(messages...)
	o.process()
	require.NoError(t, d.DB.Raw(`SELECT id FROM inbox_handler_statuses WHERE handler_key = 'mail' ORDER BY id`).
		Scan(&o.ids).Error)
	for i, id := range o.ids { // the list by due time begins with the latest
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses
			SET next_attempt_at = next_attempt_at - make_interval(hours => ?) WHERE id = ?`, i, id)
	}
	for _, s := range inboxtest.Statuses(t, o.ib) {
		o.before[s.ID] = s
	}
	failing := ops.Filter{HandlerKeys: []string{"mail"}, States: []ops.State{ops.StateFailing}}
	group := failing
	failures, err := o.ops.Failures(t.Context(), ops.Filter{})
	require.NoError(t, err)
	require.Len(t, failures.Groups, 1)
	group.Fingerprint = failures.Groups[0].Fingerprint
	if prepare != nil {
		prepare(o)
	}
	middle := d.Another(t).Begin()
	require.NoError(t, middle.Error)
	t.Cleanup(func() { middle.Rollback() })
	inboxtest.Exec(t, middle, `SELECT FROM inbox_handler_statuses WHERE id = ? FOR UPDATE`, o.ids[o.n/2])
	begin := func(act func(*ops.Ops) (ops.BulkResult, error), name string, waiting int) <-chan overlapped {
		process, err := ops.New(testenv.OpenPostgres(t, d.DSN()+"&application_name="+name), patient)
		require.NoError(t, err)
		done := make(chan overlapped, 1)
		go func() {
			result, err := act(process)
			done <- overlapped{result, err}
		}()
		inboxtest.Eventually(t, func() bool { return len(o.waiting()) == waiting }, name+" waits for a row")
		return done
	}
	o.ada = begin(func(process *ops.Ops) (ops.BulkResult, error) {
		return process.DiscardMatching(t.Context(), "ada", failing, ops.Bulk{})
	}, "ada", 1)
	o.bob = begin(func(process *ops.Ops) (ops.BulkResult, error) {
		return process.RetryMatching(t.Context(), "bob", group, ops.Bulk{})
	}, "bob", 2)
	return o, middle
}

// waiting returns for the end of whose transaction each process waits, and that it is behind another one in the
// queue for the same row.
func (o *overlapping) waiting() map[string]string {
	o.t.Helper()
	var rows []struct{ Who, Whom string }
	require.NoError(o.t, o.d.DB.Raw(`SELECT a.application_name AS who,
			CASE a.wait_event WHEN 'tuple' THEN 'behind ' ELSE '' END || b.application_name AS whom FROM pg_stat_activity a
		JOIN pg_stat_activity b ON b.pid = ANY (pg_blocking_pids(a.pid))
		WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'`).Scan(&rows).Error)
	whom := map[string]string{}
	for _, r := range rows {
		whom[r.Who] = r.Whom
	}
	return whom
}

// requireEachOnce requires that both actions succeed, and that each row was changed once, by whom the audit names.
func (o *overlapping) requireEachOnce() {
	o.t.Helper()
	ada, bob := inboxtest.Receive(o.t, o.ada, "ada's action"), inboxtest.Receive(o.t, o.bob, "bob's action")
	require.NoError(o.t, ada.err)
	require.NoError(o.t, bob.err)
	require.EqualValues(o.t, o.n, ada.result.Done+bob.result.Done)
	audited := map[string]string{}
	page, err := o.ops.Audit(o.t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
	require.NoError(o.t, err)
	for _, entry := range page.Items {
		var detail struct {
			Statuses []string `json:"status_ids"`
		}
		require.NoError(o.t, json.Unmarshal([]byte(entry.Detail), &detail))
		for _, id := range detail.Statuses {
			require.Empty(o.t, audited[id], "twice")
			audited[id] = fmt.Sprint(entry.Actor, " ", entry.Action)
		}
	}
	require.Len(o.t, audited, o.n)
	for _, s := range inboxtest.Statuses(o.t, o.ib) {
		before := o.before[s.ID]
		switch audited[s.ID] {
		case "ada discard":
			require.Equal(o.t, models.OutcomeDiscarded, s.Outcome)
			require.Equal(o.t, before.Version+1, s.Version)
		case "bob retry":
			require.Equal(o.t, before.RequeuedCount+1, s.RequeuedCount)
			require.Nil(o.t, s.CompletedAt)
			require.Equal(o.t, before.Version+1, s.Version)
		default:
			require.Equal(o.t, before, s)
		}
	}
}

// TestBulkActionsLockTheSameRowsInOneOrder proves contract 11.1: two actions that find the same statuses in
// opposite orders wait for each other instead of ending in a deadlock.
func TestBulkActionsLockTheSameRowsInOneOrder(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		o, middle := onOverlap(t, d, nil)
		require.Equal(t, "ada", o.waiting()["bob"], "for the first row, not for the one in the middle")
		require.NoError(t, middle.Commit().Error)
		o.requireEachOnce()
	})
}

// TestDeadlockedBulkActionIsRetried proves contract 11.1. A trigger makes bob lock first what
// ada has not locked yet.
func TestDeadlockedBulkActionIsRetried(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		o, middle := onOverlap(t, d, func(*overlapping) {
			inboxtest.Exec(t, d.DB, `CREATE FUNCTION last_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF current_setting('application_name') = 'bob' THEN
					PERFORM FROM inbox_handler_statuses WHERE handler_key = 'mail' FOR UPDATE SKIP LOCKED;
				END IF;
				RETURN NULL;
			END $$`)
			inboxtest.Exec(t, d.DB, `CREATE TRIGGER last_first BEFORE UPDATE ON inbox_handler_statuses
				EXECUTE FUNCTION last_first()`)
		})
		require.NoError(t, middle.Commit().Error)
		o.requireEachOnce()
		inboxtest.Eventually(t, func() bool {
			var deadlocks int
			require.NoError(t, d.DB.Raw(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).
				Scan(&deadlocks).Error)
			return deadlocks > 0
		}, "the server has counted a deadlock")
	})
}
