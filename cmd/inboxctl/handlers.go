package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

func newHandlers(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "handlers", Short: "Handler keys, their workers, and which are paused",
		Long: `Lists the handler keys that living workers have, that are paused, or that have
pending or processing statuses. If no living worker has a key, its handler was
renamed or removed, or its process is down, and its statuses wait.

JSON: a list of ops.Handler.`,
		Example: `  inboxctl handlers`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				handlers, err := o.Handlers(ctx)
				if err != nil {
					return err
				}
				return a.print(handlers, func() { handlerTable(handlers).write(a.out) })
			})
		},
	}
}

func handlerTable(handlers []ops.Handler) *table {
	t := newTable(column{name: "HANDLER"}, column{name: "WORKERS", right: true}, column{name: "PAUSED"},
		column{name: "NOTE"})
	for _, h := range handlers {
		note := h.Obstacle
		if h.StoredOnly {
			note = "has open statuses, but no living worker lists it"
		}
		t.add(h.HandlerKey, number(h.Workers), yesNo(h.Paused), note)
	}
	return t
}

func newPause(a *app) *cobra.Command {
	cmd := newPausing(a, "paused", (*ops.Ops).Pause)
	cmd.Use, cmd.Short = "pause HANDLER-KEY...", "Pause handlers"
	cmd.Long = `Makes all workers stop claiming statuses of a handler key, each within a heartbeat.
Running handlers continue to their end. Messages are still accepted, and wait. The
pause lasts until "inboxctl resume", also across restarts.

JSON: {"Results": [{"HandlerKey", "Outcome", "Error"}]}.`
	cmd.Example = `  inboxctl pause orders.mail
  inboxctl pause orders.mail orders.invoice`
	return cmd
}

func newResume(a *app) *cobra.Command {
	cmd := newPausing(a, "resumed", (*ops.Ops).Resume)
	cmd.Use, cmd.Short = "resume HANDLER-KEY...", "Resume paused handlers"
	cmd.Long = `Ends a pause. Workers claim again within a heartbeat. If a key was not paused,
nothing is done and no audit row is written. inboxctl does not know legacy keys: to
resume a renamed handler, give each key that "inboxctl handlers" shows as paused.

JSON: {"Results": [{"HandlerKey", "Outcome", "Error"}]}.`
	cmd.Example = `  inboxctl resume orders.mail`
	return cmd
}

func newBackfill(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "backfill HANDLER-KEY", Short: "Explain where a handler can be backfilled",
		Long: `A backfill gives a handler that was added later the statuses it lacks for messages
that are stored already. inboxctl cannot do that, because what a handler subscribes
to, its legacy keys, its retention and its order are in the application's code. It
refuses with code 4. Use the page Handlers of the application's dashboard, or

  o, err := ib.Ops()
  result, err := o.Backfill(ctx, actor, handlerKey, from, to, ops.Bulk{})

See docs/handlers.md.`,
		Example: `  inboxctl backfill orders.mail`,
		Args:    oneArg("handler key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				_, err := o.Backfill(ctx, a.who(), args[0], time.Time{}, time.Time{}, ops.Bulk{})
				if errors.Is(err, ops.ErrNeedsApplication) {
					err = fmt.Errorf("%w: the handler's channel, types and keys are in the application's code and not in the database", err)
				}
				return err
			})
		},
	}
}

func newPausing(
	a *app, done string, do func(o *ops.Ops, ctx context.Context, actor ops.Actor, handlerKey string) error,
) *cobra.Command {
	return &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse("a handler key is required, \"inboxctl handlers\" lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				return a.pauseEach(ctx, o, done, do, args)
			})
		},
	}
}

// pauseResult is the result for one handler key.
type pauseResult struct {
	HandlerKey string
	Outcome    string
	Error      string
}

func (a *app) pauseEach(ctx context.Context, o *ops.Ops, done string,
	do func(*ops.Ops, context.Context, ops.Actor, string) error, keys []string,
) error {
	results := struct{ Results []pauseResult }{}
	var problems []error
	for _, key := range keys {
		err, outcome := do(o, ctx, a.who(), key), done
		if errors.Is(err, ops.ErrNotPaused) { // already as wanted
			err, outcome = nil, "was not paused"
		}
		if err != nil {
			problems = append(problems, err)
			results.Results = append(results.Results, pauseResult{HandlerKey: key, Outcome: "not " + done,
				Error: secrets.Mask(err.Error())})
			continue
		}
		results.Results = append(results.Results, pauseResult{HandlerKey: key, Outcome: outcome})
		if a.output != "json" {
			fmt.Fprintf(a.out, "%s %s\n", outcome, oneLine(key))
		}
	}
	if a.output == "json" {
		if err := writeJSON(a.out, results); err != nil {
			return err
		}
	}
	return combineErrors(problems, len(keys)-len(problems), len(keys))
}
