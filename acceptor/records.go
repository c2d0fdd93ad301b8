package acceptor

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// AcceptRecords persists what a channel received: messages with their
// statuses, and bad records as rejected, in one transaction (contract 7.1,
// 7.4). The results are in the order of the records; each says whether the
// record's offset may be committed.
//
// An error means that the database could not be used and that nothing is
// known to be stored: retry the same records. Data that the database refuses
// (SQLSTATE classes 22, 23, 54) is no such error: it is narrowed down to its
// records, which are then bad. If most of a batch is refused, the schema and
// not the data is taken to be wrong, and the partitions halt.
func (a *Acceptor) AcceptRecords(ctx context.Context, channel string, received []envelope.Received) ([]envelope.Result, error) {
	results, err := a.acceptRecords(ctx, channel, received)
	if err == nil || !store.IsData(err) {
		return results, err
	}
	return a.bisect(ctx, channel, received, err)
}

// mostlyRefused is how many refused records make a majority suspicious: one
// bad record alone in a small batch is only a bad record.
const mostlyRefused = 3

// bisect halves the batch until what the database takes is stored and every
// record it refuses stands alone.
func (a *Acceptor) bisect(ctx context.Context, channel string, received []envelope.Received, cause error) ([]envelope.Result, error) {
	results := make([]envelope.Result, len(received))
	refused := map[int]error{}
	if err := a.narrow(ctx, channel, received, cause, 0, results, refused); err != nil {
		return nil, err
	}
	halt := len(refused) >= mostlyRefused && len(refused) > len(received)/2
	if halt {
		a.log.Error("inbox: the database refuses most records of a batch, halting instead of rejecting them",
			zap.String("channel", channel), zap.Int("refused", len(refused)), zap.Int("records", len(received)), zap.Error(cause))
	}
	for i := range received {
		why, bad := refused[i]
		if !bad {
			continue
		}
		problem := &InvalidError{Reason: ReasonRefused, Err: why}
		if halt {
			results[i] = envelope.Result{Disposition: envelope.Halt, Err: problem}
			continue
		}
		alone, err := a.acceptRecords(ctx, channel, []envelope.Received{{Record: received[i].Record, Err: problem}})
		if err != nil {
			return nil, err
		}
		results[i] = alone[0]
	}
	haltedRecords(received, results) // some of what lies behind is stored already, and will be a duplicate
	return results, nil
}

// narrow stores the halves of a refused batch, in their order, and notes the
// single records that are refused by index.
func (a *Acceptor) narrow(ctx context.Context, channel string, received []envelope.Received, cause error, offset int, results []envelope.Result, refused map[int]error) error {
	if len(received) == 1 {
		refused[offset] = cause
		return nil
	}
	half := len(received) / 2
	for _, part := range []struct {
		records []envelope.Received
		offset  int
	}{{received[:half], offset}, {received[half:], offset + half}} {
		stored, err := a.acceptRecords(ctx, channel, part.records)
		switch {
		case err == nil:
			copy(results[part.offset:], stored)
		case !store.IsData(err):
			return err
		default:
			if err := a.narrow(ctx, channel, part.records, err, part.offset, results, refused); err != nil {
				return err
			}
		}
	}
	return nil
}

type partition struct {
	topic string
	id    int
}

// acceptRecords is AcceptRecords without bisection.
func (a *Acceptor) acceptRecords(ctx context.Context, channel string, received []envelope.Received) ([]envelope.Result, error) {
	p, owner := a.planRecords(channel, received, nil)
	results := a.judge(received, p, owner)
	if halted := haltedRecords(received, results); len(halted) > 0 {
		// What lies behind a halted record waits with it: plan again without.
		p, owner = a.planRecords(channel, received, halted)
		for i, r := range a.judge(received, p, owner) {
			if !halted[i] {
				results[i] = r
			}
		}
	}
	for i, r := range results {
		if r.Err != nil && r.Disposition == envelope.Durable {
			p.batch.Rejected = append(p.batch.Rejected, a.rejection(channel, received[i].Record, r.Err))
		}
	}
	for row := range p.batch.Messages {
		if a.opts.BadRecords == BadRecordStore {
			rejected := a.rejection(channel, received[owner[p.rows[row]]].Record, nil)
			p.batch.Messages[row].Rejection = &rejected
		}
	}
	if err := a.persist(ctx, p); err != nil {
		return nil, err
	}
	if err := a.rejectRepeats(ctx, channel, received, p, owner); err != nil {
		return nil, err
	}
	a.report(ctx, p)
	for i, r := range p.results {
		result := &results[owner[i]]
		switch r.Outcome {
		case Accepted:
			result.Accepted++
		case Duplicate:
			result.Duplicates++
		case Unrouted:
			result.Unrouted++
		case Invalid:
			if result.Err == nil { // an ID conflict, which only the store could see
				result.Err, result.Disposition = r.Err, a.badDisposition(r.Err)
			}
		}
	}
	for i, r := range results {
		if r.Err != nil {
			a.counters.Rejected.Add(1)
			a.logBad(channel, received[i].Record, r)
		}
	}
	return results, nil
}

// rejectRepeats keeps the records of messages that repeat, within the batch,
// an ID which turned out to be a conflict: only the first one's record was
// stored with it. They follow in a transaction of their own, still before any
// offset is committed.
func (a *Acceptor) rejectRepeats(ctx context.Context, channel string, received []envelope.Received, p *plan, owner []int) error {
	if a.opts.BadRecords != BadRecordStore {
		return nil
	}
	var late plan
	for i := range p.repeats {
		if p.results[i].Err != nil {
			late.batch.Rejected = append(late.batch.Rejected, a.rejection(channel, received[owner[i]].Record, p.results[i].Err))
		}
	}
	return a.persist(ctx, &late)
}

// planRecords plans the messages of all records that are not skipped; owner
// maps each message to its record.
func (a *Acceptor) planRecords(channel string, received []envelope.Received, skip map[int]bool) (p *plan, owner []int) {
	var messages []handler.RawMessage
	for i, r := range received {
		if r.Err != nil || skip[i] {
			continue
		}
		for _, m := range r.Messages {
			m.Channel = channel
			messages = append(messages, m)
			owner = append(owner, i)
		}
	}
	return a.plan(messages), owner
}

// judge gives each record its verdict as far as it is known before SQL.
func (a *Acceptor) judge(received []envelope.Received, p *plan, owner []int) []envelope.Result {
	results := make([]envelope.Result, len(received))
	for i, r := range received {
		if r.Err != nil {
			results[i] = envelope.Result{Disposition: a.badDisposition(r.Err), Err: r.Err}
		}
	}
	for i, r := range p.results {
		if r.Err != nil && results[owner[i]].Err == nil {
			results[owner[i]] = envelope.Result{Disposition: a.badDisposition(r.Err), Err: r.Err}
		}
	}
	return results
}

func (a *Acceptor) badDisposition(err error) envelope.Disposition {
	var reason *InvalidError
	if errors.As(err, &reason) && reason.Reason == ReasonUnrouted {
		if a.opts.Unrouted == UnroutedHalt {
			return envelope.Halt
		}
		return envelope.Durable
	}
	if a.opts.BadRecords == BadRecordHalt {
		return envelope.Halt
	}
	return envelope.Durable
}

// haltedRecords finds the records at which a partition halts and marks those
// behind them, which must not be stored either.
func haltedRecords(received []envelope.Received, results []envelope.Result) map[int]bool {
	skip := map[int]bool{}
	stopped := map[partition]int64{}
	for i, r := range received {
		at := partition{r.Record.Topic, r.Record.Partition}
		if offset, behind := stopped[at]; behind {
			results[i] = envelope.Result{Disposition: envelope.Halt, Err: fmt.Errorf("behind the halted record at offset %d", offset)}
			skip[i] = true
		} else if results[i].Disposition == envelope.Halt {
			stopped[at] = r.Record.Offset
			skip[i] = true
		}
	}
	return skip
}

// rejection makes the row that keeps a bad record; RejectedAt is set when it
// is persisted.
func (a *Acceptor) rejection(channel string, r envelope.Record, reason error) models.RejectedMessage {
	text := ""
	if reason != nil {
		text = store.SanitizeError(reason.Error())
	}
	return models.RejectedMessage{
		ID: uuid.Must(uuid.NewV7()).String(), Channel: channel, Topic: r.Topic, Partition: int32(r.Partition), Offset: r.Offset,
		Timestamp: r.Timestamp.UTC(), Key: r.Key, Value: r.Value, Headers: handler.SerializeHeaders(r.Headers), Reason: text,
		RejectedAt: a.clock.Now(),
	}
}

func (a *Acceptor) logBad(channel string, r envelope.Record, result envelope.Result) {
	what := "inbox: bad record kept as rejected"
	if result.Disposition == envelope.Halt {
		what = "inbox: partition halts before a bad record"
	}
	a.log.Error(what, zap.String("channel", channel), zap.String("topic", r.Topic), zap.Int("partition", r.Partition),
		zap.Int64("offset", r.Offset), zap.Error(result.Err))
}
