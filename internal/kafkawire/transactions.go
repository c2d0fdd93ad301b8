package kafkawire

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/gorm-inbox/inbox/envelope"
)

const (
	// abortedSize is the size of an aborted transaction in a response: producer and first offset.
	abortedSize = 16
	// maxAborted bounds the list. Each of them has left a marker in the log, so a real one is far shorter.
	maxAborted = 1 << 20
)

// Aborted holds the aborted transactions of one response, each identified by its producer and its first offset. A
// transaction ends with its marker. Brokers send the list only with read_committed.
type Aborted struct {
	// list is sorted by producer and offset.
	list []transaction
	// ended holds, by producer, the offset up to which its transactions are over.
	ended map[int64]int64
}

type transaction struct{ producer, first int64 }

func (t transaction) compare(with transaction) int {
	return cmp.Or(cmp.Compare(t.producer, with.producer), cmp.Compare(t.first, with.first))
}

// NewAborted returns the aborted transactions of a response, whose memory it takes from the budget. It returns false if
// ctx ends first.
func NewAborted(ctx context.Context, r *Response, h *Hold) (*Aborted, bool) {
	n := len(r.Aborted) / abortedSize
	if n > 0 && !h.Take(ctx, n*abortedSize) {
		return nil, false
	}
	a := &Aborted{list: make([]transaction, n), ended: map[int64]int64{}}
	c := cursor{rest: r.Aborted}
	for i := range a.list {
		a.list[i] = transaction{producer: c.int64(), first: c.int64()}
	}
	slices.SortFunc(a.list, transaction.compare)
	return a, true
}

// Covers reports whether a transactional batch belongs to an aborted transaction: one of its producer that began at the
// batch or before, after the last one that is over.
func (a *Aborted) Covers(producer, base int64) bool {
	from := int64(math.MinInt64)
	if ended, some := a.ended[producer]; some {
		from = ended + 1
	}
	i, _ := slices.BinarySearchFunc(a.list, transaction{producer, from}, transaction.compare)
	return i < len(a.list) && a.list[i].producer == producer && a.list[i].first <= base
}

// end removes what the marker at offset aborts. A producer has one transaction at a time, so everything of it that
// began before the marker is over.
func (a *Aborted) end(producer, offset int64) {
	if ended, some := a.ended[producer]; !some || offset > ended {
		a.ended[producer] = offset
	}
}

// ReadControl processes the markers at the ends of transactions. The key of a control record is a version and a type,
// 16 bits each.
func (a *Aborted) ReadControl(b Batch, content []byte) error {
	const abortMarker = 0
	return b.Walk(content, 0, func(r envelope.Record) error {
		c := cursor{rest: r.Key}
		c.int16()
		kind := c.int16()
		if c.short {
			return fmt.Errorf("%w: the control record at offset %d has a key of %d bytes", ErrUnreadable, r.Offset, len(r.Key))
		}
		if kind == abortMarker {
			a.end(b.Producer, r.Offset)
		}
		return nil
	})
}
