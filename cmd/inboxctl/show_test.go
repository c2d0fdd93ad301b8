package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func TestCommandsShowStoredData(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("user 17 is unknown", "a")
		r.poisoned("user 18 is unknown", "b")
		id := r.status("a").ID

		out := r.done("status").out
		require.Contains(t, out, `inbox          "test"`)
		require.Contains(t, out, "See why statuses are poisoned: inboxctl failures")
		require.Contains(t, out, "No worker is alive")
		overview := r.done("status", "-o", "json").object()
		require.Equal(t, "test", overview["inbox"])

		out = r.done("list", "--state", "poisoned").out
		require.Contains(t, out, id)
		require.Equal(t, 3, strings.Count(out, "\n"), out)
		require.Equal(t, "2\n", r.done("list", "--state", "poisoned", "--count").out)
		require.Equal(t, "4\n", r.done("list", "--count").out)
		require.Contains(t, r.done("list", "--state", "pending").out, "No status found.")
		require.Contains(t, r.done("list", "--message", "b", "--state", "completed", "--wide").out, fine)

		var failures struct{ Groups []ops.FailureGroup }
		r.done("failures", "-o", "json").json(&failures)
		require.Len(t, failures.Groups, 1, "they differ in a number only")
		require.EqualValues(t, 2, failures.Groups[0].Poisoned)
		require.Contains(t, r.done("failures").out, failures.Groups[0].Fingerprint)
		require.Equal(t, "2\n", r.done("list", "--fingerprint", failures.Groups[0].Fingerprint, "--count").out)
		require.Contains(t, r.done("failures", "--handler", fine).out, "No status is poisoned or failing.")

		require.Contains(t, r.done("handlers").out, failing)
		require.Contains(t, r.done("workers").out, "No workers: none has started")
		require.Contains(t, r.done("locks").out, "No lease is held")
		require.Contains(t, r.done("gaps").out, "No gaps found.")
		require.Contains(t, r.done("markers", "a").out, "No marker: not processed inline")
		require.NoError(t, r.ib.DB().Create(&models.Marker{MessageID: "m1", HandlerKey: "orders.mail", Namespace: "orders.events",
			ProcessedAt: inboxtest.Noon, ExpiresAt: inboxtest.Noon}).Error)
		require.Contains(t, r.done("markers", "m1").out, "orders.mail")
		require.Contains(t, r.done("markers", "m1", "--handler", "other").out, "No marker")
		require.Contains(t, r.done("markers", "m1", "--namespace", "orders.events", "-o", "json").out, `"orders.events"`)
		require.Contains(t, r.done("audit").out, "No audit row found")
		require.Contains(t, r.done("rejected", "list").out, "No rejected message found")
		require.Empty(t, r.audit(), "looking at lists is not audited")
	})
}

// TestPagingContinuesWithARelativePeriod checks paging with --from 1h: a cursor belongs to its filter,
// and "1h ago" is another time when the next page is requested.
func TestPagingContinuesWithARelativePeriod(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b", "c")
		for offset := range int64(3) {
			r.done("rejected", "show", r.reject(offset, nil, []byte("x")))
		}
		for _, list := range []string{"list --state poisoned --from 1h", "list --from 1h --to 0s", "list",
			"rejected list --from 1h", "audit --from 1h"} {
			seen := map[any]bool{}
			after := ""
			for pages := 0; ; pages++ {
				require.Less(t, pages, 10, list)
				page := r.done(append(strings.Fields(list), "--limit", "2", "-o", "json", "--after", after)...).object()
				for _, one := range page["items"].([]any) {
					require.False(t, seen[one.(map[string]any)["id"]], "twice")
					seen[one.(map[string]any)["id"]] = true
				}
				if after = page["next"].(string); after == "" {
					break
				}
			}
			require.GreaterOrEqual(t, len(seen), 3, list)
		}
		out := r.done("list", "--limit", "2", "--from", "1h")
		require.Contains(t, out.errOut, "There is more: continue with --after ")
		require.Equal(t, exitMisuse, r.run("list", "--after", "nonsense").code)
		require.Equal(t, exitMisuse, r.run("list", "--after", "x.y.z").code)
		require.Equal(t, exitMisuse, r.run("list", "--limit", "0").code)
		require.Equal(t, exitMisuse, r.run("list", "--limit", "1001").code)
		require.Equal(t, exitMisuse, r.run("list", "--state", "gone").code)
	})
}

// TestPayloadsAreHiddenByDefaultAndViewsAreAudited proves contract 11.3: a payload is shown
// only on request, and showing it is audited.
func TestPayloadsAreHiddenByDefaultAndViewsAreAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		m := inboxtest.Message("a")
		m.Content = []byte(`{"card": "WXYZ-1111"}`)
		m.Properties.Headers = []handler.Header{{Key: "traceparent",
			Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")}}
		_, err := r.ib.Accept(t.Context(), m)
		require.NoError(t, err)
		rejected := r.reject(1, []byte("k"), []byte("WXYZ-2222"))

		out := r.done("show", "a")
		require.NotContains(t, out.out, "WXYZ")
		require.Contains(t, out.out, "Payload of 21 bytes, hidden: add --show-payload.")
		require.Contains(t, out.out, "4bf92f3577b34da6a3ce929d0e0e4736")
		require.Contains(t, out.out, failing)
		hidden := r.done("show", "a", "-o", "json").object()
		require.Equal(t, map[string]any{"hidden": true, "size": 21.0}, hidden["content"])
		require.NotContains(t, r.done("rejected", "show", rejected).out, "WXYZ")
		require.Equal(t, map[string]any{"hidden": true, "size": 9.0},
			r.done("rejected", "show", rejected, "-o", "json").object()["value"])

		require.Contains(t, r.done("show", "a", "--show-payload").out, `  {"card": "WXYZ-1111"}`)
		require.Equal(t, map[string]any{"text": `{"card": "WXYZ-1111"}`},
			r.done("show", "a", "--show-payload", "-o", "json").object()["content"])
		require.Contains(t, r.done("rejected", "show", rejected, "--show-payload").out, "WXYZ-2222")
		require.Equal(t, []string{
			"alice view message a", "alice view message a", "alice view_rejected rejected message " + rejected,
			"alice view_rejected rejected message " + rejected,
			"alice view message a", "alice view message a", "alice view_rejected rejected message " + rejected,
		}, r.audit())
		require.Equal(t, exitNotFound, r.run("show", "nobody").code)
	})
}

func TestHostileMessagesStayText(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		hostile := strings.NewReplacer("\x00", "").Replace(evil) // no database stores NUL
		r.poisoned(hostile, hostile)
		for _, args := range [][]string{{"status"}, {"list", "--wide"}, {"failures", "--wide"},
			{"show", hostile, "--show-payload"}, {"audit"}, {"show", "not there" + hostile},
			{"delete", hostile, "--confirm", "x"}, {"pause", hostile}, {hostile}, {"list", "--state", hostile},
			{"--" + hostile}} {
			for _, format := range []string{"table", "json", "yaml"} {
				out := r.run(append(args, "-o", format)...)
				requireHarmless(t, out.out)
				requireHarmless(t, out.errOut)
			}
		}
		var page struct {
			Items []struct {
				MessageID string `json:"message_id"`
			}
		}
		r.done("list", "--state", "poisoned", "-o", "json").json(&page)
		require.Equal(t, hostile, page.Items[0].MessageID)
		r.done("delete", hostile, "--confirm", hostile)
		require.Zero(t, inboxtest.CountMessages(t, r.ib))
	})
}

func TestWorkersLeasesAndGapsAreListed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, inboxtest.Brisk())
		inboxtest.Start(t, r.ib)
		require.NoError(t, d.DB.Create(&models.Lock{Name: "cleanup", OwnerID: statusID,
			ExpiresAt: time.Now().Add(time.Hour)}).Error)
		require.NoError(t, d.DB.Create(&models.Gap{ID: statusID, Channel: "c", Topic: "orders", FromOffset: 5, ToOffset: 900,
			Reason: "removed", FoundAt: time.Now()}).Error)
		inboxtest.Eventually(t, func() bool {
			return strings.Contains(r.done("workers").out, "alive")
		}, "the worker is alive")
		require.Contains(t, r.done("workers").out, failing)
		out := r.done("status").out
		require.Contains(t, out, "workers alive  1")
		require.NotContains(t, out, "no living worker")
		require.Contains(t, out, "inboxctl gaps")
		require.Contains(t, r.done("handlers").out, fine)
		require.Contains(t, r.done("locks").out, "cleanup")
		require.Contains(t, r.done("gaps").out, "removed")
		var workers []struct {
			Alive     bool
			StartedAt time.Time `json:"started_at"`
			SilentFor float64   `json:"silent_for"`
		}
		r.done("workers", "-o", "json").json(&workers)
		require.True(t, workers[0].Alive)
		require.WithinDuration(t, time.Now(), workers[0].StartedAt, time.Minute)
		require.Less(t, workers[0].SilentFor, 30.0, "seconds")

		r.done("pause", failing) // reaches the worker with its next heartbeat
		r.done("resume", failing)
		inboxtest.Accept(t, r.ib, "a")
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, r.ib) }, "a resumed handler runs")
	})
}

// TestAuditIsExportedInFull proves contract 11.3.
func TestAuditIsExportedInFull(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		rows := make([]models.Audit, 2*exportPage+30)
		for i := range rows {
			rows[i] = models.Audit{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", i), Actor: "ada", Action: "retry",
				Target: fmt.Sprintf("status %d", i),
				Detail: `{"a":"b,\"c\""}`, OccurredAt: inboxtest.Noon, DatabaseRole: "ops"}
		}
		rows[0].Target = "message \x1b[31m,\nred"
		require.NoError(t, r.d.DB.CreateInBatches(rows, 100).Error)

		lines := splitLines(strings.TrimSpace(r.done("audit", "--export", "jsonl").out))
		require.Len(t, lines, len(rows))
		for i, line := range lines {
			var entry struct {
				ID, Actor, Target, Detail string
				DatabaseRole              string `json:"database_role"`
			}
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			row := rows[len(rows)-1-i]
			require.Equal(t, []string{row.ID, "ada", row.Target, row.Detail, "ops"},
				[]string{entry.ID, entry.Actor, entry.Target, entry.Detail, entry.DatabaseRole})
		}

		out := r.done("audit", "--export", "csv", "--by", "ada").out
		require.NotContains(t, out, "\x1b")
		records, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		require.NoError(t, err)
		require.Len(t, records, 1+len(rows))
		require.Equal(t, []string{"id", "occurred_at", "actor", "database_role", "action", "target", "detail"}, records[0])
		require.Equal(t, []string{rows[0].ID, "2026-01-01T12:00:00Z", "ada", "ops", "retry", `message \x1b[31m,\nred`,
			rows[0].Detail}, records[len(rows)])

		require.Empty(t, r.done("audit", "--export", "jsonl", "--by", "nobody").out)
		for _, args := range [][]string{{"--export", "xml"}, {"--export", "csv", "--after", "x"},
			{"--export", "csv", "-o", "json"}} {
			require.Equal(t, exitMisuse, r.run(append([]string{"audit"}, args...)...).code)
		}
	})
}

// The workers' rows are in another table than the one that is locked.
func TestStatusOfALockedTableShowsHealthAndQuestionMarks(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		require.NoError(t, inboxtest.Store(t, d.DB).Heartbeat(t.Context(), store.Worker{ID: workerID,
			HandlerKeys: []string{fine}, Health: `[{"code":"database","state":"degraded","detail":"the backlog cannot be read"}]`}, time.Now()))
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			inboxtest.Exec(t, tx, "LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE")
			out := r.run("status", "--timeout", "1s")
			require.Equal(t, exitPartly, out.code, out.errOut)
			require.Regexp(t, `(?s)workers alive  1\ndegraded +the backlog cannot be read\n.*`+fine+` +\? +\? +\? +\? +\? +\?`, out.out)
			require.Contains(t, out.errOut, "the database did not count the open statuses in time: look in pg_stat_activity")
			require.Nil(t, r.run("status", "--timeout", "1s", "-o", "json").object()["handlers"].([]any)[0].(map[string]any)["poisoned"])
			require.Contains(t, r.done("workers").out, "the backlog cannot be read")
			handlers := r.run("handlers", "--timeout", "1s")
			require.Equal(t, exitPartly, handlers.code, handlers.errOut)
			require.Regexp(t, fine+` +1 +no +unknown +\? +\? +\?`, handlers.out)
			one := r.run("handler", fine, "--timeout", "1s")
			require.Equal(t, exitPartly, one.code, one.errOut)
			require.Regexp(t, `(?s)pending +\?, of these \? due.*Workers:`, one.out)
			list := r.run("list", "--timeout", "1s")
			require.Equal(t, exitFailed, list.code)
			require.Contains(t, list.errOut, "not done within --timeout = 1s: look in pg_stat_activity")
			return nil
		}))
	})
}
