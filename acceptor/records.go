package acceptor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	b := &bisection{acceptor: a, channel: channel, received: received, results: make([]envelope.Result, len(received)),
		stored: make([]bool, len(received)), refused: map[int]error{}, stopped: map[partition]int64{}}
	all := make([]int, len(received))
	for i := range all {
		all[i] = i
	}
	if err := b.narrow(ctx, all, cause); err != nil {
		return nil, err
	}
	if b.mostlyRefused() {
		a.log.Error("inbox: the database refuses most records of a batch, halting instead of rejecting them",
			zap.String("channel", channel), zap.Int("refused", len(b.refused)), zap.Int("records", len(received)), zap.Error(cause))
		for i := range received {
			if !b.stored[i] {
				b.results[i] = envelope.Result{Disposition: envelope.Halt, Err: &InvalidError{Reason: ReasonRefused, Err: cause}}
			}
		}
	} else if err := b.reject(ctx); err != nil {
		return nil, err
	}
	haltedRecords(received, b.results)
	return b.results, nil
}

// bisection is one bisect under way.
type bisection struct {
	acceptor *Acceptor
	channel  string
	received []envelope.Received
	results  []envelope.Result
	stored   []bool
	refused  map[int]error
	stopped  map[partition]int64 // under Halt: what lies behind a refused record is not stored
}

// mostlyRefused: the verdict is known before every record was tried, and must
// be, or a wrong schema would cost more time than an accept has.
func (b *bisection) mostlyRefused() bool {
	return len(b.refused) >= mostlyRefused && len(b.refused) > len(b.received)/2
}

// narrow stores what it can of a refused part of the batch, in its order, and
// notes the single records that are refused.
func (b *bisection) narrow(ctx context.Context, part []int, cause error) error {
	if len(part) == 1 {
		i := part[0]
		b.refused[i] = cause
		if b.acceptor.opts.BadRecords == BadRecordHalt {
			r := b.received[i].Record
			b.stopped[partition{r.Topic, r.Partition}] = r.Offset
		}
		return nil
	}
	for _, half := range [][]int{part[:len(part)/2], part[len(part)/2:]} {
		half = slices.DeleteFunc(slices.Clone(half), func(i int) bool {
			r := b.received[i].Record
			_, behind := b.stopped[partition{r.Topic, r.Partition}]
			return behind
		})
		if len(half) == 0 || b.mostlyRefused() {
			continue
		}
		records := make([]envelope.Received, len(half))
		for k, i := range half {
			records[k] = b.received[i]
		}
		results, err := b.acceptor.acceptRecords(ctx, b.channel, records)
		switch {
		case err == nil:
			for k, i := range half {
				b.results[i], b.stored[i] = results[k], true
			}
		case !store.IsData(err):
			return err
		default:
			if err := b.narrow(ctx, half, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// reject treats the refused records as bad. A database that refuses even the
// rejected row leaves nothing but to halt.
func (b *bisection) reject(ctx context.Context) error {
	for _, i := range slices.Sorted(maps.Keys(b.refused)) {
		problem := &InvalidError{Reason: ReasonRefused, Err: b.refused[i]}
		bad, err := b.acceptor.acceptRecords(ctx, b.channel, []envelope.Received{{Record: b.received[i].Record, Err: problem}})
		switch {
		case err == nil:
			b.results[i] = bad[0]
		case store.IsData(err):
			b.results[i] = envelope.Result{Disposition: envelope.Halt, Err: fmt.Errorf("it cannot be kept as rejected either: %w", err)}
			b.acceptor.logBad(b.channel, b.received[i].Record, b.results[i])
		default:
			return err
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
		if behind := (*behindError)(nil); r.Err != nil && !errors.As(r.Err, &behind) {
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
