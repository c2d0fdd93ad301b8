package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newAudit(a *app) *cobra.Command {
	var (
		page     pageFlags
		who, act string
		filter   ops.AuditFilter
	)
	cmd := &cobra.Command{
		Use: "audit", Short: "Who did what, the last action first",
		Long: `Lists the actions of operators and their looks at messages, the last first. Each
row was written in the transaction of what it tells. Reading the audit leaves no
row.

JSON: ops.AuditPage, whose Detail is JSON in a string.`,
		Example: `  inboxctl audit
  inboxctl audit --by alice@ops1 --from 24h
  inboxctl audit --action delete
  inboxctl audit --target 7f9c2ba4`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			filter.Actor, filter.Action = ops.Actor(who), ops.Action(act)
			var after ops.Cursor
			if filter.From, filter.To, after, err = page.place(a.now()); err != nil {
				return err
			}
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				found, err := o.Audit(ctx, filter, after, page.limit)
				if err != nil {
					return err
				}
				found.Next = next(filter.From, filter.To, found.Next)
				err = a.print(found, func() {
					if len(found.Entries) == 0 {
						fmt.Fprintln(a.out, "No audit row found.")
						return
					}
					auditTable(found.Entries).write(a.out)
				})
				a.more(found.Next, found.Partial, found.Looked)
				return err
			})
		},
	}
	actions := []ops.Action{ops.ActionView, ops.ActionViewRejected, ops.ActionRetry, ops.ActionDiscard, ops.ActionDelete, ops.ActionReplay, ops.ActionReAccept,
		ops.ActionDeleteRejected, ops.ActionPause, ops.ActionResume, ops.ActionCleanup}
	names := make([]string, len(actions))
	for i, action := range actions {
		names[i] = string(action)
	}
	flags := cmd.Flags()
	flags.StringVar(&who, "by", "", "of this actor")
	flags.StringVar(&act, "action", "", "of this action, such as retry, discard, delete, view")
	flags.StringVar(&filter.Target, "target", "", "whose target contains this")
	page.bindPeriod(cmd, "")
	fixed(cmd, "action", names...)
	page.bind(cmd)
	return cmd
}

func auditTable(entries []ops.AuditEntry) *table {
	t := newTable(column{name: "AT"}, column{name: "ACTOR"}, column{name: "ACTION"}, column{name: "TARGET"}, column{name: "DETAIL", limit: 80})
	for _, e := range entries {
		t.add(instant(e.OccurredAt), string(e.Actor), string(e.Action), e.Target, e.Detail)
	}
	return t
}
