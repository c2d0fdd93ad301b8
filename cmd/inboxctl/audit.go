package main

import (
	"context"
	"io"

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
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			filter.Actor, filter.Action = ops.Actor(who), ops.Action(act)
			return printPage(a, cmd, &page,
				func(ctx context.Context, o *ops.Ops, in period, after ops.Cursor, limit int) (ops.Page[ops.AuditEntry], error) {
					filter.From, filter.To = in.from, in.to
					return o.Audit(ctx, filter, after, limit)
				}, writeAudit)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&who, "by", "", "of this actor")
	flags.StringVar(&act, "action", "", "of this action, such as retry, discard, delete, view, denied")
	flags.StringVar(&filter.Target, "target", "", "whose target contains this")
	page.bindExport(cmd)
	page.bindPeriod(cmd, "")
	completeFlag(cmd, "action", texts[string](ops.Actions())...)
	page.bind(cmd)
	return cmd
}

func writeAudit(w io.Writer, entries []ops.AuditEntry) {
	t := newTable("AT", "ACTOR", "ROLE", "ACTION", "TARGET", "DETAIL").limit("DETAIL", 80)
	t.none = "No audit row found."
	for _, e := range entries {
		t.add(instant(e.OccurredAt), string(e.Actor), e.DatabaseRole, string(e.Action), e.Target, e.Detail)
	}
	t.write(w)
}
