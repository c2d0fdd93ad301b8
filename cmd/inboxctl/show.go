package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/ops"
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

// bindNamespace adds --namespace, which tells apart messages that share an ID.
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
