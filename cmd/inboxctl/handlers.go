package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

func newHandlers(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "handlers", Short: "Handler keys, their workers, and which are paused",
		Long: `Lists the handler keys that living workers have, that are paused, or that have
pending or processing statuses. If no living worker has a key, its handler was
renamed or removed, or its process is down, and its statuses wait.

JSON: a list of ops.Handler.`,
		Example: `  inboxctl handlers`,
		Args:    noArgs, RunE: view(a, (*ops.Ops).Handlers, writeHandlers),
	}
}

func writeHandlers(w io.Writer, handlers []ops.Handler) {
	t := newTable("HANDLER", ">WORKERS", "PAUSED", "NOTE")
	for _, h := range handlers {
		note := h.Obstacle
		if h.StoredOnly {
			note = "has open statuses, but no living worker lists it"
		}
		t.add(h.HandlerKey, number(h.Workers), yesNo(h.Paused), note)
	}
	t.write(w)
}

func newPause(a *app) *cobra.Command {
	cmd := newPausing(a, "paused", (*ops.Ops).Pause)
	cmd.Use, cmd.Short = "pause HANDLER-KEY...", "Pause handlers"
	cmd.Long = `Makes all workers stop claiming statuses of a handler key, each within a heartbeat.
Running handlers continue to their end. Messages are still accepted, and wait. The
pause lasts until "inboxctl resume", also across restarts.

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
	cmd.Example = `  inboxctl pause orders.mail
  inboxctl pause orders.mail orders.invoice`
	return cmd
}

func newResume(a *app) *cobra.Command {
	cmd := newPausing(a, "resumed", (*ops.Ops).Resume)
	cmd.Use, cmd.Short = "resume HANDLER-KEY...", "Resume paused handlers"
	cmd.Long = `Ends a pause. Workers claim again within a heartbeat. If a key was not paused,
nothing is done and no audit row is written. inboxctl does not know legacy keys: to
resume a renamed handler, give each key that "inboxctl handlers" shows as paused.

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
	cmd.Example = `  inboxctl resume orders.mail`
	return cmd
}

func newPausing(
	a *app, done string, do func(o *ops.Ops, ctx context.Context, actor ops.Actor, handlerKey string) error,
) *cobra.Command {
	return &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse("a handler key is required, \"inboxctl handlers\" lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				return a.pauseEach(ctx, o, done, do, args)
			})
		},
	}
}

// notPaused is the outcome for a handler key that resume finds as it is wanted.
const notPaused = "was not paused"

// pauseResult is the result for one handler key.
type pauseResult struct{ HandlerKey, Outcome, Error string }

func (a *app) pauseEach(ctx context.Context, o *ops.Ops, done string,
	do func(*ops.Ops, context.Context, ops.Actor, string) error, keys []string,
) error {
	results := struct{ Results []pauseResult }{}
	var problems []error
	for _, key := range keys {
		err, outcome := do(o, ctx, a.who(), key), done
		if errors.Is(err, ops.ErrNotPaused) { // already as wanted
			err, outcome = nil, notPaused
		}
		if err != nil {
			problems = append(problems, err)
			results.Results = append(results.Results, pauseResult{key, "not " + done, secrets.Mask(err.Error())})
			continue
		}
		results.Results = append(results.Results, pauseResult{HandlerKey: key, Outcome: outcome})
		switch {
		case a.structured():
		case outcome == notPaused:
			fmt.Fprintf(a.out, "%s %s\n", oneLine(key), outcome)
		default:
			fmt.Fprintf(a.out, "%s %s\n", outcome, oneLine(key))
		}
	}
	if a.structured() {
		if err := a.writeStructured(results); err != nil {
			return err
		}
	}
	return combineErrors(problems, len(keys)-len(problems), len(keys))
}

func newWorkers(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "workers", Short: "The processes of this inbox and their heartbeats",
		Long: `Lists the workers, the most recent heartbeat first. A worker is alive if it has not
stopped and its last heartbeat is at most 30 s old. A "silent" worker has died or
cannot reach the database. After WorkerTimeout other workers take over its claims,
and it is "released". Cleanup removes the rows of workers that are gone.

Below the table is what keeps living workers from being healthy, the worst first.

JSON: a list of ops.Worker.`,
		Example: `  inboxctl workers
  inboxctl workers -o json | jq -r '.[] | select(.alive) | .host'`,
		Args: noArgs, RunE: view(a, (*ops.Ops).Workers, func(w io.Writer, workers []ops.Worker) {
			writeWorkers(w, workers, a.now())
			writeReasons(w, workers)
		}),
	}
}

func writeWorkers(out io.Writer, workers []ops.Worker, now time.Time) {
	t := newTable("WORKER", "STATE", "HOST", ">PID", ">UP", ">HEARTBEAT", "HANDLERS").limit("HANDLERS", 80)
	t.none = "No workers: none has started, or all rows were cleaned up."
	for _, w := range workers {
		state, up := "silent", "-"
		switch {
		case w.Alive:
			state, up = "alive", ago(now, w.StartedAt)
			if len(w.Reasons) > 0 {
				state = string(w.Reasons[0].State)
			}
		case w.Stopped:
			state = "stopped"
		case w.Released:
			state = "released"
		}
		t.add(w.ID, state, w.Host, number(w.PID), up, age(w.SilentFor), strings.Join(w.HandlerKeys, ", "))
	}
	t.write(out)
}

// writeReasons lists why living workers are not healthy.
func writeReasons(w io.Writer, workers []ops.Worker) {
	blank := "\n"
	for _, worker := range workers {
		for _, r := range worker.Reasons {
			if worker.Alive {
				fmt.Fprintf(w, "%s%s  %-9s  %s\n", blank, worker.ID, r.State, oneLine(r.String()))
				blank = ""
			}
		}
	}
}

func newLocks(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "locks", Short: "Leases of cleanup, recovery, exclusive processing and publishing",
		Long: `Lists the leases: those of cleanup and of recovering claims, each of which one
worker at a time holds, in exclusive mode the lease of processing, and for each
channel that publishes copies to its dead-letter topic a lease "copies:CHANNEL".
An expired lease is free.

JSON: a list of ops.Lease.`,
		Example: `  inboxctl locks`,
		Args:    noArgs, RunE: view(a, (*ops.Ops).Leases, writeLeases),
	}
}

func writeLeases(w io.Writer, leases []ops.Lease) {
	t := newTable("LOCK", "OWNER", "EXPIRES")
	t.none = "No lease is held."
	for _, l := range leases {
		expires := "in " + age(l.ExpiresIn)
		if l.ExpiresIn < 0 {
			expires = "expired " + age(-l.ExpiresIn) + " ago"
		}
		t.add(l.Name, l.OwnerID, expires)
	}
	t.write(w)
}
