package dashboard_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// consume stores what a worker reports of its consumers.
func (r *rig) consume(consumers ...ops.Consumer) {
	r.t.Helper()
	text, err := json.Marshal(consumers)
	require.NoError(r.t, err)
	worker := store.Worker{ID: uuid.NewString(), Host: "shop-1", PID: 7, HandlerKeys: []string{"mail", "ship"},
		Health:    `[{"code":"halted_partition","state":"unhealthy","channel":"c","detail":"orders/3 is halted"}]`,
		Consumers: string(text)}
	require.NoError(r.t, inboxtest.Store(r.t, r.d.DB).Heartbeat(r.t.Context(), worker, r.clock.Now()))
	r.clock.Advance(11 * time.Second) // the navigation keeps its counts for ten
}

// halting is a consumer with partitions that halted for different reasons.
func halting() ops.Consumer {
	halted := ops.ConsumedPartition{Topic: "orders", State: "halted", Position: 7, Committed: 7, Lag: 5, Halted: true,
		Since: inboxtest.Noon}
	bad, gap, corrupt := halted, halted, halted
	bad.Partition, bad.Problem, bad.Skippable = 3, "<b>no ID</b>", true
	gap.Partition, gap.Problem, gap.AfterGap = 4, "5 records were deleted unread", true
	corrupt.Partition, corrupt.Problem = 5, "wrong checksum"
	return ops.Consumer{Channel: "c", GroupID: "fulfilment", State: "running", Since: inboxtest.Noon, Lag: 1015,
		Partitions: []ops.ConsumedPartition{bad, gap, corrupt,
			{Topic: "orders", Partition: 6, State: "fetching", Position: 20, Committed: 19, Lag: 1000}}, Unlisted: 2}
}

// TestHaltedPartitionsAreResumedAndTheirRecordsSkipped proves contract 7.10 and 11.1: the page offers
// what each halt allows, and what leaves records out is confirmed.
func TestHaltedPartitionsAreResumedAndTheirRecordsSkipped(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.Contains(t, r.page("consumers"), "No consumers.")
		r.consume(halting())
		page := r.as(dashboard.Viewer).page("consumers")
		for _, text := range []string{"&lt;b&gt;no ID&lt;/b&gt;", "fulfilment", "orders/6", "halted", "shop-1, PID 7",
			"2 more partitions are not shown"} {
			require.Contains(t, page, text)
		}
		require.NotContains(t, page, "Resume")
		require.Contains(t, page, `<span class="badge bad">1`, "in the navigation")
		overview := r.page("")
		require.Contains(t, overview, `<a class="data" href="./consumers">c</a>`)
		require.Contains(t, overview, "See the consumers")
		require.Equal(t, http.StatusForbidden, r.post("skip-record", url.Values{}).Status)

		page = r.as(dashboard.Operator).page("consumers")
		require.Contains(t, page, `action="./resume-partition?channel=c&amp;offset=7&amp;partition=3&amp;topic=orders"`)
		require.Contains(t, page, `href="./skip-record?channel=c&amp;offset=7&amp;partition=3&amp;topic=orders"`)
		require.Contains(t, page, `href="./resume-partition?channel=c&amp;offset=7&amp;partition=4&amp;topic=orders"`)
		require.NotContains(t, page, `href="./skip-record?channel=c&amp;offset=7&amp;partition=4&amp;topic=orders"`)
		at := func(partition, offset string) url.Values {
			return url.Values{"channel": {"c"}, "topic": {"orders"}, "partition": {partition}, "offset": {offset}}
		}
		require.Contains(t, r.page("skip-record?"+at("3", "7").Encode()), "Skip this record?")
		require.Contains(t, r.page("resume-partition?"+at("4", "7").Encode()), "Go on without the missing records?")
		require.Empty(t, r.requests(), "asking does nothing")

		require.Contains(t, r.follow(r.post("skip-record", at("3", "7"))), "skip requested")
		require.Equal(t, http.StatusConflict, r.post("resume-partition", at("4", "7")).Status, "not confirmed")
		gap := at("4", "7")
		gap.Set("gap", "yes")
		require.Contains(t, r.page("resume-partition?"+at("4", "7").Encode()), "gap=yes")
		require.Contains(t, r.follow(r.post("resume-partition", gap)), "Requested: the consumer resumes")
		require.Equal(t, []string{"3 skip", "4 continue"}, r.requests())
		require.Equal(t, http.StatusConflict, r.post("skip-record", at("5", "7")).Status)
		require.Contains(t, r.post("skip-record", at("5", "7")).Body, "Cannot be skipped")
		require.Equal(t, http.StatusConflict, r.post("resume-partition", at("3", "8")).Status)
		require.Equal(t, http.StatusNotFound, r.post("resume-partition", at("9", "7")).Status)
		for _, bad := range []url.Values{at("x", "7"), at("3", ""), at("-1", "7")} {
			require.Equal(t, http.StatusBadRequest, r.post("resume-partition", bad).Status)
			require.Equal(t, http.StatusBadRequest, r.post("skip-record", bad).Status)
		}
		require.Equal(t, []string{"operator@example.org skip_record partition",
			"operator@example.org resume_partition partition"}, actionsOf(r.audit())[1:])
	})
}

// requests returns the partitions and decisions of all requests.
func (r *rig) requests() (all []string) {
	r.t.Helper()
	var rows []models.PartitionRequest
	require.NoError(r.t, r.d.DB.Order("\"partition\"").Find(&rows).Error)
	for _, row := range rows {
		all = append(all, string(rune('0'+row.Partition))+" "+row.Decision)
	}
	return all
}

// TestTopicBlockingCleanupIsShownAndForgotten proves contract 6.5: what cleanup waits for is visible, and what was
// removed is released by an admin.
func TestTopicBlockingCleanupIsShownAndForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.NotContains(t, r.page("consumers"), "What cleanup waits for")
		now := r.clock.Now()
		record := func(topic string, at time.Time) {
			require.NoError(t, inboxtest.Store(t, r.d.DB).RecordProgress(t.Context(), []models.Partition{{Channel: "c",
				GroupID: "g", Topic: topic, CaughtUpAt: &at}}, nil, at))
		}
		record("removed", now.Add(-time.Hour))
		record("orders", now)
		const forget = "forget-topic?channel=c&amp;group=g&amp;topic="
		page := r.as(dashboard.Operator).page("consumers")
		require.Contains(t, page, "it is read up to what it held at 2026-01-01T11:00:00Z, and no worker has declared it")
		require.NotContains(t, page, forget)
		at := url.Values{"channel": {"c"}, "group": {"g"}, "topic": {"removed"}}
		require.Equal(t, http.StatusForbidden, r.post("forget-topic", at).Status)

		page = r.as(dashboard.Admin).page("consumers")
		require.Contains(t, page, `href="./`+forget+`removed"`)
		require.NotContains(t, page, forget+"orders")
		require.Contains(t, r.page("forget-topic?"+at.Encode()), "Forget this topic?")
		require.Contains(t, r.page("consumers"), forget, "asking does nothing")
		require.Contains(t, r.follow(r.post("forget-topic", at)), "Forgotten: cleanup no longer waits")
		require.NotContains(t, r.page("consumers"), forget)
		require.Equal(t, http.StatusNotFound, r.post("forget-topic", at).Status)
		at.Set("topic", "orders")
		require.Contains(t, r.post("forget-topic", at).Body, "The topic is still declared")
		at.Del("group")
		require.Equal(t, http.StatusBadRequest, r.post("forget-topic", at).Status)
		require.Equal(t, "admin@example.org forget_topic topic", actionsOf(r.audit())[len(r.audit())-1])
	})
}
