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
		Use: "audit", Short: "The audit of actions and views, latest first",
		Long: `Lists the actions of operators, their views of messages and their denied requests,
latest first. Each row was written in the transaction of its action. ROLE is the
PostgreSQL role with which the actor was logged in. Reading the audit is not audited.

` + exportHelp + `

JSON: ops.Page of ops.AuditEntry, whose Detail is JSON in a string; with jsonl an
ops.AuditEntry.`,
		Example: `  inboxctl audit
  inboxctl audit --by alice@ops1 --from 24h
  inboxctl audit --action delete
  inboxctl audit --target 7f9c2ba4
  inboxctl audit --from 30d --export csv > audit.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			filter.Actor, filter.Action = ops.Actor(who), ops.Action(act)
			var after ops.Cursor
			if filter.From, filter.To, after, err = page.start(a.now()); err != nil {
				return err
			}
			if err := page.checkExport(cmd); err != nil {
				return err
			}
			if page.export != "" {
				return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
					read := func(after ops.Cursor, limit int) (ops.Page[ops.AuditEntry], error) {
						return o.Audit(ctx, filter, after, limit)
					}
					return export(a, page.export, page.exportLimit(cmd), read)
				})
			}
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				found, err := o.Audit(ctx, filter, after, page.limit)
				if err != nil {
					return err
				}
				found.Next = next(filter.From, filter.To, found.Next)
				err = a.print(found, func() {
					if len(found.Items) == 0 {
						fmt.Fprintln(a.out, "No audit row found.")
						return
					}
					auditTable(found.Items).write(a.out)
				})
				a.more(found.Next, found.Partial, found.Looked)
				return err
			})
		},
	}
	names := []string{}
	for _, action := range ops.Actions() {
		names = append(names, string(action))
	}
	flags := cmd.Flags()
	flags.StringVar(&who, "by", "", "of this actor")
	flags.StringVar(&act, "action", "", "of this action, such as retry, discard, delete, view, denied")
	flags.StringVar(&filter.Target, "target", "", "whose target contains this")
	page.bindExport(cmd)
	page.bindPeriod(cmd, "")
	completeFlag(cmd, "action", names...)
	page.bind(cmd)
	return cmd
}

func auditTable(entries []ops.AuditEntry) *table {
	t := newTable(column{name: "AT"}, column{name: "ACTOR"}, column{name: "ROLE"}, column{name: "ACTION"},
		column{name: "TARGET"}, column{name: "DETAIL", limit: 80})
	for _, e := range entries {
		t.add(instant(e.OccurredAt), string(e.Actor), e.DatabaseRole, string(e.Action), e.Target, e.Detail)
	}
	return t
}
