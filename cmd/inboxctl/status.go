package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
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
not run: it is paused, no living worker lists it, its circuit breaker is open, one
of its calls does not return, their worker is dead, or they wait behind poisoned
ones in their lanes. "inboxctl handler" has the details.

If a table is locked or slow, a "?" stands for what the database did not count in
time. inboxctl then says where to look for the cause, and ends with code 5.

JSON: ops.Overview.`,
		Example: `  inboxctl status
  inboxctl status --watch 5s
  inboxctl status -o json | jq -r '.handlers[] | select(.poisoned > 0) | .handler_key'`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				v, err := o.Overview(ctx)
				if err != nil {
					return err
				}
				return a.printPartly(v, v.Incomplete, func() { writeOverview(a.out, v) })
			})
		},
	}
}

// printPartly prints a result. If it is incomplete, it returns that as an error with a code of its own.
func (a *app) printPartly(v any, incomplete string, write func()) error {
	if err := a.print(v, write); err != nil || incomplete == "" {
		return err
	}
	return &codedError{exitPartly, errors.New(incomplete)}
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
	t := newTable("HANDLER", ">PENDING", ">DUE", ">OLDEST", ">WAITING", ">PROCESSING", ">POISONED", "NOTE")
	t.none = "No handlers: no worker has started, and there are no open statuses."
	poisoned := false
	for _, h := range v.Handlers {
		oldest := ""
		switch {
		case h.Due.Unknown:
			oldest = count(h.Due)
		case h.Due.N > 0:
			oldest = age(h.OldestDueAge)
		}
		t.add(h.HandlerKey, count(h.Pending), count(h.Due), oldest, count(h.Waiting), count(h.Processing), count(h.Poisoned),
			strings.Join(h.Notes(), "; "))
		poisoned = poisoned || h.Poisoned.N > 0
	}
	t.write(w)
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
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := when.period(a.now())
			if err != nil {
				return err
			}
			return a.reading(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
				failures, err := o.Failures(ctx, filters.filter(in))
				if err != nil {
					return err
				}
				err = a.print(failures, func() { writeFailures(a.out, failures, a.now(), wide) })
				if failures.Capped && !a.structured() {
					a.say("Stopped after %d statuses: counts may be higher and groups may be missing. "+
						"Narrow the search with --handler, --from or --to.", failures.Scanned)
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

func writeFailures(w io.Writer, failures ops.Failures, now time.Time, wide bool) {
	t := newTable("FINGERPRINT", "HANDLER", ">POISONED", ">FAILING", ">FIRST", ">LAST", "ERROR").
		limit("ERROR", errorLimit(wide))
	t.none = "No status is poisoned or failing."
	for _, g := range failures.Groups {
		t.add(g.Fingerprint, g.HandlerKey, number(g.Poisoned), number(g.Failing), ago(now, g.FirstSeen), ago(now, g.LastSeen),
			g.Error)
	}
	t.write(w)
}
