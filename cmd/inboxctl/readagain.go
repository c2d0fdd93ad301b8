package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/ops"
)

func newReadAgain(a *app) *cobra.Command {
	var r envelope.ReadAgain
	var times pageFlags
	var after string
	var yes bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "read-again CHANNEL --topic TOPIC --from TIME", Short: "Accept what is missing of a topic's records of a period",
		Long: `Reads the records of a topic again that were produced in a period, beside the
channel's consumer, and accepts them with today's decoder, handlers and policies. What
is stored stays a duplicate. What no handler took, or was deleted, is accepted. So is
what was handled and cleaned up since: do not go back beyond the retention. The
group's offsets do not change, and what the group has not committed yet is left to the
consumer. Run it with --dry-run first, which costs as much and writes nothing. A
message that comes twice may then count as accepted twice.

Without --to, it reads to the end of each partition as of now. A record at which the
consumer would halt ends the command before it, and no partition. Inline and Direct
channels are refused.

` + requestHelp + `

The result counts records and messages. A request shows no progress, but it ends after
--max records, also with --dry-run, and by "inboxctl request ID --cancel". If more is
left, the command says so and the result has it, also after an error: to go on, give
--after and the request's ID instead of --from.

JSON: ops.Request, whose result is an envelope.ReadAgainResult.`,
		Example: `  inboxctl read-again shop --topic orders --from 2026-03-01 --to 2h --dry-run
  inboxctl read-again shop --topic orders --from 6h --partition 3 --yes
  inboxctl read-again shop --topic orders --after 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11`,
		Args: oneArg("channel"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := times.period(a.now())
			if err != nil {
				return err
			}
			if r.Topic == "" || in.from.IsZero() == (after == "") {
				return misuse("--topic is required, and either --from or --after")
			}
			r.Channel, r.From, r.To = args[0], in.from, in.to
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if after != "" {
					if r.Ranges, err = leftOf(ctx, o, after, r.Channel); err != nil {
						return err
					}
				}
				if !yes && !r.DryRun {
					question := fmt.Sprintf("Read topic %s of channel %s again", oneLine(r.Topic), oneLine(r.Channel))
					if err := a.agree(ctx, question); err != nil {
						return err
					}
				}
				id, err := o.RequestReadAgain(ctx, a.who(), r)
				if err != nil {
					return err
				}
				return a.finish(ctx, o, id, wait)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.Topic, "topic", "", "the topic")
	times.bindPeriod(cmd, "produced ")
	flags.IntSliceVar(&r.Partitions, "partition", nil, "only this partition; may be repeated")
	flags.StringVar(&after, "after", "", "go on with what this request has left")
	flags.BoolVar(&r.DryRun, "dry-run", false, "only count")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	flags.Int64Var(&r.MaxRecords, "max", 100_000, "read so many records at most; 0 is no limit")
	bindWait(cmd, &wait, 10*time.Minute)
	return cmd
}

// leftOf returns what an earlier request to read again has left.
func leftOf(ctx context.Context, o *ops.Ops, id, channel string) ([]envelope.Range, error) {
	request, err := o.Request(ctx, id)
	var result envelope.ReadAgainResult
	switch {
	case err != nil:
		return nil, err
	case request.Kind != ops.ActionReadAgain || request.Target != channel:
		return nil, misuse("--after: request %s is to %s %s", id, request.Kind, oneLine(request.Target))
	case json.Unmarshal([]byte(request.Result), &result) != nil || len(result.Left) == 0:
		return nil, misuse("--after: request %s has left nothing, or has not ended", id)
	}
	return result.Left, nil
}
