package acceptor

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/gorm-inbox/inbox/internal/store"
)

// mostRows is how many messages and statuses one transaction of AcceptRecords
// stores. Larger ones are not faster, and one record may hold ten thousand events,
// each with a status for each of its handlers.
const mostRows = 5000

// persistParts stores a plan in its order, in as many transactions as it takes, each
// with StatementTimeout to itself. What is committed stays when a later one fails:
// the same records come again, find it known, and get further. So no record is too
// large for a slow database, and the partition behind it goes on.
func (a *Acceptor) persistParts(ctx context.Context, p *plan) error {
	told := true
	for from := 0; ; {
		part, to := p.part(from, a.size.rows())
		if err := a.persist(ctx, part); err != nil {
			if !store.IsData(err) {
				a.size.shrink()
			}
			return err
		}
		a.size.grow()
		told = told && part.told
		if to == len(p.batch.Messages) {
			p.told = told
			return nil
		}
		from = to
	}
}

// part is what of the plan one transaction stores that begins at row from: so many
// rows, but one message at least. It ends before row to. What was bad before SQL
// goes with the last part.
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
	part = &plan{messages: p.messages, results: p.results, batch: p.batch, rows: p.rows[from:to], repeats: map[int]int{}, keys: p.keys}
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

// size is how many rows a transaction of AcceptRecords stores now. Whatever made one
// fail, an accept that takes too long above all, the next is half as large, down to
// one message; each that succeeds lets them grow by an eighth again.
//
// Accepts at the same time may overwrite each other's change: any of them will do.
type size struct{ now atomic.Int64 } // 0 is mostRows

func (s *size) rows() int { return cmp.Or(int(s.now.Load()), mostRows) }

func (s *size) shrink() { s.now.Store(int64(max(s.rows()/2, 1))) }

func (s *size) grow() {
	if rows := s.rows(); rows < mostRows {
		s.now.Store(int64(min(rows+rows/8+1, mostRows)))
	}
}
