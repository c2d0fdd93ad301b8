package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
)

const requestHelp = `The command stores a request, which a running process of the application carries out
in your name within about a heartbeat (5s), once at most. It waits for the result, at
most for --wait. If the request has not ended by then, the exit code is 6: "inboxctl
request ID" shows it later. One that no process has taken after an hour expires.`

// bindWait adds --wait.
func bindWait(cmd *cobra.Command, wait *time.Duration, most time.Duration) {
	cmd.Flags().DurationVar(wait, "wait", most, "wait so long for the result; 0 does not wait")
}

// awaitRequest waits for a request for at most so long. It says which request it is.
func (a *app) awaitRequest(ctx context.Context, o *ops.Ops, id string, wait time.Duration) (ops.Request, error) {
	a.say("Request %s", id)
	if wait <= 0 {
		return o.Request(ctx, id)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return o.AwaitRequest(ctx, id)
}

// printRequest prints a request with its result.
func (a *app) printRequest(r ops.Request) error {
	report := struct {
		ops.Request
		Result any
	}{r, resultOf(r)}
	return a.print(report, func() { writeRequest(a.out, r) })
}

// resultOf returns a request's result; nil if it has none.
func resultOf(r ops.Request) any {
	results := map[ops.Action]any{ops.ActionBackfill: new(ops.BulkResult), ops.ActionCleanup: new(handler.Deleted),
		ops.ActionReplay: new(ops.Accepted), ops.ActionCancel: new(map[string]bool),
		ops.ActionReadAgain: new(envelope.ReadAgainResult)}
	result := results[r.Kind]
	if r.Result == "" || result == nil || json.Unmarshal([]byte(r.Result), result) != nil {
		return nil
	}
	return result
}

func writeRequest(w io.Writer, r ops.Request) {
	fact(w, "request", r.ID)
	fact(w, "to", fmt.Sprintf("%s %s", r.Kind, r.Target))
	fact(w, "by", fmt.Sprintf("%s, %s", r.Actor, instant(r.RequestedAt)))
	if r.TakenBy != "" {
		fact(w, "taken", fmt.Sprintf("by %s, %s", r.TakenBy, instant(r.TakenAt)))
	}
	if !r.EndedAt.IsZero() {
		fact(w, "ended", instant(r.EndedAt))
		fact(w, "result", r.Result)
		fact(w, "problem", r.Problem)
	}
}

// finish waits for a request and prints it, and says how to go on with what it has left. Its error is also returned if
// it was printed.
func (a *app) finish(ctx context.Context, o *ops.Ops, id string, wait time.Duration) error {
	r, err := a.awaitRequest(ctx, o, id, wait)
	if r.ID == "" {
		return err
	}
	err = errors.Join(a.printRequest(r), err)
	if result, ok := resultOf(r).(*envelope.ReadAgainResult); ok && len(result.Left) > 0 {
		a.say("More is left to read: go on with --after %s", r.ID)
	}
	return err
}

func newRequest(a *app) *cobra.Command {
	var cancel bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "request ID", Short: "A request to the application, and what came of it",
		Long: `Shows what "inboxctl cancel", "backfill", "replay", "read-again" or
"cleanup --application" has requested, which process has taken it, and its result.
With --wait it waits for the end. With --cancel a running process ends the request
early, within about a heartbeat (5s). What was done until then is kept.

JSON: ops.Request, whose result is an object.`,
		Example: `  inboxctl request 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --wait 1m
  inboxctl request 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --cancel --wait 1m`,
		Args: oneArg("request ID"), RunE: func(cmd *cobra.Command, args []string) error {
			if !cancel {
				return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
					return a.finish(ctx, o, args[0], wait)
				})
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if err := o.CancelRequest(ctx, a.who(), args[0]); err != nil {
					return err
				}
				if err := a.finish(ctx, o, args[0], wait); !errors.Is(err, ops.ErrRequestFailed) {
					return err
				}
				return nil // its problem is that it was cancelled
			})
		},
	}
	cmd.Flags().BoolVar(&cancel, "cancel", false, "end it early")
	bindWait(cmd, &wait, 0)
	return cmd
}

func newCancel(a *app) *cobra.Command {
	var key, namespace string
	var yes bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "cancel MESSAGE-ID --handler KEY", Short: "Cancel a running call of a handler",
		Long: `Has the worker that runs a handler for a message cancel the context of the call. A
handler that obeys returns an error: the attempt has failed and is charged, and its
error says who cancelled it. A handler that returns nil nonetheless has succeeded. One
that ignores its context goes on: after StuckHandlerGrace (1m) the attempt has failed,
and the next one may run beside it. "inboxctl release" frees the claim at once, and
only a restart ends the call. Messages that share the call in a batch are cancelled
with it.

A call of an Inline or Direct channel can be cancelled once "inboxctl workers" reports
that it does not return. It has no claim to release.

` + requestHelp + `

JSON: ops.Request, whose result is an object.`,
		Example: `  inboxctl cancel order-7f9c2ba4 --handler orders.mail`,
		Args:    oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return misuse("--handler is required, \"inboxctl show %s\" lists the message's handlers", oneLine(args[0]))
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				ref := ops.HandlerRef{Message: ops.MessageRef{ID: args[0], Namespace: namespace}, HandlerKey: key}
				question := fmt.Sprintf("Cancel the call of %s for message %s", oneLine(key), oneLine(args[0]))
				s, err := statusOf(ctx, o, ref.Message, key)
				switch {
				case err == nil:
					ref = s.Handler()
					question = fmt.Sprintf("%s of message %s is %s. Cancel its call", oneLine(key), oneLine(args[0]),
						stateName(s, a.now()))
				case !errors.Is(err, ops.ErrNotFound):
					return err
				}
				if !yes {
					if err := a.agree(ctx, question); err != nil {
						return err
					}
				}
				id, err := o.CancelCall(ctx, a.who(), ref)
				if err != nil {
					return err
				}
				return a.finish(ctx, o, id, wait)
			})
		},
	}
	cmd.Flags().StringVar(&key, "handler", "", "the handler key of the call")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	bindNamespace(cmd, &namespace)
	bindWait(cmd, &wait, 30*time.Second)
	return cmd
}

func newBackfill(a *app) *cobra.Command {
	var times pageFlags
	var bulk bulkFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "backfill HANDLER-KEY --from TIME", Short: "Give a handler the statuses that it lacks for stored messages",
		Long: `Gives a handler that was added later the statuses that it lacks for stored messages of
its channel and type, as redeliveries of them would. The messages are counted first.
An ordered handler has to be paused. Run the command once no program without the
handler runs any more.

` + requestHelp + `

JSON: ops.BulkResult with "dry_run", "stopped" and "error".`,
		Example: `  inboxctl backfill orders.invoice --from 30d --dry-run
  inboxctl backfill orders.invoice --from 30d --yes --wait 1h`,
		Args: oneArg("handler key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := times.period(a.now())
			if err != nil {
				return err
			}
			if in.from.IsZero() {
				return misuse("--from is required: the time since which messages were received")
			}
			bulk.chunk = defaultChunk
			return a.actOnAll(cmd, &bulk, bulkAction{verb: "backfill", done: "added", what: "Messages that the handler lacks",
				run: func(ctx context.Context, o *ops.Ops, bulk ops.Bulk) (result ops.BulkResult, err error) {
					if err := untilNow(ctx, o, in.from, &in.to); err != nil {
						return result, err
					}
					id, err := o.RequestBackfill(ctx, a.who(), args[0], in.from, in.to, bulk)
					if err != nil {
						return result, err
					}
					r, err := a.awaitRequest(ctx, o, id, max(wait, time.Millisecond))
					if r.Result == "" {
						return result, err
					}
					return result, errors.Join(err, json.Unmarshal([]byte(r.Result), &result))
				}})
		},
	}
	times.bindPeriod(cmd, receivedWhen)
	cmd.Flags().BoolVar(&bulk.dryRun, "dry-run", false, "only count")
	cmd.Flags().BoolVarP(&bulk.yes, "yes", "y", false, "do not ask for confirmation")
	bindWait(cmd, &wait, 10*time.Minute)
	return cmd
}

func newReplay(a *app) *cobra.Command {
	var namespace, content, newID, messageType, contentType, key string
	var yes bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "replay MESSAGE-ID", Short: "Accept an edited copy of a message as a new one",
		Long: `Has the application accept a copy of a message as a new one, for all handlers that
take its type now. What no flag names is as in the original. The application refuses
it unless its option AllowReplay is on.

` + requestHelp + `

JSON: ops.Request, whose result is an ops.Accepted.`,
		Example: `  inboxctl replay order-7f9c2ba4
  inboxctl replay order-7f9c2ba4 --content fixed.json`,
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			edit := ops.Edit{MessageID: newID}
			given := cmd.Flags().Changed
			if given("content") {
				read, err := os.ReadFile(content)
				if err != nil {
					return misuse("--content: %w", err)
				}
				edit.Content = &read
			}
			if given("type") {
				edit.Type = &messageType
			}
			if given("content-type") {
				edit.ContentType = &contentType
			}
			if given("key") {
				edit.OrderingKey = new([]byte(key))
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if !yes {
					if err := a.agree(ctx, "Accept a copy of message "+oneLine(args[0])); err != nil {
						return err
					}
				}
				id, copied, err := o.RequestReplay(ctx, a.who(), ops.MessageRef{ID: args[0], Namespace: namespace}, edit)
				if err != nil {
					return err
				}
				a.say("The copy's ID is %s", oneLine(copied))
				return a.finish(ctx, o, id, wait)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&newID, "id", "", "the copy's ID; by default made from the original's")
	flags.StringVar(&content, "content", "", "a file with the copy's content")
	flags.StringVar(&messageType, "type", "", "the copy's type")
	flags.StringVar(&contentType, "content-type", "", "the copy's content type")
	flags.StringVar(&key, "key", "", "the copy's ordering key")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	bindNamespace(cmd, &namespace)
	bindWait(cmd, &wait, 30*time.Second)
	return cmd
}

// requestCleanup has the application clean up.
func (a *app) requestCleanup(ctx context.Context, yes bool, wait time.Duration) error {
	return a.audited(ctx, func(ctx context.Context, o *ops.Ops) error {
		if !yes {
			if err := a.agree(ctx, "Have the application delete what its retentions allow"); err != nil {
				return err
			}
		}
		id, err := o.RequestCleanup(ctx, a.who())
		if err != nil {
			return err
		}
		r, err := a.awaitRequest(ctx, o, id, wait)
		if r.Result == "" {
			if r.ID == "" {
				return err
			}
			return errors.Join(a.printRequest(r), err)
		}
		var deleted handler.Deleted
		if unread := json.Unmarshal([]byte(r.Result), &deleted); unread != nil {
			return errors.Join(err, unread)
		}
		return a.reportDeleted(deleted, err)
	})
}
