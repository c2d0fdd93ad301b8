package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func newRejected(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rejected", Short: "Records that could not become messages, or were given up",
		Long: `A record that cannot become a message, because it cannot be decoded or its ID is
invalid, is stored unchanged as a rejected message. So is one that a handler of an
Inline or Direct channel gave up; its other handlers may have processed it. It stays
until it is accepted again, or runs again, or until it is deleted.`,
		Example: `  inboxctl rejected list
  inboxctl rejected show 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --show-payload`,
		Args: unknownCommand, RunE: showHelp,
	}
	cmd.AddCommand(watchable(a, newRejectedList(a)), newRejectedShow(a), newRejectedAccept(a), newRejectedDelete(a))
	return cmd
}

func newRejectedList(a *app) *cobra.Command {
	var (
		filters rejectedFlags
		page    pageFlags
		wide    bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "Rejected messages, latest first",
		Long: `Lists rejected messages with their origin and the reason of the rejection, latest
first.

` + exportHelp + `

JSON: ops.Page of ops.Rejected; with jsonl an ops.Rejected.`,
		Example: `  inboxctl rejected list
  inboxctl rejected list --topic orders --partition 3 --from 24h --wide
  inboxctl rejected list --reason 'invalid character'
  inboxctl rejected list --from 30d --export csv > rejected.csv`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return printPage(a, cmd, &page,
				func(o ops.Reader, ctx context.Context, after ops.Cursor, limit int) (ops.Page[ops.Rejected], error) {
					return o.ListRejected(ctx, filters.filter(cmd, page.in), after, limit)
				}, func(w io.Writer, found []ops.Rejected) { writeRejectedList(w, found, a.now(), wide) })
		},
	}
	filters.bind(cmd)
	page.bindPeriod(cmd, "rejected ")
	page.bindExport(cmd)
	cmd.Flags().BoolVar(&wide, "wide", false, "show whole reasons")
	page.bind(cmd)
	return cmd
}

// rejectedFlags are the flags that filter rejected messages.
type rejectedFlags struct {
	channel, topic, reason string
	partition              int32
}

func (f *rejectedFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.channel, "channel", "", "of this channel")
	flags.StringVar(&f.topic, "topic", "", "of this topic")
	flags.Int32Var(&f.partition, "partition", 0, "of this partition of the topic")
	flags.StringVar(&f.reason, "reason", "", "whose reason contains this, ignoring case")
}

func (f *rejectedFlags) filter(cmd *cobra.Command, in period) ops.RejectedFilter {
	filter := ops.RejectedFilter{Channel: f.channel, Topic: f.topic, From: in.from, To: in.to, Reason: f.reason}
	if cmd.Flags().Changed("partition") {
		filter.Partition = &f.partition
	}
	return filter
}

func writeRejectedList(w io.Writer, rejected []ops.Rejected, now time.Time, wide bool) {
	t := newTable("ID", "CHANNEL", "TOPIC", ">PARTITION", ">OFFSET", ">BYTES", ">REJECTED", "REASON").
		limit("REASON", errorLimit(wide))
	t.none = "No rejected message found."
	for _, r := range rejected {
		t.add(r.ID, r.Channel, r.Topic, number(r.Partition), number(r.Offset), number(r.Size), ago(now, r.RejectedAt),
			r.Reason)
	}
	t.write(w)
}

func newRejectedShow(a *app) *cobra.Command {
	var payload payloads
	cmd := &cobra.Command{
		Use: "show ID", Short: "One rejected message with its record",
		Long: `Shows a rejected message with the headers and the key of its record. The value is
shown only with --show-payload. The view is audited in either case.

JSON: ops.RejectedRecord, whose value is {"hidden": true, "size": …} without
--show-payload.`,
		Example: `  inboxctl rejected show 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11
  inboxctl rejected show 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --show-payload`,
		Args: oneArg("ID of the rejected message"), RunE: func(cmd *cobra.Command, args []string) error {
			a.redact = payload.redact
			return a.viewing(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
				r, err := o.Rejected(ctx, a.who(), args[0])
				if err != nil {
					return err
				}
				view := struct {
					ops.RejectedRecord
					Value any
				}{r, payload.value(r.Value)}
				return a.print(view, func() { writeRejected(a.out, r, &payload, a.now()) })
			})
		},
	}
	payload.bind(cmd)
	return cmd
}

func writeRejected(w io.Writer, r ops.RejectedRecord, payload *payloads, now time.Time) {
	fact(w, "rejected", r.ID)
	fact(w, "at", fmt.Sprintf("%s, %s ago", instant(r.RejectedAt), ago(now, r.RejectedAt)))
	fact(w, "reason", r.Reason)
	fact(w, "channel", r.Channel)
	fact(w, "record", fmt.Sprintf("topic %s, partition %d, offset %d, %s", r.Topic, r.Partition, r.Offset,
		instant(r.Timestamp)))
	fact(w, "record key", bytesText(r.Key))
	fact(w, "unreadable", r.HeadersProblem)
	writeHeaders(w, r.Headers)
	fmt.Fprintln(w)
	payload.writeSealed(w, r.Value, r.Sealed)
}

func newRejectedAccept(a *app) *cobra.Command {
	var (
		filters  rejectedFlags
		when     pageFlags
		bulk     bulkFlags
		matching bool
	)
	cmd := &cobra.Command{
		Use: "accept [ID]...", Short: "Have the application accept rejected messages again",
		Long: `Requests that a running process of the application accepts rejected messages again,
with its present decoder and handlers. On an Inline or Direct channel their handlers
run again, once each; on an Inline channel not those that have processed the
message. A process that declares the channel takes the request with its next
heartbeat. After an hour without one it expires. A message that is still bad stays
rejected, with its new reason. "inboxctl audit" shows what became of each.

Give the IDs of rejected messages, or select all that match filters with --matching.
inboxctl then counts them and asks for confirmation, unless --yes is given.
--dry-run only counts. What is rejected after the count is left out.

JSON: {"results": [{"rejected_id", "outcome"}]}; with --matching an ops.BulkResult
with "dry_run", "stopped" and "error".`,
		Example: `  inboxctl rejected accept 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11
  inboxctl rejected accept --matching --channel payments --reason 'gave up' --dry-run
  inboxctl rejected accept --matching --channel payments --from 2h --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := changed(cmd, []string{"channel", "topic", "partition", "reason", "from", "to"})
			switch {
			case !matching && len(given)+len(changed(cmd, []string{"dry-run", "chunk"})) > 0:
				return misuse("filters, --dry-run and --chunk are only for --matching")
			case !matching && len(args) == 0:
				return misuse("give IDs of rejected messages, or --matching and filters")
			case matching && len(args) > 0:
				return misuse("use either IDs or --matching, not both")
			case matching && len(given) == 0:
				return misuse("--matching requires a filter; to select everything, name each --channel")
			case !matching:
				return a.requestReAccepts(cmd, args)
			case bulk.chunk < 1 || bulk.chunk > ops.MaxLimit:
				return misuse("--chunk = %d: must be 1 to %d", bulk.chunk, ops.MaxLimit)
			}
			in, err := when.period(a.now())
			if err != nil {
				return err
			}
			filter := filters.filter(cmd, in)
			return a.actOnAll(cmd, &bulk, bulkAction{verb: "accept", done: "requested", what: "Rejected messages that match",
				run: func(ctx context.Context, o *ops.Ops, bulk ops.Bulk) (ops.BulkResult, error) {
					if err := untilNow(ctx, o, filter.From, &filter.To); err != nil {
						return ops.BulkResult{}, err
					}
					return o.RequestReAcceptMatching(ctx, a.who(), filter, bulk)
				}})
		},
	}
	filters.bind(cmd)
	when.bindPeriod(cmd, "rejected ")
	bulk.bind(cmd)
	cmd.Flags().Lookup("chunk").Usage = "with --matching: how many messages between two reports, 1 to 1000"
	cmd.Flags().BoolVar(&matching, "matching", false, "all rejected messages that match the filters")
	return cmd
}

func (a *app) requestReAccepts(cmd *cobra.Command, ids []string) error {
	type requested struct{ RejectedID, Outcome string }
	return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
		results := struct{ Results []requested }{}
		for _, id := range ids {
			if err := o.RequestReAccept(ctx, a.who(), id); err != nil {
				return combineErrors([]error{err}, len(results.Results), len(ids))
			}
			results.Results = append(results.Results, requested{id, "requested"})
			if !a.structured() {
				fmt.Fprintf(a.out, "requested to accept %s\n", oneLine(id))
			}
		}
		if a.structured() {
			return a.writeStructured(results)
		}
		return nil
	})
}

func newRejectedDelete(a *app) *cobra.Command {
	var confirmation string
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Delete a rejected message",
		Long: `Deletes a rejected message permanently. The offset of its record is committed, so
there is no other copy, unless the topic still has the record.

inboxctl asks you to type the ID. Scripts answer with --confirm and the ID.

JSON: {"rejected_id", "outcome"}.`,
		Example: `  inboxctl rejected delete 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11`,
		Args:    oneArg("ID of the rejected message"), RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd, "rejected message", args[0], confirmation, (*ops.Ops).DeleteRejected)
		},
	}
	cmd.Flags().StringVar(&confirmation, "confirm", "", "the ID, as confirmation")
	return cmd
}

func newGaps(a *app) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use: "gaps", Short: "Offsets that consumers skipped because the records were gone",
		Long: `Lists the offsets that a consumer skipped because their records no longer existed,
latest first. FROM is the offset that should have been read next, TO the one that
was read instead. A lower TO means that the topic was created again. Only the
producer of the records knows what they contained.

JSON: ops.Page of models.Gap.`,
		Example: `  inboxctl gaps`,
		Args:    noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return printPage(a, cmd, &page, ops.Reader.ListGaps, writeGaps)
		},
	}
	page.bind(cmd)
	return cmd
}

func writeGaps(w io.Writer, gaps []models.Gap) {
	t := newTable("FOUND", "CHANNEL", "TOPIC", ">PARTITION", ">FROM", ">TO", "REASON").limit("REASON", errorColumns)
	t.none = "No gaps found."
	for _, g := range gaps {
		t.add(instant(g.FoundAt), g.Channel, g.Topic, number(g.Partition), number(g.FromOffset), number(g.ToOffset), g.Reason)
	}
	t.write(w)
}
