package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func newGaps(a *app) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use: "gaps", Short: "Records that no longer existed when they were to be read",
		Long: `Lists the offsets that a consumer skipped because their records no longer existed,
latest first. FROM is the offset that should have been read next, TO the one that
was read instead. A lower TO means that the topic's log began anew. Only the
producer of the records knows what they contained.

JSON: ops.Page of models.Gap.`,
		Example: `  inboxctl gaps`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				found, err := o.ListGaps(ctx, ops.Cursor(page.after), page.limit)
				if err != nil {
					return err
				}
				err = a.print(found, func() {
					if len(found.Items) == 0 {
						fmt.Fprintln(a.out, "No gaps found.")
						return
					}
					gapTable(found.Items).write(a.out)
				})
				a.more(found.Next, false, 0)
				return err
			})
		},
	}
	page.bind(cmd)
	return cmd
}

func gapTable(gaps []models.Gap) *table {
	t := newTable(column{name: "FOUND"}, column{name: "CHANNEL"}, column{name: "TOPIC"},
		column{name: "PARTITION", right: true},
		column{name: "FROM", right: true}, column{name: "TO", right: true}, column{name: "REASON", limit: errorColumns})
	for _, g := range gaps {
		t.add(instant(g.FoundAt), g.Channel, g.Topic, number(g.Partition), number(g.FromOffset), number(g.ToOffset), g.Reason)
	}
	return t
}
