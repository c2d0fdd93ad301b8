package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

func newShow(a *app) *cobra.Command {
	var payload payloads
	var namespace string
	cmd := &cobra.Command{
		Use: "show MESSAGE-ID", Short: "One message with its handlers, origin and payload",
		Long: `Shows a message with one entry per handler: its state, attempts and last error,
and, if it has an ordering key, what is ahead of it in its lane. The payload is
shown only with --show-payload. The view is audited in either case.

JSON: ops.Message, whose Content is {"Hidden": true, "Size": …} without
--show-payload.`,
		Example: `  inboxctl show 7f9c2ba4
  inboxctl show 7f9c2ba4 --show-payload
  inboxctl show 7f9c2ba4 --show-payload -o json | jq -r .Content.Text | jq .`,
		Args: oneArg("message ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				m, err := o.Message(ctx, a.who(), ops.MessageRef{ID: args[0], Namespace: namespace})
				if err != nil {
					return err
				}
				view := struct {
					ops.Message
					Content any
				}{m, payload.value(m.Content)}
				return a.print(view, func() { writeMessage(a.out, m, &payload, a.now()) })
			}, func(o *ops.Options) { o.Redact = payload.redact })
		},
	}
	payload.bind(cmd)
	bindNamespace(cmd, &namespace)
	return cmd
}

// bindNamespace adds --namespace, which distinguishes messages that share an ID.
func bindNamespace(cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVar(namespace, "namespace", "",
		"of the message ID, usually the channel: required if several messages have the ID")
}

func writeMessage(w io.Writer, m ops.Message, payload *payloads, now time.Time) {
	fact(w, "message", m.ID)
	fact(w, "replay of", m.OriginalID)
	fact(w, "type", m.Type)
	fact(w, "source", m.Source)
	fact(w, "received", fmt.Sprintf("%s, %s ago", instant(m.ReceivedAt), ago(now, m.ReceivedAt)))
	fact(w, "transport", m.Transport)
	fact(w, "channel", m.Properties.Channel)
	fact(w, "namespace", m.Namespace)
	if k := m.Properties.Kafka; k != nil {
		fact(w, "record", fmt.Sprintf("topic %s, partition %d, offset %d, %s", k.Topic, k.Partition, k.Offset,
			instant(k.Timestamp)))
		fact(w, "record key", bytesText(k.Key))
		if k.Tombstone {
			fact(w, "tombstone", "the record had no value")
		}
	}
	if m.OrderingKey != nil {
		fact(w, "ordering key", bytesText(m.OrderingKey))
	}
	fact(w, "trace", m.TraceID)
	fact(w, "content type", m.ContentType)
	fact(w, "unreadable", m.PropertiesProblem)
	writeHeaders(w, m.Properties.Headers)
	for _, name := range slices.Sorted(maps.Keys(m.Properties.Attributes)) {
		fmt.Fprintf(w, "attribute      %s = %s\n", oneLine(name), oneLine(m.Properties.Attributes[name]))
	}
	fmt.Fprintln(w)
	payload.write(w, m.Content)
	if len(m.Statuses) == 0 {
		fmt.Fprintln(w, "\nNo handler subscribes to it.")
	}
	for _, s := range m.Statuses {
		fmt.Fprintln(w)
		writeStatus(w, s, now)
	}
}

func writeHeaders(w io.Writer, headers []handler.Header) {
	for _, h := range headers {
		fmt.Fprintf(w, "header         %s = %s\n", oneLine(h.Key), oneLine(bytesText(h.Value)))
	}
}

func writeStatus(w io.Writer, s ops.StatusDetail, now time.Time) {
	fact(w, "handler", s.HandlerKey)
	fact(w, "  status", s.ID)
	fact(w, "  state", stateName(s.Status))
	fact(w, "  accepted", instant(s.CreatedAt))
	fact(w, "  errors", fmt.Sprintf("%d, abandoned %d, retried by operators %d", s.ErrorCount, s.AbandonedCount,
		s.RequeuedCount))
	fact(w, "  last error", s.LastError)
	fact(w, "  fingerprint", s.Fingerprint)
	switch s.State {
	case ops.StatePending:
		fact(w, "  next attempt", nextAttempt(s.Status, now))
		fact(w, "  obstacle", s.Obstacle)
	case ops.StateProcessing:
		fact(w, "  claimed", fmt.Sprintf("by worker %s, %s ago", s.WorkerID, ago(now, s.ProcessingStartedAt)))
		fact(w, "  obstacle", s.Obstacle)
	}
	if !s.CompletedAt.IsZero() {
		fact(w, "  ended", instant(s.CompletedAt))
	}
	if lane := s.Lane; lane != nil {
		place := "first"
		if lane.HeadStatusID != s.ID {
			place = fmt.Sprintf("%s ahead of it, the first is %s: status %s of message %s", count(lane.Ahead), lane.HeadState,
				lane.HeadStatusID, lane.HeadMessageID)
		}
		fact(w, "  in its lane", place)
	}
}

func nextAttempt(s ops.Status, now time.Time) string {
	at := s.NextAttemptAt
	switch {
	case s.Waiting:
		return "when its lane is free"
	case at.IsZero():
		at = s.CreatedAt
	}
	if at.After(now) {
		return fmt.Sprintf("%s, in %s", instant(at), age(at.Sub(now)))
	}
	return fmt.Sprintf("due for %s", age(now.Sub(at)))
}

// payloads hides payloads unless the user asks for them.
type payloads struct {
	show bool
	size int // of the last payload that was hidden
}

func (p *payloads) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.show, "show-payload", false, "also show the payload")
}

// redact is a redaction hook for ops. It removes payloads before they reach the rest of the
// program.
func (p *payloads) redact(v redact.Value) []byte {
	if p.show || v.Part != redact.PartPayload || v.Bytes == nil {
		return v.Bytes
	}
	p.size = len(v.Bytes)
	return []byte{}
}

// value is the payload as JSON shows it.
func (p *payloads) value(shown []byte) any {
	if p.show || shown == nil {
		return shown
	}
	return hidden{Hidden: true, Size: p.size}
}

// write shows a payload to people: text line by line, anything else as a hex dump.
func (p *payloads) write(w io.Writer, shown []byte) {
	switch {
	case shown == nil:
		fmt.Fprintln(w, "No payload.")
	case !p.show:
		fmt.Fprintf(w, "Payload of %d bytes, hidden: add --show-payload.\n", p.size)
	case len(shown) == 0:
		fmt.Fprintln(w, "Payload of 0 bytes.")
	case utf8.Valid(shown):
		fmt.Fprintf(w, "Payload of %d bytes:\n", len(shown))
		for _, line := range strings.Split(strings.TrimSuffix(string(shown), "\n"), "\n") {
			fmt.Fprintln(w, "  "+oneLine(line))
		}
	default:
		fmt.Fprintf(w, "Payload of %d bytes, not text:\n%s", len(shown), hex.Dump(shown))
	}
}

// bytesText formats a key or a header's value as one line.
func bytesText(b []byte) string {
	switch {
	case b == nil:
		return "(none)"
	case utf8.Valid(b):
		return string(b)
	}
	return "hex " + hex.EncodeToString(b)
}

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
