package ops_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// consumes stores what a worker reports of its consumers, and returns the worker's ID.
func (r *rig) consumes(channel, partitions string) string {
	r.t.Helper()
	worker := store.Worker{ID: uuid.NewString(), Host: "h-" + channel, PID: 7,
		Consumers: `[{"channel":"` + channel + `","group":"g","state":"running","since":"2026-01-01T12:00:00Z","lag":5,"unrouted":2,
			"problem":"topics \"x\" do not exist, password=s3cr3t","partitions":[` + partitions + `],"unlisted":3}]`}
	require.NoError(r.t, inboxtest.Store(r.t, r.d.DB).Heartbeat(r.t.Context(), worker, r.clock.Now()))
	return worker.ID
}

const (
	haltedAtBad = `{"topic":"orders","partition":1,"state":"halted","position":7,"committed":6,"lag":5,
		"problem":"bad, password=s3cr3t","at":"2026-01-01T12:00:00Z","halted":true,"skippable":true}`
	haltedAtGap = `{"topic":"orders","partition":2,"state":"halted","position":9,"committed":9,"lag":5,
		"problem":"gone","halted":true,"after_gap":true}`
	fetching = `{"topic":"orders","partition":3,"state":"fetching","position":4,"committed":2,"lag":2}`
)

// TestConsumersOfLivingWorkersAreListed proves contract 11.1: those of all living workers, and not
// what a stopped or dead one reported last.
func TestConsumersOfLivingWorkersAreListed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(redact.Common))
		none, err := r.ops.Consumers(t.Context())
		require.NoError(t, err)
		require.Empty(t, none)

		beta, alpha := r.consumes("beta", fetching), r.consumes("alpha", haltedAtBad+","+haltedAtGap)
		stopped, released, silent := r.consumes("gamma", fetching), r.consumes("delta", fetching),
			r.consumes("epsilon", fetching)
		st := inboxtest.Store(t, d.DB)
		require.NoError(t, st.StopWorker(t.Context(), stopped, r.clock.Now()))
		require.NoError(t, st.MarkReleased(t.Context(), released, r.clock.Now()))
		inboxtest.Exec(t, d.DB, `UPDATE inbox_workers SET heartbeat_at = ? WHERE id = ?`, r.clock.Now().AddDate(-1, 0, 0),
			silent)
		inboxtest.Exec(t, d.DB, `INSERT INTO inbox_workers (id, host, pid, handler_keys, health, consumers, database_role, started_at, heartbeat_at)
			SELECT ?, 'older', 1, '{}', '', '', '', started_at, heartbeat_at FROM inbox_workers WHERE id = ?`, uuid.NewString(),
			beta)

		found, err := r.ops.Consumers(t.Context())
		require.NoError(t, err)
		for i := range found {
			require.Less(t, found[i].SilentFor, time.Minute)
			found[i].SilentFor = 0
		}
		bad := ops.ConsumedPartition{Topic: "orders", Partition: 1, State: "halted", Position: 7, Committed: 6, Lag: 5,
			Problem: "bad, password=[redacted]", Since: inboxtest.Noon, Halted: true, Skippable: true}
		gap := ops.ConsumedPartition{Topic: "orders", Partition: 2, State: "halted", Position: 9, Committed: 9, Lag: 5,
			Problem: "gone", Halted: true, AfterGap: true}
		reads := ops.ConsumedPartition{Topic: "orders", Partition: 3, State: "fetching", Position: 4, Committed: 2, Lag: 2}
		consumer := ops.Consumer{PID: 7, GroupID: "g", State: "running", Since: inboxtest.Noon, Lag: 5, Unrouted: 2,
			Problem: `topics "x" do not exist, password=[redacted]`, Unlisted: 3}
		first, second := consumer, consumer
		first.WorkerID, first.Host, first.Channel, first.Partitions = alpha, "h-alpha", "alpha",
			[]ops.ConsumedPartition{bad, gap}
		second.WorkerID, second.Host, second.Channel, second.Partitions = beta, "h-beta", "beta",
			[]ops.ConsumedPartition{reads}
		require.Equal(t, []ops.Consumer{first, second}, found)
		seen, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 4, seen.Unrouted, "of the living ones")
	})
}

// TestRequestsNeedAHaltReportedByALivingWorker proves contract 7.10 and 11.1.
func TestRequestsNeedAHaltReportedByALivingWorker(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		worker := r.consumes("c", haltedAtBad+","+haltedAtGap+","+fetching)
		at := func(partition int32, offset int64) ops.PartitionRef {
			return ops.PartitionRef{Channel: "c", Topic: "orders", Partition: partition, Offset: offset}
		}
		for want, refused := range map[error][]ops.PartitionRef{
			ops.ErrBadInput: {{}, {Channel: "c", Offset: 7}, at(-1, 7), at(1, -1)},
			ops.ErrNotFound: {at(4, 7), {Channel: "d", Topic: "orders", Partition: 1, Offset: 7}},
			ops.ErrStale:    {at(1, 6), at(1, 8), at(3, 4)},
		} {
			for _, ref := range refused {
				require.ErrorIs(t, r.ops.ResumePartition(t.Context(), ada, ref), want, ref)
				require.ErrorIs(t, r.ops.SkipRecord(t.Context(), ada, ref), want, ref)
			}
		}
		require.ErrorIs(t, r.ops.SkipRecord(t.Context(), ada, at(2, 9)), ops.ErrNotSkippable)
		require.ErrorIs(t, r.ops.SkipRecord(t.Context(), "", at(1, 7)), ops.ErrBadInput)
		require.Empty(t, r.audit())
		stored := func() (all []models.PartitionRequest) {
			require.NoError(t, r.d.DB.Order(`"partition"`).Find(&all).Error)
			return all
		}
		require.Empty(t, stored())

		require.NoError(t, r.ops.ResumePartition(t.Context(), "grace", at(1, 7)))
		require.NoError(t, r.ops.SkipRecord(t.Context(), ada, at(1, 7)))
		require.ErrorIs(t, r.ops.ResumePartition(t.Context(), ada, at(2, 9)), ops.ErrStale, "the gap was not seen")
		gap := at(2, 9)
		gap.AfterGap = true
		require.NoError(t, r.ops.ResumePartition(t.Context(), ada, gap))
		rows := stored()
		require.Len(t, rows, 2, "the later one replaces the earlier one")
		require.Equal(t, []any{"c", "orders", int32(1), int64(7), "skip", "ada"},
			[]any{rows[0].Channel, rows[0].Topic, rows[0].Partition, rows[0].Offset, rows[0].Decision, rows[0].Actor})
		require.True(t, rows[0].RequestedAt.Equal(r.clock.Now()))
		require.Equal(t, "continue", rows[1].Decision)
		require.Equal(t, []string{"grace resume_partition partition orders/1 of channel c",
			"ada skip_record partition orders/1 of channel c", "ada resume_partition partition orders/2 of channel c"},
			r.audit())

		pending := func() (decisions []string) {
			consumers, err := r.ops.Consumers(t.Context())
			require.NoError(t, err)
			for _, p := range consumers[0].Partitions {
				if p.Request != nil {
					decisions = append(decisions, p.Request.Decision)
				}
			}
			return decisions
		}
		require.Equal(t, []string{"skip", "resume"}, pending())
		r.clock.Advance(2 * time.Hour)
		require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), store.Worker{ID: worker,
			Consumers: `[{"channel":"c","partitions":[` + haltedAtBad + `]}]`}, r.clock.Now()))
		require.Empty(t, pending(), "they have expired")
		require.NoError(t, r.ops.ResumePartition(t.Context(), ada, at(1, 7)))
		require.Len(t, stored(), 1, "the expired ones are deleted")
	})
}

// TestWrongClockDoesNotExpireAPartitionRequestEarly proves contract 3.5 and 7.10.
func TestWrongClockDoesNotExpireAPartitionRequestEarly(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"behind": -2 * time.Hour, "ahead": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // a SQLite file is on one machine
				r := newRig(t, d, func(o *ops.Options) { o.Clock = clock.System{} })
				require.NoError(t, inboxtest.Store(t, d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(),
					Consumers: `[{"channel":"c","partitions":[` + haltedAtBad + `]}]`}, time.Now()))
				asking, err := ops.New(d.DB, patient, func(o *ops.Options) { o.Clock = clock.Offset(wrong) })
				require.NoError(t, err)
				require.NoError(t, asking.ResumePartition(t.Context(), ada,
					ops.PartitionRef{Channel: "c", Topic: "orders", Partition: 1, Offset: 7}))
				var stored models.PartitionRequest
				require.NoError(t, d.DB.Take(&stored).Error)
				require.WithinDuration(t, time.Now(), stored.RequestedAt, 5*time.Minute)
				for _, o := range []*ops.Ops{r.ops, asking} {
					consumers, err := o.Consumers(t.Context())
					require.NoError(t, err)
					require.NotEmpty(t, consumers)
					require.NotNil(t, consumers[0].Partitions[0].Request)
				}
			})
		})
	}
}
