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
// records, which are then bad. If most of a batch is refused (3 at least), or
// bad before it comes to that (HaltAtBadRecords at least), the schema and not
// the data is taken to be wrong, and the partitions halt.
func (a *Acceptor) AcceptRecords(ctx context.Context, channel string, received []envelope.Received) ([]envelope.Result, error) {
	in := &intake{Acceptor: a, channel: channel, policy: a.opts.BadRecords}
	results, err := in.accept(ctx, received)
	if err == nil || !store.IsData(err) {
		return results, err
	}
	return in.bisect(ctx, received, err)
}

// intake is one AcceptRecords under way.
type intake struct {
	*Acceptor
	channel string
	// policy is the inbox's for bad records, or BadRecordHalt once most of the
	// batch is found to be bad.
	policy BadRecordPolicy
	judged bool
}

type partition struct {
	topic string
	id    int
}

// accept is AcceptRecords without bisection.
func (in *intake) accept(ctx context.Context, received []envelope.Received) ([]envelope.Result, error) {
	a, channel := in.Acceptor, in.channel
	p, owner := a.planRecords(channel, received, nil)
	results := in.judge(received, p, owner)
	if in.mostlyBad(results) {
		results = in.haltBad(in.judge(received, p, owner))
	}
	if halted := haltedRecords(received, results); len(halted) > 0 {
		// What lies behind a halted record waits with it: plan again without.
		p, owner = a.planRecords(channel, received, halted)
		for i, r := range in.judge(received, p, owner) {
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
		if in.policy == BadRecordStore {
			rejected := a.rejection(channel, received[owner[p.rows[row]]].Record, nil)
			p.batch.Messages[row].Rejection = &rejected
		}
	}
	if err := a.persist(ctx, p); err != nil {
		return nil, err
	}
	if err := in.rejectRepeats(ctx, received, p, owner); err != nil {
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
				result.Err, result.Disposition = r.Err, in.disposition(r.Err)
			}
		}
	}
	for i, r := range results {
		// Dead letters count, and are logged, once they are acknowledged.
		if behind := (*behindError)(nil); r.Err != nil && r.Disposition != envelope.DeadLetter && !errors.As(r.Err, &behind) {
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
func (in *intake) rejectRepeats(ctx context.Context, received []envelope.Received, p *plan, owner []int) error {
	if in.policy != BadRecordStore {
		return nil
	}
	var late plan
	for i := range p.repeats {
		if p.results[i].Err != nil {
			late.batch.Rejected = append(late.batch.Rejected, in.rejection(in.channel, received[owner[i]].Record, p.results[i].Err))
		}
	}
	return in.persist(ctx, &late)
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
func (in *intake) judge(received []envelope.Received, p *plan, owner []int) []envelope.Result {
	results := make([]envelope.Result, len(received))
	for i, r := range received {
		if r.Err != nil {
			results[i] = envelope.Result{Disposition: in.disposition(r.Err), Err: r.Err}
		}
	}
	for i, r := range p.results {
		if r.Err != nil && results[owner[i]].Err == nil {
			results[owner[i]] = envelope.Result{Disposition: in.disposition(r.Err), Err: r.Err}
		}
	}
	return results
}

// disposition treats a bad record by policy. Unrouted ones have their own.
func (in *intake) disposition(err error) envelope.Disposition {
	switch {
	case isUnrouted(err) && in.opts.Unrouted == UnroutedHalt:
		return envelope.Halt
	case isUnrouted(err), in.policy == BadRecordStore:
		return envelope.Durable
	case in.policy == BadRecordDeadLetter:
		return envelope.DeadLetter
	default:
		return envelope.Halt
	}
}

func isUnrouted(err error) bool {
	var reason *InvalidError
	return errors.As(err, &reason) && reason.Reason == ReasonUnrouted
}

// mostlyBad looks, once for the whole batch, whether more than half of it is
// bad (contract 7.1), and switches the policy if so. Few bad records are no
// sign of a wrong schema, however small their batch: on a quiet topic each
// record is a batch by itself, and a bad one would halt. Unrouted ones don't
// count, nor do those that halt in any case.
func (in *intake) mostlyBad(results []envelope.Result) bool {
	if in.judged || in.policy == BadRecordHalt || in.opts.HaltAtBadRecords == 0 {
		return false
	}
	in.judged = true
	bad := countBad(results)
	if bad < in.opts.HaltAtBadRecords || bad <= len(results)/2 {
		return false
	}
	in.policy = BadRecordHalt
	in.log.Error("inbox: most records of a batch are bad, halting instead of treating them one by one",
		zap.String("channel", in.channel), zap.Int("bad", bad), zap.Int("records", len(results)))
	return true
}

// haltBad says why these records halt.
func (in *intake) haltBad(results []envelope.Result) []envelope.Result {
	bad := countBad(results)
	for i, r := range results {
		if r.Err != nil && !isUnrouted(r.Err) {
			results[i].Err = fmt.Errorf("%d of %d records of the batch are bad, the first of this partition because: %w", bad, len(results), r.Err)
		}
	}
	return results
}

func countBad(results []envelope.Result) (bad int) {
	for _, r := range results {
		if r.Err != nil && !isUnrouted(r.Err) {
			bad++
		}
	}
	return bad
}

// behindError is why a good record halts.
type behindError struct{ offset int64 }

func (e *behindError) Error() string {
	return fmt.Sprintf("behind the halted record at offset %d", e.offset)
}

// haltedRecords finds the records at which a partition halts and marks those
// behind them, which must not be stored either.
func haltedRecords(received []envelope.Received, results []envelope.Result) map[int]bool {
	skip := map[int]bool{}
	stopped := map[partition]int64{}
	for i, r := range received {
		at := partition{r.Record.Topic, r.Record.Partition}
		if offset, behind := stopped[at]; behind {
			results[i] = envelope.Result{Disposition: envelope.Halt, Err: &behindError{offset}}
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
