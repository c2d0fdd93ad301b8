package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Overview of the inbox: pending, processing and poisoned statuses",
		Long: `Shows each handler key with its counts, and which commands to run next.

  PENDING     not started or waiting for the next attempt
  DUE         pending statuses that could run now; OLDEST is how long the oldest
              has been due: if it grows, workers do not keep up or have stopped
  WAITING     pending statuses that wait for another one in their lane
  PROCESSING  claimed by a worker
  POISONED    wait for "inboxctl retry" or "inboxctl discard"

Above the table are the health problems that living workers reported with their
last heartbeats, such as a halted partition. A note says why a handler's statuses do
not run: it is paused, no living worker lists it, its circuit breaker is open, or
one of its calls does not return.

JSON: ops.Overview.`,
		Example: `  inboxctl status
  inboxctl status --watch 5s
  inboxctl status -o json | jq -r '.handlers[] | select(.poisoned > 0) | .handler_key'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				overview, err := o.Overview(ctx)
				if err != nil {
					return err
				}
				return a.print(overview, func() { writeOverview(a.out, overview) })
			})
		},
	}
}

func writeOverview(w io.Writer, v ops.Overview) {
	fact(w, "inbox", fmt.Sprintf("%q", v.Inbox))
	fact(w, "at", instant(v.At))
	fact(w, "workers alive", number(v.WorkersAlive))
	for _, r := range v.Reasons {
		fact(w, string(r.State), r.String())
	}
	fact(w, "rejected", count(v.Rejected))
	fact(w, "gaps", count(v.Gaps))
	fact(w, "unrouted", number(v.Unrouted))
	fmt.Fprintln(w)
	t := newTable(column{name: "HANDLER"}, column{name: "PENDING", right: true}, column{name: "DUE", right: true},
		column{name: "OLDEST", right: true},
		column{name: "WAITING", right: true}, column{name: "PROCESSING", right: true}, column{name: "POISONED", right: true},
		column{name: "NOTE"})
	poisoned := false
	for _, h := range v.Handlers {
		oldest := ""
		if h.Due.N > 0 {
			oldest = age(h.OldestDueAge)
		}
		t.add(h.HandlerKey, count(h.Pending), count(h.Due), oldest, count(h.Waiting), count(h.Processing), count(h.Poisoned),
			h.Obstacle)
		poisoned = poisoned || h.Poisoned.N > 0
	}
	if len(v.Handlers) == 0 {
		fmt.Fprintln(w, "No handlers: no worker has started, and there are no open statuses.")
	} else {
		t.write(w)
	}
	next := func(what, command string) { fmt.Fprintf(w, "%s: inboxctl %s\n", what, command) }
	if v.WorkersAlive == 0 || poisoned || v.Rejected.N > 0 || v.Gaps.N > 0 {
		fmt.Fprintln(w)
	}
	if v.WorkersAlive == 0 {
		next("No worker is alive, so nothing is processed", "workers")
	}
	if poisoned {
		next("See why statuses are poisoned", "failures")
	}
	if v.Rejected.N > 0 {
		next("See the rejected records", "rejected list")
	}
	if v.Gaps.N > 0 {
		next("See the gaps", "gaps")
	}
}

func newFailures(a *app) *cobra.Command {
	var (
		filters filterFlags
		when    pageFlags
		wide    bool
	)
	cmd := &cobra.Command{
		Use: "failures", Short: "Poisoned and failing statuses, grouped by handler and error",
		Long: `Groups the poisoned and the failing statuses by handler key and error, ignoring
numbers, IDs, times, addresses and quoted text in errors. The largest group comes
first. FIRST and LAST are how long ago the oldest and the newest of its statuses
were added, which is mostly when their messages were received.

--error is compared with a group's error as it is shown here.

A group's fingerprint selects its statuses in "list", "retry" and "discard".
POISONED statuses wait for an operator. FAILING statuses are retried automatically.

JSON: ops.Failures.`,
		Example: `  inboxctl failures
  inboxctl failures --handler orders.mail --state poisoned --wide
  inboxctl list --fingerprint 3f1c… --limit 5
  inboxctl retry --matching --fingerprint 3f1c… --dry-run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, to, err := period(when.from, when.to, a.now())
			if err != nil {
				return err
			}
			filter := filters.filter(from, to)
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				failures, err := o.Failures(ctx, filter)
				if err != nil {
					return err
				}
				err = a.print(failures, func() {
					if len(failures.Groups) == 0 {
						fmt.Fprintln(a.out, "No status is poisoned or failing.")
						return
					}
					failureTable(failures, a.now(), wide).write(a.out)
				})
				if failures.Capped && !a.structured() {
					a.say("Stopped after %d statuses: counts may be higher and groups may be missing. "+
						"Narrow the search with --handler, --from or --to.", failures.Looked)
				}
				return err
			})
		},
	}
	filters.bindStates(cmd, ops.StatePoisoned, ops.StateFailing)
	filters.bindCommon(cmd)
	when.bindPeriod(cmd, receivedWhen)
	cmd.Flags().BoolVar(&wide, "wide", false, "show whole errors")
	return cmd
}

func failureTable(failures ops.Failures, now time.Time, wide bool) *table {
	limit := errorColumns
	if wide {
		limit = 0
	}
	t := newTable(column{name: "FINGERPRINT"}, column{name: "HANDLER"}, column{name: "POISONED", right: true},
		column{name: "FAILING", right: true},
		column{name: "FIRST", right: true}, column{name: "LAST", right: true}, column{name: "ERROR", limit: limit})
	for _, g := range failures.Groups {
		t.add(g.Fingerprint, g.HandlerKey, number(g.Poisoned), number(g.Failing), ago(now, g.FirstSeen), ago(now, g.LastSeen),
			g.Error)
	}
	return t
}
