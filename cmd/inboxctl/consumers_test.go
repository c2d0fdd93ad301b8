package main

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// TestHaltedPartitionsAreListedResumedAndSkipped proves contract 7.10 and 11.1.
func TestHaltedPartitionsAreListedResumedAndSkipped(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.Contains(t, r.done("consumers").out, "No consumers")
		r.halted()
		out := r.done("consumers").out
		require.Contains(t, out, "orders/3")
		require.NotContains(t, r.done("consumers", "--halted").out, "orders/3")
		var listed []struct {
			Channel    string
			Partitions []struct {
				Position  int64
				Skippable bool
			}
		}
		r.done("consumers", "-o", "json").json(&listed)
		require.Equal(t, []any{"c", int64(7), true},
			[]any{listed[0].Channel, listed[0].Partitions[0].Position, listed[0].Partitions[0].Skippable})

		require.Equal(t, exitRefused, r.answer("no\n", "skip-record", "c", "orders/1@7").code, "not confirmed")
		require.Equal(t, exitRefused, r.answer("", "resume-partition", "c", "orders/2@9").code, "records are gone")
		require.Equal(t, exitRefused, r.run("resume-partition", "c", "orders/1@8").code, "stale")
		require.Equal(t, exitRefused, r.run("skip-record", "c", "orders/2@9", "--yes").code, "not skippable")
		require.Equal(t, exitNotFound, r.run("resume-partition", "c", "orders/4@8").code)
		for _, args := range [][]string{{"c"}, {"c", "orders/1"}, {"c", "orders@7"}, {"c", "orders/x@7"},
			{"c", "orders/1@7", "more"}, {"c", "orders/999999999@7", ""}} {
			require.Equal(t, exitMisuse, r.run(append([]string{"resume-partition"}, args...)...).code, args)
		}
		var rows []models.PartitionRequest
		require.NoError(t, r.ib.DB().Find(&rows).Error)
		require.Empty(t, rows)

		require.Equal(t, "requested to resume orders/1@7\n", r.done("resume-partition", "c", "orders/1@7").out)
		require.Equal(t, "requested to skip orders/1@7\n", r.answer("yes\n", "skip-record", "c", "orders/1@7").out)
		late := r.run("skip-record", "c", "orders/1@7", "--yes", "--wait=1ns")
		require.Equal(t, exitNotYet, late.code)
		require.Equal(t, "requested to skip orders/1@7\n", late.out)
		require.Contains(t, late.errOut, "still halted")
		require.Equal(t, map[string]any{"channel": "c", "topic": "orders", "partition": 2.0, "offset": 9.0,
			"after_gap": true, "outcome": "resume requested"}, r.done("resume-partition", "c", "orders/2@9", "--yes", "-o", "json").object())
		require.NoError(t, r.ib.DB().Order("\"partition\"").Find(&rows).Error)
		require.Len(t, rows, 2)
		require.Equal(t, []string{"skip", "continue"}, []string{rows[0].Decision, rows[1].Decision})
		require.Contains(t, r.done("consumers").out, "skip requested by alice; no ID")
		require.Equal(t, []string{"alice resume_partition partition orders/1 of channel c",
			"alice skip_record partition orders/1 of channel c", "alice skip_record partition orders/1 of channel c",
			"alice resume_partition partition orders/2 of channel c"},
			r.audit())
	})
}

// TestSkipWaitsForItsEffect proves contract 7.10.
func TestSkipWaitsForItsEffect(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.halted()
		waited := make(chan result, 1)
		go func() { waited <- r.run("skip-record", "c", "orders/1@7", "--yes", "--wait") }()
		inboxtest.Eventually(t, func() bool { // as its consumer does
			done := r.ib.DB().Where("record_offset = 7").Delete(&models.PartitionRequest{})
			require.NoError(t, done.Error)
			return done.RowsAffected == 1
		}, "the request")
		inboxtest.Exec(t, r.ib.DB(), `DELETE FROM inbox_workers`)
		st := inboxtest.Store(t, r.ib.DB())
		worker := store.Worker{ID: uuid.NewString(), Host: "app-1", PID: 7, Consumers: `[{"channel":"c","group":"g"}]`}
		go func() {
			for routine.Sleep(t.Context(), 50*time.Millisecond) {
				_ = st.Heartbeat(t.Context(), worker, time.Now())
			}
		}()
		out := inboxtest.Receive(t, waited, "the end of the command")
		require.Equal(t, []any{exitDone, "skipped orders/1@7\n"}, []any{out.code, out.out}, out.errOut)
	})
}

// halted stores the consumers of a worker with two halted partitions.
func (r *rig) halted() {
	r.t.Helper()
	require.NoError(r.t, inboxtest.Store(r.t, r.ib.DB()).Heartbeat(r.t.Context(), store.Worker{ID: uuid.NewString(),
		Host: "app-1", PID: 7, Consumers: `[{"channel":"c","group":"g","state":"running","lag":12,"partitions":[
			{"topic":"orders","partition":1,"state":"halted","position":7,"committed":7,"lag":5,"problem":"no ID","halted":true,"skippable":true},
			{"topic":"orders","partition":2,"state":"halted","position":9,"committed":9,"lag":5,"problem":"gone","halted":true,"after_gap":true},
			{"topic":"orders","partition":3,"state":"fetching","position":4,"committed":2,"lag":2}]}]`}, time.Now()))
}
