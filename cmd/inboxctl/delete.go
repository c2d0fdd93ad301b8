package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newDelete(a *app) *cobra.Command {
	var confirmation, namespace string
	cmd := &cobra.Command{
		Use: "delete MESSAGE-ID", Short: "Delete a message and all of its statuses",
		Long: `Deletes a message with the statuses of all of its handlers, whatever their state.
This cannot be undone. If the message is delivered again, it is new and every
handler runs again, including those that had completed. It is refused while a
handler is running. To give up a single poisoned status use "inboxctl discard".

inboxctl asks you to type the ID. Scripts answer with --confirm and the ID.

JSON: {"MessageID", "Outcome"}.`,
		Example: `  inboxctl delete 7f9c2ba4
  inboxctl delete 7f9c2ba4 --confirm 7f9c2ba4`,
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd, "message", args[0], confirmation,
				func(o *ops.Ops, ctx context.Context, actor ops.Actor, id, confirmation string) error {
					return o.Delete(ctx, actor, ops.MessageRef{ID: id, Namespace: namespace}, confirmation)
				})
		},
	}
	cmd.Flags().StringVar(&confirmation, "confirm", "", "the ID, as confirmation")
	bindNamespace(cmd, &namespace)
	return cmd
}

// delete deletes what an ID names, after the operator has typed the ID again.
func (a *app) delete(cmd *cobra.Command, what, id, confirmation string,
	do func(o *ops.Ops, ctx context.Context, actor ops.Actor, id, confirmation string) error,
) error {
	if cmd.Flags().Changed("confirm") && confirmation != id {
		return misuse("--confirm = %q: must be the ID %q", confirmation, id)
	}
	return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
		if confirmation == "" {
			question := fmt.Sprintf("Deleting a %s cannot be undone. To delete it as %s, type its ID: ", what, oneLine(a.actor))
			if err := a.confirm(ctx, question, id); err != nil {
				return err
			}
		}
		if err := do(o, ctx, a.who(), id, id); err != nil {
			return err
		}
		outcome := map[string]string{map[string]string{"message": "MessageID", "rejected message": "RejectedID"}[what]: id,
			"Outcome": "deleted"}
		return a.print(outcome, func() { fmt.Fprintf(a.out, "deleted %s %s\n", what, oneLine(id)) })
	})
}
