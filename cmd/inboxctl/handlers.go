package main

import (
	"context"
	"errors"
	"fmt"
	"io"

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
		Args:    noArgs, RunE: view(a, (*ops.Ops).Handlers, writeHandlers),
	}
}

func writeHandlers(w io.Writer, handlers []ops.Handler) {
	t := newTable("HANDLER", ">WORKERS", "PAUSED", "NOTE")
	for _, h := range handlers {
		note := h.Obstacle
		if h.StoredOnly {
			note = "has open statuses, but no living worker lists it"
		}
		t.add(h.HandlerKey, number(h.Workers), yesNo(h.Paused), note)
	}
	t.write(w)
}

func newPause(a *app) *cobra.Command {
	cmd := newPausing(a, "paused", (*ops.Ops).Pause)
	cmd.Use, cmd.Short = "pause HANDLER-KEY...", "Pause handlers"
	cmd.Long = `Makes all workers stop claiming statuses of a handler key, each within a heartbeat.
Running handlers continue to their end. Messages are still accepted, and wait. The
pause lasts until "inboxctl resume", also across restarts.

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
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

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
	cmd.Example = `  inboxctl resume orders.mail`
	return cmd
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
type pauseResult struct{ HandlerKey, Outcome, Error string }

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
			results.Results = append(results.Results, pauseResult{key, "not " + done, secrets.Mask(err.Error())})
			continue
		}
		results.Results = append(results.Results, pauseResult{HandlerKey: key, Outcome: outcome})
		if !a.structured() {
			fmt.Fprintf(a.out, "%s %s\n", outcome, oneLine(key))
		}
	}
	if a.structured() {
		if err := a.writeStructured(results); err != nil {
			return err
		}
	}
	return combineErrors(problems, len(keys)-len(problems), len(keys))
}
