package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// handlerAction is an action on the status of one handler of a message.
type handlerAction struct {
	done string
	// ask is the question before it, about a status as it is now.
	ask func(s ops.Status) string
	do  func(ctx context.Context, o *ops.Ops, s ops.Status) error
}

func newRerun(a *app) *cobra.Command {
	var reason string
	cmd := newHandlerAction(a, handlerAction{done: "made due",
		ask: func(s ops.Status) string {
			return fmt.Sprintf("%s of message %s is %s. What it did is done again. Run it again", oneLine(s.HandlerKey),
				oneLine(s.MessageID), stateName(s, a.now()))
		},
		do: func(ctx context.Context, o *ops.Ops, s ops.Status) error {
			return o.Rerun(ctx, a.who(), s.Handler(), reason)
		}})
	cmd.Use, cmd.Short = "rerun MESSAGE-ID --handler KEY --reason TEXT", "Run one completed or discarded handler again"
	cmd.Long = `Makes the completed or discarded status of one handler due now, with its counts
reset, so that a worker runs the handler again for this message. What the handler
did before is done again. No other handler of the message runs.

In its lane the status is the next one. A paused handler runs it once it is resumed.
It is refused if it has not ended, if it is superseded (the handler was renamed: run
its status under the other key again), and if no living worker has the handler. The
reason goes into the audit.

` + handlerActionHelp
	cmd.Example = `  inboxctl rerun order-7f9c2ba4 --handler orders.mail --reason 'the mail got lost'`
	cmd.Flags().StringVar(&reason, "reason", "", "why, 1 to 500 characters, for the audit")
	return cmd
}

func newRelease(a *app) *cobra.Command {
	cmd := newHandlerAction(a, handlerAction{done: "released",
		ask: func(s ops.Status) string {
			return fmt.Sprintf("%s of message %s is %s, by worker %s for %s. Unless the handler is transactional, it may run twice at once. Release the claim",
				oneLine(s.HandlerKey), oneLine(s.MessageID), stateName(s, a.now()), oneLine(s.WorkerID),
				ago(a.now(), s.ProcessingStartedAt))
		},
		do: func(ctx context.Context, o *ops.Ops, s ops.Status) error {
			return o.ReleaseClaim(ctx, a.who(), s.Ref())
		}})
	cmd.Use, cmd.Short = "release MESSAGE-ID --handler KEY", "Take a claim away from a handler that hangs"
	cmd.Long = `Releases the claim of a status that is being processed and makes the status due now:
for a handler that hangs and ignores its context, or a worker that is known to be
dead. Nothing stops the old call, and what it returns changes nothing in the status.
A handler that is not transactional may run twice at once, also in a lane. The
transaction of a transactional one is ended, if the database role may do that.

The claim counts as abandoned, like that of a dead worker. Claims of dead workers are
released without this command within WorkerTimeout and two sweeps, 40 s by default.

` + handlerActionHelp
	cmd.Example = `  inboxctl release order-7f9c2ba4 --handler orders.mail`
	return cmd
}

const handlerActionHelp = `inboxctl shows the status and asks for confirmation, unless --yes is given. If the
status changes meanwhile, nothing is done.

JSON: {"message_id", "handler_key", "status_id", "outcome"}.`

func newHandlerAction(a *app, act handlerAction) *cobra.Command {
	var key, namespace string
	var yes bool
	cmd := &cobra.Command{
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return misuse("--handler is required, \"inboxctl show %s\" lists the message's handlers", oneLine(args[0]))
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				s, err := statusOf(ctx, o, ops.MessageRef{ID: args[0], Namespace: namespace}, key)
				if err != nil {
					return err
				}
				if !yes {
					if err := a.agree(ctx, act.ask(s)); err != nil {
						return err
					}
				}
				if err := act.do(ctx, o, s); err != nil {
					return err
				}
				result := struct{ MessageID, HandlerKey, StatusID, Outcome string }{s.MessageID, s.HandlerKey, s.ID, act.done}
				return a.print(result, func() {
					fmt.Fprintf(a.out, "%s of message %s: %s\n", oneLine(key), oneLine(s.MessageID), act.done)
				})
			})
		},
	}
	cmd.Flags().StringVar(&key, "handler", "", "the handler key of the status")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	bindNamespace(cmd, &namespace)
	return cmd
}

// statusOf returns the status of one handler of a message.
func statusOf(ctx context.Context, o *ops.Ops, ref ops.MessageRef, key string) (ops.Status, error) {
	page, err := o.List(ctx, ops.Filter{MessageID: ref.ID, Namespace: ref.Namespace, HandlerKeys: []string{key}}, "",
		ops.MaxLimit)
	switch {
	case err != nil:
		return ops.Status{}, err
	case len(page.Items) == 0:
		return ops.Status{}, fmt.Errorf("message %.200q: %w: it has no status of handler %.200q", ref.ID, ops.ErrNotFound, key)
	case len(page.Items) > 1:
		return ops.Status{}, fmt.Errorf("message %q: %w: name one with --namespace: %q or %q", ref.ID, ops.ErrAmbiguous,
			page.Items[0].Namespace, page.Items[1].Namespace)
	}
	return page.Items[0], nil
}
