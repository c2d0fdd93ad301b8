package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newAudit(a *app) *cobra.Command {
	var (
		page             pageFlags
		who, act, export string
		filter           ops.AuditFilter
	)
	cmd := &cobra.Command{
		Use: "audit", Short: "The audit of actions and views, latest first",
		Long: `Lists the actions of operators, their views of messages and their denied requests,
latest first. Each row was written in the transaction of its action. ROLE is the
PostgreSQL role with which the actor was logged in. Reading the audit is not audited.

--export prints all rows that match, as they are read: jsonl has one JSON object in
each line, csv starts with a line of column names. In csv, characters that a terminal
would interpret are escaped.

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
			switch export {
			case "":
			case "jsonl", "csv":
				if len(changed(cmd, []string{"limit", "after", "output"})) > 0 {
					return misuse("--export prints all rows in its own format: omit --limit, --after and --output")
				}
				return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
					return a.exportAudit(ctx, o, filter, export)
				})
			default:
				return misuse("--export = %q: must be jsonl or csv", export)
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
	flags.StringVar(&export, "export", "", "print all rows that match, as jsonl or csv")
	page.bindPeriod(cmd, "")
	completeFlag(cmd, "action", names...)
	completeFlag(cmd, "export", "jsonl", "csv")
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

// exportPage is how many rows are held in memory at once. It is small because the row of a bulk
// action names up to 1,000 statuses.
const exportPage = 100

func (a *app) exportAudit(ctx context.Context, o *ops.Ops, filter ops.AuditFilter, format string) error {
	write := a.auditLine
	if format == "csv" {
		lines := csv.NewWriter(a.out)
		record := func(fields ...string) error {
			for i := range fields {
				fields[i] = oneLine(fields[i])
			}
			_ = lines.Write(fields) // Error returns its error after Flush
			lines.Flush()
			return lines.Error()
		}
		if err := record("id", "occurred_at", "actor", "database_role", "action", "target", "detail"); err != nil {
			return err
		}
		write = func(e ops.AuditEntry) error {
			return record(e.ID, e.OccurredAt.UTC().Format(time.RFC3339Nano), string(e.Actor), e.DatabaseRole, string(e.Action),
				e.Target, e.Detail)
		}
	}
	after := ops.Cursor("")
	for {
		page, err := o.Audit(ctx, filter, after, exportPage)
		if err != nil {
			return err
		}
		for _, entry := range page.Items {
			if err := write(entry); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

func (a *app) auditLine(entry ops.AuditEntry) error {
	var line bytes.Buffer
	if err := encode(&line, reflect.ValueOf(entry)); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	_, err := fmt.Fprintf(a.out, "%s\n", escapeUnprintable(line.Bytes()))
	return err
}
