package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

func newShow(a *app) *cobra.Command {
	var payload payloads
	var namespace string
	cmd := &cobra.Command{
		Use: "show MESSAGE-ID", Short: "One message with its handlers, origin and payload",
		Long: `Shows a message with one entry per handler: its state, its last error, the latest ten
attempts that failed and, if it has an ordering key, what is ahead of it in its
lane. The payload is shown only with --show-payload. The view is audited in either
case.

JSON: ops.Message, whose content is {"hidden": true, "size": …} without
--show-payload.`,
		Example: `  inboxctl show 7f9c2ba4
  inboxctl show 7f9c2ba4 --show-payload
  inboxctl show 7f9c2ba4 --show-payload -o json | jq -r .content.text | jq .`,
		Args: oneArg("message ID"), RunE: func(cmd *cobra.Command, args []string) error {
			a.redact = payload.redact
			return a.viewing(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
				m, err := o.Message(ctx, a.who(), ops.MessageRef{ID: args[0], Namespace: namespace})
				if err != nil {
					return err
				}
				view := struct {
					ops.Message
					Content any
				}{m, payload.value(m.Content)}
				return a.print(view, func() { writeMessage(a.out, m, &payload, a.now()) })
			})
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
	payload.writeSealed(w, m.Content, m.Sealed)
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
	fact(w, "  state", stateName(s.Status, now))
	fact(w, "  accepted", instant(s.CreatedAt))
	fact(w, "  errors", fmt.Sprintf("%d, abandoned %d, interrupted %d, retried by operators %d", s.ErrorCount,
		s.AbandonedCount, s.InterruptedCount, s.RequeuedCount))
	fact(w, "  last error", s.LastError)
	for _, attempt := range s.Attempts {
		fact(w, "  attempt", attemptText(attempt))
	}
	fact(w, "  fingerprint", s.Fingerprint)
	switch s.State {
	case ops.StatePending:
		what := "  next attempt"
		if s.NotBefore().After(now) {
			what = "  not before"
		}
		fact(w, what, nextAttempt(s.Status, now))
		fact(w, "  obstacle", s.Obstacle)
	case ops.StateProcessing:
		fact(w, "  claimed", fmt.Sprintf("by worker %s, %s ago", s.WorkerID, ago(now, s.ProcessingStartedAt)))
		fact(w, "  obstacle", s.Obstacle)
	}
	if !s.PoisonedAt.IsZero() {
		fact(w, "  poisoned", fmt.Sprintf("%s, %s ago", instant(s.PoisonedAt), ago(now, s.PoisonedAt)))
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

// attemptText formats an attempt as one line.
func attemptText(a ops.Attempt) string {
	if a.Retried {
		return instant(a.At) + " retried by an operator"
	}
	text := instant(a.At)
	if !a.ClaimedAt.IsZero() {
		text += ", claimed " + age(a.At.Sub(a.ClaimedAt)) + " before"
	}
	if a.WorkerID != "" {
		text += " by worker " + a.WorkerID
	}
	if a.Poisoned {
		text += ", poisoned"
	}
	return text + ": " + cut(a.Error, 200)
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

// redact is a redaction hook for ops. It removes payloads before they reach the rest of the program.
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

// writeSealed is write for a payload that may be left out because it is sealed.
func (p *payloads) writeSealed(w io.Writer, shown []byte, sealed string) {
	if sealed != "" {
		fmt.Fprintf(w, "The payload is %s.\n", oneLine(sealed))
		return
	}
	p.write(w, shown)
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

JSON: {"message_id", "outcome"}.`,
		Example: `  inboxctl delete 7f9c2ba4
  inboxctl delete 7f9c2ba4 --confirm 7f9c2ba4`,
		Args: oneArg("message ID"), RunE: func(cmd *cobra.Command, args []string) error {
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
		outcome := map[string]string{map[string]string{"message": "message_id", "rejected message": "rejected_id"}[what]: id,
			"outcome": "deleted"}
		return a.print(outcome, func() { fmt.Fprintf(a.out, "deleted %s %s\n", what, oneLine(id)) })
	})
}

func newMarkers(a *app) *cobra.Command {
	var handlerKey, namespace string
	cmd := &cobra.Command{
		Use: "markers MESSAGE-ID", Short: "Which handlers have processed a message inline",
		Long: `Lists the markers of a message ID: which handlers have processed it on an Inline
channel or under a gormstore, and when. A handler without a marker has not, or its
marker was swept: a redelivery would run it. A marker counts until it is swept, even
if EXPIRES is past. Redis and in-memory stores keep their markers themselves.

JSON: a list of models.Marker.`,
		Example: `  inboxctl markers 7f9c2ba4
  inboxctl markers 7f9c2ba4 --handler orders.mail --namespace orders.events`,
		Args: oneArg("message ID"), RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
				markers, err := o.Markers(ctx, args[0], handlerKey, namespace)
				if err != nil {
					return err
				}
				return a.print(markers, func() { writeMarkers(a.out, markers) })
			})
		},
	}
	cmd.Flags().StringVar(&handlerKey, "handler", "", "of this handler key")
	cmd.Flags().StringVar(&namespace, "namespace", "", "of this namespace of the ID, usually the channel")
	return cmd
}

func writeMarkers(w io.Writer, markers []models.Marker) {
	t := newTable("HANDLER", "NAMESPACE", "TYPE", "PROCESSED", "EXPIRES")
	t.none = "No marker: not processed inline, or its markers were swept."
	for _, m := range markers {
		t.add(m.HandlerKey, m.Namespace, m.MessageType, instant(m.ProcessedAt), instant(m.ExpiresAt))
	}
	t.write(w)
}
