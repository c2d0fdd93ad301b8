package acceptor

import (
	"context"
	"slices"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// mostRows is how many messages and statuses one transaction of AcceptRecords stores. Larger
// transactions are not faster, and one record may hold ten thousand events, each with a status for
// each of its handlers.
const mostRows = 5000

// place is where a batch of records begins. A batch that could not be stored is passed again and
// begins at the same place.
type place struct {
	channel string
	partition
}

func placeOf(channel string, received []envelope.Received) (p place) {
	p.channel = channel
	if len(received) > 0 {
		p.partition = partitionOf(received[0].Record)
	}
	return p
}

// rowsAt returns how many rows one transaction of a batch that begins at p stores.
func (a *Acceptor) rowsAt(p place) int {
	if rows, failed := a.smaller.Load(p); failed {
		return rows.(int)
	}
	return mostRows
}

// noteFailure halves the rows for the batch's next try, whatever the error was: most likely a
// transaction took too long. There is at most one entry per partition. A batch that is stored
// removes its entry.
func (a *Acceptor) noteFailure(p place, rows int) { a.smaller.Store(p, max(rows/2, 1)) }

// persistInParts stores a plan in its order, in as many transactions as it takes, each with its own
// StatementTimeout. What is committed stays if a later transaction fails: the same records are
// passed again, are then known, and get further. So no record is too large for a slow database, and
// its partition makes progress.
func (in *intake) persistInParts(ctx context.Context, p *plan) error {
	notified := true
	for from := 0; ; {
		part, to := p.part(from, in.rows)
		if err := in.persist(ctx, part); err != nil {
			// What is stored will come again as duplicates, so report it now.
			in.wakeFor(p)
			in.reportAccepted(ctx, p, p.rows[:from])
			return err
		}
		notified = notified && part.notified
		if to == len(p.batch.Messages) {
			p.notified = notified
			return nil
		}
		// Only new rows show what the database can take: known ones cost it little.
		if slices.ContainsFunc(part.rows, func(i int) bool { return p.results[i].Outcome == handler.OutcomeAccepted }) {
			in.rows = min(in.rows+in.rows/8+1, mostRows)
		}
		from = to
	}
}

// part returns the part of the plan that begins at message from. It has as many messages as make up
// at most most rows together with their statuses, but at least one. The next part begins at message
// to. Records that were bad before any SQL are in the last part.
func (p *plan) part(from, most int) (part *plan, to int) {
	rows := 0
	for to = from; to < len(p.batch.Messages); to++ {
		rows += 1 + len(p.batch.Messages[to].Handlers)
		if rows > most && to > from {
			break
		}
	}
	if from == 0 && to == len(p.batch.Messages) {
		return p, to
	}
	part = &plan{messages: p.messages, results: p.results, batch: p.batch, rows: p.rows[from:to], keys: p.keys,
		repeats: map[int]int{}}
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
