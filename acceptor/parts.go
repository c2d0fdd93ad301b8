package acceptor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// maxRows is how many messages and statuses one transaction of AcceptRecords stores. Larger transactions are not
// faster, and one record may hold ten thousand events, each with a status for each of its handlers.
const maxRows = 5000

// place is where a batch of records begins. A batch that could not be stored is passed again and
// begins at the same place.
type place struct {
	channel string
	partition
	again bool // read beside the consumer, whose batch may begin in the same partition
}

func placeOf(channel string, received []envelope.Received) (p place) {
	p.channel = channel
	if len(received) > 0 {
		p.partition = partitionOf(received[0].Record)
	}
	return p
}

// failure describes a batch whose last try failed.
type failure struct {
	// rows is how many rows one transaction of its next try stores.
	rows int
	// tries counts the failed ones. slow counts those in a row that ended at the record at, which alone took too long.
	tries, slow int
	at          coordinates
	// unstorable are records that the database does not manage to store.
	unstorable map[coordinates]error
}

func (a *Acceptor) failureAt(p place) failure {
	if known, failed := a.failed.Load(p); failed {
		return known.(failure)
	}
	return failure{rows: maxRows}
}

// noteFailure halves the rows for the batch's next try after any error but the Sealer's: most likely a transaction took
// too long. There is at most one entry per partition. A batch that is stored removes its entry.
func (a *Acceptor) noteFailure(p place, before failure, rows int, err error) {
	if errors.As(err, new(*sealError)) {
		return
	}
	next := failure{rows: max(rows/2, 1), tries: before.tries + 1, unstorable: before.unstorable}
	if slow, ok := errors.AsType[*slowError](err); ok {
		next.slow, next.at = before.slowAt(slow.at)+1, slow.at
	}
	a.failed.Store(p, next)
}

// slowAt returns how many tries in a row have ended at a record.
func (f failure) slowAt(at coordinates) int {
	if f.at != at {
		return 0
	}
	return f.slow
}

// coordinates are where a record lies in the channel's topics.
type coordinates struct {
	partition
	offset int64
}

func coordinatesOf(r envelope.Record) coordinates { return coordinates{partitionOf(r), r.Offset} }

// slowError means that a transaction with one large record alone took too long, in a database that answers otherwise.
type slowError struct {
	at    coordinates
	bytes int
	err   error
}

func (e *slowError) Error() string { return e.err.Error() }

func (e *slowError) Unwrap() error { return e.err }

const (
	// keptAtOnce is how many bytes of bad records one transaction keeps, beside messages or alone.
	keptAtOnce = 1 << 20
	// largeRecord is the size from which a single record can make a transaction too slow. Where a small one does, it is
	// the database.
	largeRecord = 256 << 10
	// slowTries is how often in a row a record must take too long before its partition halts.
	slowTries = 3
)

// slowRecord returns the error of a large record if the database does not manage to store it within StatementTimeout:
// it has failed slowTries times in a row.
func slowRecord(before failure, err error) *slowError {
	if slow, ok := errors.AsType[*slowError](err); ok && before.slowAt(slow.at)+1 >= slowTries {
		return slow
	}
	return nil
}

// givesUp reports whether to go on without a record that the database does not manage to store, so that only the
// record's partition halts.
func (in *intake) givesUp(before *failure, err error) bool {
	slow := slowRecord(*before, err)
	if slow == nil || in.unstorable[slow.at] != nil {
		return false
	}
	if before.unstorable == nil {
		before.unstorable = map[coordinates]error{}
	}
	in.unstorable = before.unstorable
	in.unstorable[slow.at] = fmt.Errorf("the database did not store its %d bytes within StatementTimeout (%s), %d times in "+
		"a row: raise it and resume the partition, or skip the record: %w", slow.bytes, in.cfg.StatementTimeout, slowTries, slow.err)
	return true
}

// persistInParts stores a plan in its order, in as many transactions as it takes, each with its own StatementTimeout.
// Committed parts stay if a later transaction fails: the records are then passed again, the stored ones are duplicates,
// and the rest continues. So a batch is never too large for a slow database, and its partition makes progress. Large
// bad records are kept in separate transactions, and so are bad records whose batch has failed before.
func (in *intake) persistInParts(ctx context.Context, p *plan, records func(row int) envelope.Record) error {
	var apart []models.RejectedMessage
	if in.careful || rejectedBytes(p.batch.Rejected...) > keptAtOnce {
		apart, p.batch.Rejected = p.batch.Rejected, nil
	}
	if err := in.persistMessages(ctx, p, records); err != nil {
		return err
	}
	return in.persistApart(ctx, apart)
}

// persistApart keeps bad records in transactions of their own, of up to keptAtOnce bytes or one record each.
func (in *intake) persistApart(ctx context.Context, apart []models.RejectedMessage) error {
	for len(apart) > 0 {
		n, bytes := 1, rejectedBytes(apart[0])
		for n < len(apart) && bytes+rejectedBytes(apart[n]) <= keptAtOnce {
			bytes += rejectedBytes(apart[n])
			n++
		}
		one := &plan{}
		one.batch.Rejected = apart[:n]
		if err := in.persist(ctx, one); err != nil {
			if n == 1 {
				row := apart[0]
				err = in.slowIf(ctx, in.channel, err, coordinates{partition{row.Topic, int(row.Partition)}, row.Offset}, bytes)
			}
			return err
		}
		apart = apart[n:]
	}
	return nil
}

func rejectedBytes(rows ...models.RejectedMessage) (bytes int) {
	for _, r := range rows {
		bytes += len(r.Key) + len(r.Value) + len(r.Headers)
	}
	return bytes
}

// slowIf marks the error of a transaction with one record as the record's, if it is large and took too long. While the
// database does not answer a small query either, the record is not the cause.
func (a *Acceptor) slowIf(ctx context.Context, channel string, err error, at coordinates, bytes int) error {
	if bytes < largeRecord || ctx.Err() != nil || !store.TimedOut(err) {
		return err
	}
	if _, away := a.PartitionRequests(ctx, channel); away != nil {
		return err
	}
	return &slowError{at: at, bytes: bytes, err: err}
}

// persistMessages is persistInParts without the bad records that are kept apart.
func (in *intake) persistMessages(ctx context.Context, p *plan, records func(row int) envelope.Record) error {
	notified := true
	for from := 0; ; {
		part, to := p.part(from, in.rows, in.careful)
		if err := in.persist(ctx, part); err != nil {
			// The stored messages will come again as duplicates, so report them now.
			if !in.dryRun {
				in.wakeFor(p)
				in.reportAccepted(ctx, p, p.rows[:from])
			}
			if to == from+1 && len(part.batch.Rejected) == 0 {
				err = in.slowIf(ctx, in.channel, err, coordinatesOf(records(from)), p.batch.Messages[from].Size())
			}
			return err
		}
		notified = notified && part.notified
		if to == len(p.batch.Messages) {
			p.notified = notified
			return nil
		}
		// Only new rows show what the database can take: known ones cost it little.
		if slices.ContainsFunc(part.rows, func(i int) bool { return p.results[i].Outcome == handler.OutcomeAccepted }) {
			in.rows = min(in.rows+in.rows/8+1, maxRows)
		}
		from = to
	}
}

// part returns the part of the plan that begins at message from. It has as many messages as fit into maxRows rows
// together with their statuses, but at least one. apart gives each large message its own part. The next part begins at
// message to. Records that were bad before any SQL are in the last part.
func (p *plan) part(from, maxRows int, apart bool) (part *plan, to int) {
	rows, bytes := 0, 0
	for to = from; to < len(p.batch.Messages); to++ {
		m := &p.batch.Messages[to]
		rows += 1 + len(m.Handlers)
		bytes += m.Size()
		if to > from && (rows > maxRows || apart && bytes > largeRecord) {
			break
		}
	}
	if from == 0 && to == len(p.batch.Messages) {
		return p, to
	}
	part = &plan{messages: p.messages, results: p.results, batch: p.batch, rows: p.rows[from:to], keys: p.keys,
		due: p.due, now: p.now, repeats: map[int]int{}}
	part.batch.Messages = p.batch.Messages[from:to]
	if to < len(p.batch.Messages) {
		part.batch.Rejected = nil
	}
	for i, row := range p.repeats {
		if from <= row && row < to {
			part.repeats[i] = row - from
		}
	}
	return part, to
}
