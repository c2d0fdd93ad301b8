package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/redact"
)

// ReadAgain reads records of an Inbox channel's topic again, from a time or offset to another, and accepts them as the
// channel's consumer would, with today's decoder, handlers and policies. Use it after a bug: messages that are stored
// stay duplicates, and what was unrouted or is deleted is accepted. It neither joins the channel's group nor
// moves its offsets, and the consumer goes on beside it. What the group has not committed yet is left to the consumer,
// and is the result's Unconsumed. It needs a Live, but no Start (contract 7.11).
//
// Records are accepted in batches, each partition in its order, and in lanes they come after what was accepted before.
// A bad record is kept as rejected or published to the dead-letter topic, as the channel's policy says; where that is
// to halt, the call ends before the record with an error. The end of ctx ends it within a batch; a stop of the inbox
// does not. The result is valid also with an error: to go on, pass its Left as Ranges. What was accepted without being
// counted is then a duplicate.
//
// Records that the log no longer has are in the result's Gaps. A topic that was created again since Left was made is an
// error. A channel without Kafka, or that is Inline or Direct, is ErrBadInput: it stores no messages to compare with.
// So is a topic, partition or range that does not exist. While the same channel is read again in this process, the
// error is ErrProcessing. An audit row records the begin, unless it is a dry run, and one the end with the counts.
//
// Do a DryRun first. Do not read from a time before the retention: messages that were handled and cleaned up since are
// accepted as new, and their handlers run again.
func (o statusActions) ReadAgain(
	ctx context.Context, actor Actor, r envelope.ReadAgain,
) (result envelope.ReadAgainResult, err error) {
	if err := o.Can(ActionReadAgain); err != nil {
		return result, err
	}
	target := fmt.Sprintf("topic %s of channel %s", r.Topic, r.Channel)
	if err := errors.Join(actor.check(), checkReadAgain(r)); err != nil {
		return result, fmt.Errorf("%s %s: %w", ActionReadAgain, target, err)
	}
	detail := readAgainDetail{Event: "begun", ReadAgain: r}
	if !r.DryRun {
		if err := o.note(ctx, actor, ActionReadAgain, target, detail); err != nil {
			return result, err
		}
	}
	result, err = o.opts.Live.ReadAgain(ctx, r)
	detail.Event, detail.Result = "ended", &result
	if err != nil {
		detail.Error = o.redactor.Error(redact.Value{Channel: r.Channel}, err.Error())
		err = fmt.Errorf("%s %s: %w", ActionReadAgain, target, err)
	}
	return result, errors.Join(err, o.noteAnyway(ctx, actor, ActionReadAgain, target, detail))
}

// RequestReadAgain requests a ReadAgain of a living worker that consumes the channel from Kafka. Progress is not
// reported: a request with MaxRecords ends early, as one does by CancelRequest, and the next one can have the result's
// Left as Ranges. It needs only the tables, and returns the ID of the request, see AwaitRequest, or ErrBadInput. The
// worker's error is the request's Problem, beside the Result so far.
func (o workerRequests) RequestReadAgain(ctx context.Context, actor Actor, r envelope.ReadAgain) (
	requestID string, err error,
) {
	if err := checkReadAgain(r); err != nil {
		return "", fmt.Errorf("%s: %w", ActionReadAgain, err)
	}
	target := fmt.Sprintf("topic %s of channel %s", r.Topic, r.Channel)
	return o.requestWorker(ctx, actor, ActionReadAgain, r.Channel, target, r, r)
}

// checkReadAgain checks what is known without the channel.
func checkReadAgain(r envelope.ReadAgain) error {
	if err := checkTexts(argument{"channel", r.Channel, 1, columns.MaxChannel},
		argument{"topic", r.Topic, 1, columns.MaxTopic}); err != nil {
		return err
	}
	switch timed := !r.From.IsZero() || !r.To.IsZero() || len(r.Partitions) > 0; {
	case len(r.Ranges) > 0 && timed:
		return badInput("ranges", "neither times nor partitions are possible beside them")
	case len(r.Ranges) == 0 && r.From.IsZero():
		return badInput("from", "it is required: the time since which records were produced")
	case r.MaxRecords < 0:
		return badInput("max", "%d: must be 0 or more", r.MaxRecords)
	}
	return checkAges(r.From, r.To)
}

// readAgainDetail is the audit's detail. A dry run is marked in the request.
type readAgainDetail struct {
	Event string `json:"event"`
	envelope.ReadAgain
	Result *envelope.ReadAgainResult `json:"result,omitempty"`
	Error  string                    `json:"error,omitempty"`
}
