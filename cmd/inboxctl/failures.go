package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

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
				if failures.Capped && a.output != "json" {
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
