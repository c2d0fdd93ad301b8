package ops_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestAwaitPartitionSaysWhetherItGoesOn proves contract 7.10.
func TestAwaitPartitionSaysWhetherItGoesOn(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		at := ops.PartitionRef{Channel: "c", Topic: "orders", Partition: 1, Offset: 7}
		worker := r.consumes("c", haltedAtBad)
		reports := func(partitions string) {
			require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), store.Worker{ID: worker, Host: "h-c", PID: 7,
				Consumers: `[{"channel":"c","group":"g","partitions":[` + partitions + `]}]`}, r.clock.Now()))
		}
		carryOut := func() {
			inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_partition_requests`)
		}
		soon := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return r.ops.AwaitPartition(ctx, at)
		}
		require.NoError(t, r.ops.ResumePartition(t.Context(), ada, at))
		err := soon()
		require.ErrorIs(t, err, ops.ErrStillHalted)
		require.ErrorContains(t, err, "process 7 on h-c has the partition and has not carried out the request yet")

		// awaited is what a wait returns for a request that is carried out, after which heartbeats report these partitions.
		awaited := func(partitions string) (err error) {
			waited := make(chan error, 1)
			go func() { waited <- r.ops.AwaitPartition(t.Context(), at) }()
			carryOut()
			inboxtest.Eventually(t, func() bool {
				reports(partitions)
				select {
				case err = <-waited:
					return true
				default:
					return false
				}
			}, "the wait to end")
			return err
		}
		require.NoError(t, awaited(`{"topic":"orders","partition":1,"state":"fetching","position":7,"committed":7,"lag":2}`))

		reports(haltedAtBad)
		require.NoError(t, r.ops.SkipRecord(t.Context(), ada, at))
		err = awaited(haltedAtBad)
		require.ErrorIs(t, err, ops.ErrStillHalted)
		require.ErrorContains(t, err, "has halted there again: bad")

		require.NoError(t, r.ops.SkipRecord(t.Context(), ada, at))
		inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_workers`)
		err = soon()
		require.ErrorIs(t, err, ops.ErrStillHalted)
		require.ErrorContains(t, err, "no living worker reports the partition")
		var left []models.PartitionRequest
		require.NoError(t, r.d.DB.Find(&left).Error)
		require.Len(t, left, 1, "it remains")

		carryOut()
		err = soon()
		require.ErrorIs(t, err, ops.ErrStillHalted, "its worker has died since")
		require.ErrorContains(t, err, "no heartbeat has reported its effect yet")
		require.ErrorIs(t, r.ops.AwaitPartition(t.Context(), ops.PartitionRef{}), ops.ErrBadInput)
	})
}
