package main

import (
	"context"
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
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				workers, err := o.Workers(ctx)
				if err != nil {
					return err
				}
				return a.print(workers, func() {
					if len(workers) == 0 {
						fmt.Fprintln(a.out, "No workers: none has started, or all rows were cleaned up.")
						return
					}
					workerTable(workers, a.now()).write(a.out)
					writeReasons(a.out, workers)
				})
			})
		},
	}
}

func workerTable(workers []ops.Worker, now time.Time) *table {
	t := newTable(column{name: "WORKER"}, column{name: "STATE"}, column{name: "HOST"}, column{name: "PID", right: true},
		column{name: "UP", right: true},
		column{name: "HEARTBEAT", right: true}, column{name: "HANDLERS", limit: 80})
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
	return t
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
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				leases, err := o.Leases(ctx)
				if err != nil {
					return err
				}
				return a.print(leases, func() {
					if len(leases) == 0 {
						fmt.Fprintln(a.out, "No lease is held.")
						return
					}
					leaseTable(leases).write(a.out)
				})
			})
		},
	}
}

func leaseTable(leases []ops.Lease) *table {
	t := newTable(column{name: "LOCK"}, column{name: "OWNER"}, column{name: "EXPIRES"})
	for _, l := range leases {
		expires := "in " + age(l.ExpiresIn)
		if l.ExpiresIn < 0 {
			expires = "expired " + age(-l.ExpiresIn) + " ago"
		}
		t.add(l.Name, l.OwnerID, expires)
	}
	return t
}
