package ops_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/ops"
)

// overviewOf returns a handler's line of the overview.
func overviewOf(t *testing.T, o *ops.Ops, handlerKey string) ops.HandlerOverview {
	t.Helper()
	seen, err := o.Overview(t.Context())
	require.NoError(t, err)
	for _, h := range seen.Handlers {
		if h.HandlerKey == handlerKey {
			return h
		}
	}
	require.Fail(t, "no such handler")
	return ops.HandlerOverview{}
}

func detailOf(t *testing.T, o *ops.Ops, handlerKey string) ops.HandlerDetail {
	t.Helper()
	h, err := o.Handler(t.Context(), handlerKey)
	require.NoError(t, err)
	return h
}

// heartbeat stores a worker that reports these settings.
func (r *rig) heartbeat(id, settings string, keys ...string) {
	r.t.Helper()
	require.NoError(r.t, inboxtest.Store(r.t, r.d.DB).Heartbeat(r.t.Context(), store.Worker{ID: id, Host: "host-" + id[:4], PID: 7,
		HandlerKeys: keys, Settings: settings}, r.clock.Now()))
}

// Contract 5.9, 11.1: what a dead worker has claimed is no running call.
func TestClaimsOfDeadWorkersAreShownAsSuch(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		living, dead := uuid.NewString(), uuid.NewString()
		r.heartbeat(living, `{"worker_timeout":60000000000,"sweep_interval":5000000000}`, "mail")
		r.heartbeat(dead, "", "mail")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_workers SET heartbeat_at = ? WHERE id = ?`, r.longAgo(40*time.Second), dead)
		r.accept("a")
		r.accept("b")
		r.accept("c")
		claim := func(id string, worker any) {
			inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at, worker_id = ?
				WHERE message_id = ? AND handler_key = 'mail'`, worker, id)
		}
		claim("a", dead)
		h := overviewOf(t, r.ops, "mail")
		require.Equal(t, []any{ops.Count{N: 1}, ops.Count{N: 1}, "standing"}, []any{h.Processing, h.Orphaned, h.Activity()})
		require.Equal(t, []string{"1 claim of a dead worker"}, h.Notes())
		claim("b", living)
		claim("c", nil)
		require.Equal(t, "running", overviewOf(t, r.ops, "mail").Activity())

		detail := detailOf(t, r.ops, "mail")
		require.Len(t, detail.WorkersListing, 1)
		require.Equal(t, living, detail.WorkersListing[0].ID)
		require.Len(t, detail.Calls, 3)
		first := detail.Calls[0]
		require.Equal(t, []any{"a", dead, "host-" + dead[:4], true, 1}, []any{first.Status.MessageID, first.Status.WorkerID,
			first.Host, first.Dead, first.Attempt})
		require.WithinDuration(t, detail.At.Add(30*time.Second), first.ReclaimedAt, 10*time.Second, "a timeout of 60 s, two sweeps")
		require.InDelta(t, detail.At.Sub(first.Status.ProcessingStartedAt), first.Age, float64(time.Second))
		require.Equal(t, []any{"b", false, time.Time{}}, []any{detail.Calls[1].Status.MessageID, detail.Calls[1].Dead,
			detail.Calls[1].ReclaimedAt})
		require.Equal(t, []any{"c", false, ""}, []any{detail.Calls[2].Status.MessageID, detail.Calls[2].Dead, detail.Calls[2].Host})

		inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_workers`)
		first = detailOf(t, r.ops, "mail").Calls[0]
		require.True(t, first.Dead, "its row is gone")
		require.Zero(t, first.ReclaimedAt, "no worker lives that could")
	})
}

// longAgo is a time so long ago by the clock that judges heartbeats.
func (r *rig) longAgo(d time.Duration) time.Time {
	if r.d.Dialect != "sqlite" {
		return time.Now().Add(-d)
	}
	return r.clock.Now().Add(-d)
}

// Contract 5.12, 11.1.
func TestLanesThatWaitForPoisonedStatusesAreShown(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.poison("mail", "no", "a1", "b1")
		for _, id := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte(id[:1])
			_, err := r.ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		r.process()
		r.heartbeat(uuid.NewString(), "", "mail")
		h := overviewOf(t, r.ops, "mail")
		require.Equal(t, []ops.Count{{N: 3}, {N: 2}}, []ops.Count{h.Parked, h.ParkedBy})
		require.Equal(t, []string{"3 wait behind 2 poisoned"}, h.Notes())
		require.Equal(t, "standing", h.Activity())
		detail := detailOf(t, r.ops, "mail")
		require.Equal(t, []ops.ParkedLane{{HeadMessageID: "a1", HeadNamespace: "c", Poisoned: 1, Waiting: ops.Count{N: 2}},
			{HeadMessageID: "b1", HeadNamespace: "c", Poisoned: 1, Waiting: ops.Count{N: 1}}}, detail.Lanes)
		require.Len(t, detail.Failures, 1)
		require.EqualValues(t, 2, detail.Failures[0].Poisoned)

		// Programs with only the tables know the rule from the workers.
		tables, err := ops.New(d.DB, patient, func(o *ops.Options) { o.Clock = r.clock })
		require.NoError(t, err)
		require.Equal(t, ops.Count{N: 3}, overviewOf(t, tables, "mail").Parked)
		r.heartbeat(uuid.NewString(), `{"handlers":[{"keys":["mail"],"skip_poisoned":true}]}`, "mail")
		require.Zero(t, overviewOf(t, tables, "mail").Parked)
	})
}

// A handler's page stays quick beside any number of messages, and says that there are more.
func TestLastHoursAreOfTwoThousandMessages(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.acceptOf("alone", "0")
		r.copies("alone", 2_000)
		recent := detailOf(t, r.ops, "alone").Recent
		require.Equal(t, []any{2_000, 2_000, true}, []any{recent.Messages, recent.Statuses, recent.Capped})
	})
}

// Contract 11.1: what has completed is counted from the database's rows.
func TestHandlerSumsUpItsLastHours(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.fail("mail", "a", errors.New("boom"))
		r.accept("a")
		r.process()
		r.fail("mail", "a", nil)
		r.clock.Advance(30 * time.Minute)
		r.process()
		r.poison("mail", "no", "b")
		r.accept("b", "c")
		r.clock.Advance(time.Second)
		r.process()
		r.clock.Advance(2 * time.Hour)
		r.accept("d")
		r.process()
		detail := detailOf(t, r.ops, "mail")
		recent := detail.Recent
		require.Equal(t, []any{4, false, 4, 6}, []any{recent.Messages, recent.Capped, recent.Statuses, len(recent.Hours)})
		now, old := recent.Hours[0], recent.Hours[2]
		require.Equal(t, []int{1, 0, 0}, []int{now.Completed, now.Poisoned, now.Failed})
		require.InDelta(t, 1.0/60, now.PerMinute, 0.001)
		require.Equal(t, []int{2, 1, 2}, []int{old.Completed, old.Poisoned, old.Failed})
		require.Equal(t, []time.Duration{30 * time.Minute, 30 * time.Minute}, []time.Duration{old.P95, old.Longest})
		require.True(t, old.From.Equal(detail.At.Add(-3*time.Hour)) && old.To.Equal(detail.At.Add(-2*time.Hour)))

		// A backlog completes what was received long ago.
		inboxtest.Exec(t, d.DB, `UPDATE inbox_messages SET received_at = ? WHERE id <> 'd'`, r.clock.Now().Add(-48*time.Hour))
		require.Equal(t, 1, detailOf(t, r.ops, "mail").Recent.Statuses)
		r.accept("late")
		inboxtest.Exec(t, d.DB, `UPDATE inbox_handler_statuses SET created_at = ? WHERE message_id = 'late'`,
			r.clock.Now().Add(-47*time.Hour))
		require.Equal(t, 5, detailOf(t, r.ops, "mail").Recent.Statuses)

		_, err := r.ops.Handler(t.Context(), "none")
		require.ErrorIs(t, err, ops.ErrNotFound)
		_, err = r.ops.Handler(t.Context(), "")
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.NoError(t, r.ops.Pause(t.Context(), ada, "alone"))
		paused := detailOf(t, r.ops, "alone")
		require.Equal(t, []any{true, "paused; no living worker lists it", "standing"}, []any{paused.Paused, paused.Obstacle,
			paused.Activity()})
	})
}

// Contract 5.13, 11.5: every process sees a worker's breaker and settings.
func TestAnOpenCircuitIsSeenFromOtherProcesses(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Do("mail", func(context.Context, inboxtest.Bytes) error { return errors.New("connection refused") },
				handler.Timeout(time.Minute), handler.MaxRetries(9),
				handler.CircuitBreaker(handler.Breaker{Failures: 2, OpenFor: time.Hour}))),
			inbox.Configure(func(o *inbox.Options) { o.Cleanup.Retention = 24 * time.Hour }))
		inboxtest.Accept(t, ib, "1", "2", "3")
		inboxtest.Start(t, ib)
		o, err := ops.New(d.Another(t), patient)
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool {
			h, err := o.Handler(t.Context(), "mail")
			return err == nil && h.Obstacle == "circuit breaker open"
		}, "a heartbeat reports it")
		detail := detailOf(t, o, "mail")
		require.Equal(t, "standing", detail.Activity())
		reason := detail.WorkersListing[0].Reasons[0]
		require.Contains(t, reason.Detail, "last failure: connection refused")
		require.WithinDuration(t, time.Now(), reason.Since, inboxtest.Patience)
		require.WithinDuration(t, reason.Since.Add(time.Hour), reason.ProbeAt, inboxtest.Patience)
		require.Equal(t, &ops.HandlerSettings{Keys: []string{"mail"}, Channel: "c", Mode: "Inbox", Type: "t", Kind: "plain",
			Timeout: time.Minute, Concurrency: 10, MaxRetries: 9, Retention: 24 * time.Hour, BatchSize: 1, TxGroup: 1,
			BreakerFailures: 2, BreakerOpenFor: time.Hour}, detail.Settings)
		require.False(t, detail.SettingsDiffer)
	})
}

// Contract 11.1: what can be read is shown. SQLite's readers wait for nobody in WAL mode.
func TestHandlerOfALockedTableHasWhatCanBeRead(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.heartbeat(uuid.NewString(), `{"handlers":[{"keys":["mail"],"channel":"c"}]}`, "mail")
		require.NoError(t, r.ops.Pause(t.Context(), ada, "mail"))
		// It is the time for a new connection, too.
		o, err := r.ib.Ops(func(o *ops.Options) { o.StatementTimeout = 2 * time.Second })
		require.NoError(t, err)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			inboxtest.Exec(t, tx, "LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE")
			h, err := o.Handler(t.Context(), "mail")
			require.NoError(t, err)
			require.Equal(t, []any{true, "paused", 1, "c"}, []any{h.Paused, h.Obstacle, len(h.WorkersListing), h.Settings.Channel})
			require.True(t, h.Pending.Unknown && h.Orphaned.Unknown && h.Parked.Unknown)
			require.Contains(t, h.Incomplete, "pg_blocking_pids")
			_, err = o.Handler(t.Context(), "unlisted")
			require.NoError(t, err, "it may have statuses")
			return nil
		}))
	})
}
