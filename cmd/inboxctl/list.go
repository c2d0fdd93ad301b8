package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newList(a *app) *cobra.Command {
	var (
		filters     filterFlags
		page        pageFlags
		counts, all bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "Find statuses by state, handler, message, error and age",
		Long: `Lists statuses: one line for each message and handler, the newest first. A status
must match all filters. "failing" selects pending statuses that have failed and
will be retried.

A page has --limit lines. The value of --after for the next page is printed below
it. With --error, --fingerprint or --type a search may stop early after it has read
many rows. It then prints how to continue.

RECEIVED is how long ago the message was received, ERRORS how often it has failed
since an operator last retried it. --wide shows whole errors.

JSON: ops.Page of ops.Status; with --count ops.Count.`,
		Example: `  inboxctl list --state poisoned
  inboxctl list --state poisoned,failing --handler orders.mail --error timeout
  inboxctl list --message 7f9c2ba4 --wide
  inboxctl list --state pending --to 1h --count
  inboxctl list --state poisoned -o json | jq -r '.Items[].ID'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, to, after, err := page.place(a.now())
			if err != nil {
				return err
			}
			filter := filters.filter(from, to)
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if counts {
					return a.printCount(ctx, o, filter)
				}
				found, err := o.List(ctx, filter, after, page.limit)
				if err != nil {
					return err
				}
				found.Next = next(from, to, found.Next)
				err = a.print(found, func() {
					if len(found.Items) == 0 {
						fmt.Fprintln(a.out, "No status found.")
						return
					}
					statusTable(found.Items, a.now(), all).write(a.out)
				})
				a.more(found.Next, found.Partial, found.Looked)
				return err
			})
		},
	}
	filters.bindStates(cmd, ops.States()...)
	filters.bind(cmd)
	page.bindPeriod(cmd, receivedWhen)
	page.bind(cmd)
	cmd.Flags().BoolVar(&counts, "count", false, "only count them, reading at most 10000 rows")
	cmd.Flags().BoolVar(&all, "wide", false, "show whole errors")
	return cmd
}

func (a *app) printCount(ctx context.Context, o *ops.Ops, filter ops.Filter) error {
	n, err := o.Count(ctx, filter)
	if err != nil {
		return err
	}
	return a.print(n, func() { fmt.Fprintln(a.out, count(n)) })
}

func statusTable(statuses []ops.Status, now time.Time, wide bool) *table {
	limit := errorColumns
	if wide {
		limit = 0
	}
	t := newTable(column{name: "STATUS"}, column{name: "STATE"}, column{name: "HANDLER"}, column{name: "MESSAGE"},
		column{name: "TYPE", limit: 40},
		column{name: "RECEIVED", right: true}, column{name: "ERRORS", right: true}, column{name: "ERROR", limit: limit})
	for _, s := range statuses {
		t.add(s.ID, stateName(s), s.HandlerKey, s.MessageID, s.Type, ago(now, s.ReceivedAt), number(s.ErrorCount),
			s.LastError)
	}
	return t
}

// stateName returns the state. For a pending status it adds whether it waits in its lane or has
// failed.
func stateName(s ops.Status) string {
	switch {
	case s.State == ops.StatePending && s.Waiting:
		return "pending (waits in lane)"
	case s.Failing:
		return "pending (failing)"
	}
	return string(s.State)
}
