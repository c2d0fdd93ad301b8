package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// whyApplication ends the errors of actions that need the application.
const whyApplication = "the message's handlers and its channel's decoder are in the application's code and not in the database"

func newReplay(a *app) *cobra.Command {
	var allow bool
	var namespace string
	cmd := &cobra.Command{
		Use: "replay MESSAGE-ID", Short: "Explain where a message can be replayed",
		Long: `A replay is an edited copy of a message that is accepted as a new message, for all
handlers that now subscribe to its type, including those that have completed the
original. inboxctl cannot do that, because the subscriptions are in the
application's code. It refuses with code 4, after the checks that it can make. Use
the application's dashboard, or

  o, err := ib.Ops(func(o *ops.Options) { o.AllowReplay = true })
  accepted, err := o.Replay(ctx, actor, ops.MessageRef{ID: messageID}, ops.Edit{})

To run only poisoned statuses again use "inboxctl retry".`,
		Example: `  inboxctl replay 7f9c2ba4 --allow-replay
  inboxctl retry --matching --message 7f9c2ba4`,
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if !allow {
					return fmt.Errorf("%s: %w: a replay can trigger anything that a message can; confirm it with --allow-replay",
						ops.ActionReplay, ops.ErrReplayOff)
				}
				accepted, err := o.Replay(ctx, a.who(), ops.MessageRef{ID: args[0], Namespace: namespace}, ops.Edit{})
				if err != nil {
					return explained(err)
				}
				return a.print(accepted, func() { writeAccepted(a, accepted) })
			}, func(o *ops.Options) { o.AllowReplay = true })
		},
	}
	cmd.Flags().BoolVar(&allow, "allow-replay", false, "allow the replay; replays are off by default")
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
