package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// whyApplication ends the errors of actions that need the application.
const whyApplication = "which handlers take the message, and how its channel reads it, is in the application's code and nowhere in the database: " +
	"do it in the application's dashboard, or by Inbox.Ops in its process"

func newReplay(a *app) *cobra.Command {
	var allow bool
	var namespace string
	cmd := &cobra.Command{
		Use: "replay MESSAGE-ID", Short: "Says where a message can be replayed",
		Long: `A replay is an edited copy of a message that is accepted as a new one, for all
handlers that take its type now, also those that had completed. inboxctl cannot do
that: which handlers these are is in the application's code and nowhere in the
database. It is refused with code 4, after the checks that inboxctl can make. Do
it in the application's dashboard, or by

  o, err := ib.Ops(ops.AllowReplay())
  accepted, err := o.Replay(ctx, actor, ops.MessageRef{ID: messageID}, ops.Edit{})

To run only what is poisoned once more use "inboxctl retry".`,
		Example: `  inboxctl replay 7f9c2ba4 --allow-replay
  inboxctl retry --matching --message 7f9c2ba4`,
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if !allow {
					return fmt.Errorf("%s: %w: a replay may make the application do anything that a message can; --allow-replay says that you mean it", ops.ActionReplay, ops.ErrReplayOff)
				}
				accepted, err := o.Replay(ctx, a.who(), ops.MessageRef{ID: args[0], Namespace: namespace}, ops.Edit{})
				if err != nil {
					return explained(err)
				}
				return a.print(accepted, func() { writeAccepted(a, accepted) })
			}, ops.AllowReplay())
		},
	}
	cmd.Flags().BoolVar(&allow, "allow-replay", false, "allow it: replays are off by default")
	bindNamespace(cmd, &namespace)
	return cmd
}

// explained adds to an error that the action needs the application, and why.
func explained(err error) error {
	if errors.Is(err, ops.ErrNeedsApplication) {
		return fmt.Errorf("%w: %s", err, whyApplication)
	}
	return err
}

func writeAccepted(a *app, accepted ops.Accepted) {
	fmt.Fprintf(a.out, "%s message %s for %d handlers\n", accepted.Outcome, oneLine(accepted.MessageID), accepted.Handlers)
}
