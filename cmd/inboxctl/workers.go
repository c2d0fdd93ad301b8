package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

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
