package main

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"
)

// TestTopicIsReadAgainByRequest proves contract 7.11 and 11.1: a request ends after --max records or with an error, and
// the next command goes on with what it has left.
func TestTopicIsReadAgainByRequest(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		asked := make(chan envelope.ReadAgain, 100)
		application, err := r.ib.Ops(func(o *ops.Options) {
			o.Live = inboxtest.Reading{Live: o.Live, Read: func(
				_ context.Context, q envelope.ReadAgain,
			) (envelope.ReadAgainResult, error) {
				asked <- q
				at := envelope.Range{Partition: 3, To: 5, Log: "log"} // the topic has five records
				if len(q.Ranges) > 0 {
					at = q.Ranges[0]
				}
				n := at.To - at.From
				if q.MaxRecords > 0 {
					n = min(n, q.MaxRecords)
				}
				at.From += n
				result := envelope.ReadAgainResult{Read: n, Accepted: n - 1, Duplicates: 1}
				if at.From < at.To {
					result.Left = []envelope.Range{at}
				}
				if at.From == 4 {
					return result, errors.New("the broker is away")
				}
				return result, nil
			}}
		})
		require.NoError(t, err)
		command := func(args ...string) []string {
			return append([]string{"read-again", "orders", "--topic", "orders.v1", "--yes", "-o", "json"}, args...)
		}
		late := r.run(command("--from", "1h", "--wait", "1ms")...)
		require.Equal(t, exitNotYet, late.code, late.errOut)
		require.Contains(t, late.errOut, "no living worker that can do it has taken it")
		waiting := regexp.MustCompile(`[0-9a-f-]{36}`).FindString(late.errOut)

		ctx, stop := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		defer serving.Wait()
		defer stop()
		serve := func(kind ops.Action) { // as a running process does
			serving.Go(func() {
				for routine.Sleep(ctx, time.Millisecond) {
					_ = application.ServeRequests(ctx, "a process", []string{"orders"}, kind)
				}
			})
		}
		serve(ops.ActionCancelRequest)
		require.Contains(t, r.done("request", waiting, "--cancel", "--wait", "1m").out, "cancelled by operator alice")
		require.NotZero(t, r.run("request", waiting, "--cancel").code, "it has ended")
		serve(ops.ActionReadAgain)
		out := r.done("read-again", "orders", "--topic", "orders.v1", "--from", "2h", "--to", "1h", "--partition", "3", "--dry-run")
		require.Contains(t, out.out, "read_again orders")
		require.Contains(t, out.out, `{"read":5,"bad":0,"empty":0,"accepted":4,"duplicates":1,"unrouted":0}`)
		q := <-asked
		require.Equal(t, []any{"orders", "orders.v1", true, int64(100_000), time.Hour, []int{3}},
			[]any{q.Channel, q.Topic, q.DryRun, q.MaxRecords, q.To.Sub(q.From), q.Partitions})

		require.Equal(t, exitRefused, r.answer("no\n", "read-again", "orders", "--topic", "orders.v1", "--from", "1h").code)
		require.Empty(t, asked)
		var first, failed, last struct {
			ID      string
			Problem string
			Result  struct{ Read, Accepted int }
		}
		out = r.done(command("--from", "1h", "--max", "2")...)
		out.json(&first)
		more := "More is left to read: go on with --after "
		require.Contains(t, out.errOut, more+first.ID)
		require.Equal(t, 2, first.Result.Read)
		require.Empty(t, (<-asked).Ranges)
		out = r.run(command("--after", first.ID, "--max", "2")...)
		require.Equal(t, exitFailed, out.code)
		out.json(&failed)
		require.Contains(t, out.errOut, more+failed.ID)
		require.Equal(t, 2, failed.Result.Read, "the counts so far")
		require.Contains(t, failed.Problem, "the broker is away")
		q = <-asked
		require.Equal(t, []envelope.Range{{Partition: 3, From: 2, To: 5, Log: "log"}}, q.Ranges)
		require.True(t, q.From.IsZero())
		require.Contains(t, r.done("request", failed.ID).out, "the broker is away")
		out = r.done(command("--after", failed.ID, "--max", "0")...)
		out.json(&last)
		require.NotContains(t, out.errOut, more)
		require.Equal(t, 1, last.Result.Read)

		for _, bad := range [][]string{{"read-again"}, {"read-again", "orders", "--from", "1h"}, command(),
			command("--from", "soon"), command("--from", "1h", "--max", "-1"), command("--from", "1h", "--to", "2h"),
			command("--after", first.ID, "--to", "1h"), command("--after", first.ID, "--from", "1h"),
			{"read-again", "other", "--topic", "orders.v1", "--after", first.ID}, command("--after", last.ID)} {
			require.Equal(t, exitMisuse, r.run(bad...).code, bad)
		}
		require.Equal(t, exitNotFound, r.run(command("--after", "00000000-0000-7000-8000-000000000009")...).code)
		require.Contains(t, r.audit(), "alice read_again topic orders.v1 of channel orders")
	})
}
