package acceptor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// AcceptRecords persists the records that a channel received: messages with their statuses, and bad records as rejected
// (contract 7.1, 7.4). It uses one transaction, or several in succession if there are more than some thousand rows
// (contract 7.2). Each has StatementTimeout. The results are in the order of the records. Each one says whether the
// record's offset may be committed.
//
// An error means that the database could not be used and that a part may be stored: retry the same
// records until it succeeds. Data that the database refuses (SQLSTATE classes 22, 23, 54) is no
// such error: it is narrowed down to its records, which are then bad.
//
// If most of a batch is refused (at least 3 records), its partitions halt. A partition also halts
// if most of its records in the batch are bad before the database sees them (at least
// HaltAtBadRecords). In both cases the schema and not the data is taken to be wrong.
func (a *Acceptor) AcceptRecords(
	ctx context.Context, channel string, received []envelope.Received,
) ([]envelope.Result, error) {
	in := &intake{Acceptor: a, channel: channel}
	return in.run(ctx, received)
}

// AcceptAgain is AcceptRecords for records that an operator reads again, beside the channel's consumer (contract 7.11).
// A result to halt is for the caller alone: it is neither counted nor logged. A dry run rolls each transaction back,
// and counts, logs and dispatches nothing. Its results are those of an accept at that moment, but a message that comes
// again in a later call is not known from this one.
func (a *Acceptor) AcceptAgain(
	ctx context.Context, channel string, received []envelope.Received, dryRun bool,
) ([]envelope.Result, error) {
	in := &intake{Acceptor: a, channel: channel, again: true, dryRun: dryRun}
	return in.run(ctx, received)
}

func (in *intake) run(ctx context.Context, received []envelope.Received) ([]envelope.Result, error) {
	a, channel := in.Acceptor, in.channel
	ctx, span := a.tracedRecords(ctx, channel, received)
	at := placeOf(channel, received)
	at.again = in.again
	before := a.failureAt(at)
	in.opts, in.traceparent = a.optionsOf(channel), span.Stored()
	in.rows, in.careful, in.unstorable = before.rows, before.tries > 0, before.unstorable
	results, err := in.accept(ctx, received)
	if err != nil && store.IsData(err) {
		results, err = in.bisect(ctx, received, err)
	}
	for err != nil && in.givesUp(&before, err) {
		results, err = in.accept(ctx, received)
	}
	span.End(err)
	if err != nil {
		a.noteFailure(at, before, in.rows, err)
		return nil, err
	}
	a.failed.Delete(at)
	for i, r := range results {
		if r.Disposition == envelope.DeadLetter {
			results[i].Reason = in.reason(channel, "", r.Err)
		}
	}
	in.reportBad(received, results)
	return results, nil
}

// intake is one running AcceptRecords or AcceptAgain.
type intake struct {
	*Acceptor
	channel     string
	opts        *Options // the channel's
	traceparent string
	// rows is how many rows one transaction stores at most.
	rows int
	// mostlyBad holds the partitions most of whose records in the batch are bad. It is set once the batch is judged.
	mostlyBad map[partition]badCount
	judged    bool
	// careful means that the last try failed: bad records are then kept in separate transactions.
	careful bool
	// unstorable are records that the database does not manage to store.
	unstorable map[coordinates]error
	// again and dryRun are those of AcceptAgain.
	again, dryRun bool
}

// persist is Acceptor.persist, which a dry run rolls back.
func (in *intake) persist(ctx context.Context, p *plan) error {
	p.batch.DryRun = in.dryRun
	return in.Acceptor.persist(ctx, p)
}

// optionsOf returns the channel's options.
func (a *Acceptor) optionsOf(channel string) *Options {
	if own := a.channels[channel]; own != nil {
		return own
	}
	return &a.cfg.Options
}

type partition struct {
	topic string
	id    int
}

func partitionOf(r envelope.Record) partition { return partition{r.Topic, r.Partition} }

// accept is AcceptRecords without bisection and without its final report: it may be one of several
// calls, of which a later one fails.
func (in *intake) accept(ctx context.Context, received []envelope.Received) ([]envelope.Result, error) {
	a, channel := in.Acceptor, in.channel
	p, owner, err := a.planRecords(ctx, channel, received, nil, in.traceparent)
	if err != nil {
		return nil, err
	}
	results := in.judge(received, p, owner)
	if in.findMostlyBad(received, results) {
		results = in.explain(received, in.judge(received, p, owner))
	}
	if halted := haltedRecords(received, results); len(halted) > 0 {
		// Records after a halted one wait with it, so plan again without them.
		if p, owner, err = a.planRecords(ctx, channel, received, halted, in.traceparent); err != nil {
			return nil, err
		}
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
	if err := a.sealRejected(ctx, p.batch.Rejected); err != nil {
		return nil, err
	}
	if !a.cfg.Sealer.Seals() { // otherwise rejectLate keeps them, because no Sealer is called inside a transaction
		for row := range p.batch.Messages {
			if record := &received[owner[p.rows[row]]].Record; in.policyOf(*record) == BadRecordStore {
				p.batch.Messages[row].Rejection = func() models.RejectedMessage { return a.rejection(channel, *record, nil) }
			}
		}
	}
	ofRow := func(row int) envelope.Record { return received[owner[p.rows[row]]].Record }
	if err := in.persistInParts(ctx, p, ofRow); err != nil {
		return nil, err
	}
	if err := in.rejectLate(ctx, received, p, owner); err != nil {
		return nil, err
	}
	if !in.dryRun {
		a.report(ctx, p)
	}
	for i, r := range p.results {
		result := &results[owner[i]]
		if in.again {
			result.Outcomes = append(result.Outcomes, r.Outcome)
		}
		switch r.Outcome {
		case handler.OutcomeAccepted:
			result.Accepted++
		case handler.OutcomeDuplicate:
			result.Duplicates++
		case handler.OutcomeUnrouted:
			result.Unrouted++
		case handler.OutcomeInvalid:
			if result.Err == nil { // an ID conflict, which only the store could see
				bad := in.bad(received[owner[i]].Record, r.Err)
				result.Err, result.Disposition, result.Skippable = bad.Err, bad.Disposition, bad.Skippable
			}
		}
	}
	return results, nil
}

// rejectLate stores the records of messages that turned out to be conflicts and that the store has not stored. These
// repeat an ID within the batch, or have to be sealed first. They follow in other transactions, still before any offset
// is committed.
func (in *intake) rejectLate(ctx context.Context, received []envelope.Received, p *plan, owner []int) error {
	var late []models.RejectedMessage
	messages := slices.Sorted(maps.Keys(p.repeats))
	if in.cfg.Sealer.Seals() {
		messages = append(messages, p.rows...)
	}
	for _, i := range messages {
		if record := received[owner[i]].Record; p.results[i].Err != nil && in.policyOf(record) == BadRecordStore {
			late = append(late, in.rejection(in.channel, record, p.results[i].Err))
		}
	}
	if err := in.sealRejected(ctx, late); err != nil {
		return err
	}
	return in.persistApart(ctx, late)
}

// planRecords plans the messages of all records that are not skipped. owner maps each message to its record.
func (a *Acceptor) planRecords(
	ctx context.Context, channel string, received []envelope.Received, skip map[int]bool, traceparent string,
) (*plan, []int, error) {
	n := 0
	for i := range received {
		n += len(received[i].Messages)
	}
	messages, owner := make([]handler.RawMessage, 0, n), make([]int, 0, n)
	for i := range received {
		r := &received[i]
		if r.Err != nil || skip[i] {
			continue
		}
		for _, m := range r.Messages {
			m.Channel = channel
			messages = append(messages, m)
			owner = append(owner, i)
		}
	}
	p, err := a.plan(ctx, messages, traceparent)
	return p, owner, err
}

// judge returns the result of each record as far as it is known before SQL.
func (in *intake) judge(received []envelope.Received, p *plan, owner []int) []envelope.Result {
	results := make([]envelope.Result, len(received))
	for i, r := range received {
		if err := in.unstorable[coordinatesOf(r.Record)]; err != nil {
			results[i] = envelope.Result{Disposition: envelope.Halt, Skippable: true, Err: err}
		} else if r.Err != nil {
			results[i] = in.bad(r.Record, r.Err)
		}
	}
	for i, r := range p.results {
		if r.Err != nil && results[owner[i]].Err == nil {
			results[owner[i]] = in.bad(received[owner[i]].Record, r.Err)
		}
	}
	return results
}

// afterHaltError is why a good record halts.
type afterHaltError struct{ offset int64 }

func (e *afterHaltError) Error() string {
	return fmt.Sprintf("after the halted record at offset %d", e.offset)
}

// haltedRecords finds the records at which a partition halts and marks those after them, which must
// not be stored either.
func haltedRecords(received []envelope.Received, results []envelope.Result) map[int]bool {
	skip := map[int]bool{}
	stopped := map[partition]int64{}
	for i, r := range received {
		at := partitionOf(r.Record)
		if offset, after := stopped[at]; after {
			results[i] = envelope.Result{Disposition: envelope.Halt, Err: &afterHaltError{offset}}
			skip[i] = true
		} else if results[i].Disposition == envelope.Halt {
			stopped[at] = r.Record.Offset
			skip[i] = true
		}
	}
	return skip
}

// countEmpty counts the records that hold no message: empty batches of CloudEvents, which are legal, and skipped
// tombstones, of which the decoder has logged the first. Their offsets are committed and nothing is stored.
func (in *intake) countEmpty(received []envelope.Received, results []envelope.Result) {
	empty, first := 0, -1
	for i, r := range received {
		if r.Err == nil && len(r.Messages) == 0 && results[i].Err == nil {
			if empty++; first < 0 && r.Record.Value != nil {
				first = i
			}
		}
	}
	if empty == 0 {
		return
	}
	in.cfg.Counters.OfChannel(telemetry.EmptyRecords, in.channel, empty)
	if first < 0 {
		return
	}
	if _, logged := in.emptied.LoadOrStore(in.channel, true); !logged {
		record := received[first].Record
		in.cfg.Logger.Warn("inbox: records hold an empty batch of events and no message, they are passed and counted; logged once",
			zap.String(telemetry.FieldChannel, in.channel), zap.String(telemetry.FieldTopic, record.Topic),
			zap.Int(telemetry.FieldPartition, record.Partition), zap.Int64(telemetry.FieldOffset, record.Offset))
	}
}

// mostlyRefused is how many refused records are needed to suspect the schema: a single bad record
// in a small batch is only a bad record.
const mostlyRefused = 3

// bisect halves the batch until everything that the database takes is stored and every record that
// it refuses stands alone.
func (in *intake) bisect(ctx context.Context, received []envelope.Received, cause error) ([]envelope.Result, error) {
	b := &bisection{intake: in, received: received, results: make([]envelope.Result, len(received)),
		stored: make([]bool, len(received)), refused: map[int]error{}, stopped: map[partition]bool{}}
	all := make([]int, len(received))
	for i := range all {
		all[i] = i
	}
	if err := b.narrow(ctx, all, cause); err != nil {
		return nil, err
	}
	if b.mostlyRefused() {
		log := in.cfg.Logger
		if in.again {
			log = zap.NewNop() // the caller reports a halt
		}
		log.Error("inbox: the database refuses most records of a batch, halting instead of rejecting them",
			zap.String(telemetry.FieldChannel, in.channel), zap.Int(telemetry.FieldRefused, len(b.refused)),
			zap.Int(telemetry.FieldRecords, len(received)), zap.Error(cause))
		for i := range received {
			if !b.stored[i] {
				b.results[i] = envelope.Result{Disposition: envelope.Halt, Err: &InvalidError{Reason: reasonRefused, Err: cause}}
			}
		}
	} else if err := b.reject(ctx); err != nil {
		return nil, err
	}
	haltedRecords(received, b.results)
	return b.results, nil
}

// bisection is one running bisect.
type bisection struct {
	*intake
	received []envelope.Received
	results  []envelope.Result
	stored   []bool
	refused  map[int]error
	stopped  map[partition]bool // records after one that halts are not stored
}

func (b *bisection) stop(r envelope.Record) { b.stopped[partitionOf(r)] = true }

// mostlyRefused reports whether most records are refused. It can become true before every record
// was tried. Otherwise a wrong schema would cost the time of hundreds of transactions.
func (b *bisection) mostlyRefused() bool {
	return len(b.refused) >= mostlyRefused && len(b.refused) > len(b.received)/2
}

// narrow stores a refused part of the batch as far as possible, in order, and notes the single records that are
// refused.
func (b *bisection) narrow(ctx context.Context, part []int, cause error) error {
	if len(part) == 1 {
		i := part[0]
		b.refused[i] = cause
		if b.policyOf(b.received[i].Record) == BadRecordHalt {
			b.stop(b.received[i].Record)
		}
		return nil
	}
	for _, half := range [][]int{part[:len(part)/2], part[len(part)/2:]} {
		half = slices.DeleteFunc(slices.Clone(half), func(i int) bool {
			return b.stopped[partitionOf(b.received[i].Record)]
		})
		if len(half) == 0 || b.mostlyRefused() {
			continue
		}
		records := make([]envelope.Received, len(half))
		for k, i := range half {
			records[k] = b.received[i]
		}
		results, err := b.accept(ctx, records)
		switch {
		case err == nil:
			for k, i := range half {
				b.results[i], b.stored[i] = results[k], true
				if results[k].Disposition == envelope.Halt {
					b.stop(b.received[i].Record)
				}
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

// reject treats the refused records as bad. If the database refuses the rejected row too, the record halts.
func (b *bisection) reject(ctx context.Context) error {
	for _, i := range slices.Sorted(maps.Keys(b.refused)) {
		problem := &InvalidError{Reason: reasonRefused, Err: b.refused[i]}
		bad, err := b.accept(ctx, []envelope.Received{{Record: b.received[i].Record, Err: problem}})
		switch {
		case err == nil:
			b.results[i] = bad[0]
		case store.IsData(err):
			b.results[i] = envelope.Result{Disposition: envelope.Halt,
				Err: fmt.Errorf("it cannot be kept as rejected either: %w", err)}
		default:
			return err
		}
	}
	return nil
}
