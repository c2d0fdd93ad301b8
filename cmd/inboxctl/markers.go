package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

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
			return view(a, func(o *ops.Ops, ctx context.Context) ([]models.Marker, error) {
				return o.Markers(ctx, args[0], handlerKey, namespace)
			}, writeMarkers)(cmd, args)
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
