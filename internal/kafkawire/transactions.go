package kafkawire

import (
	"fmt"
	"sort"

	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/gorm-inbox/inbox/envelope"
)

// Aborted holds the aborted transactions of one response, each identified by its producer and its
// first offset. A transaction ends with its marker. Brokers send the list only with read_committed.
type Aborted struct {
	byProducer map[int64][]int64 // first offsets, ascending
}

// NewAborted returns the aborted transactions of a response's list.
func NewAborted(list []fetch.ResponseTransaction) *Aborted {
	a := &Aborted{byProducer: map[int64][]int64{}}
	for _, t := range list {
		a.byProducer[t.ProducerID] = append(a.byProducer[t.ProducerID], t.FirstOffset)
	}
	for _, offsets := range a.byProducer {
		sort.Slice(offsets, func(i, j int) bool { return offsets[i] < offsets[j] })
	}
	return a
}

// Covers reports whether a transactional batch belongs to an aborted transaction.
func (a *Aborted) Covers(producer, base int64) bool {
	offsets := a.byProducer[producer]
	return len(offsets) > 0 && offsets[0] <= base
}

// end removes what the marker at offset aborts. A producer has one transaction at a time, so
// everything of it that began before the marker is over.
func (a *Aborted) end(producer, offset int64) {
	offsets := a.byProducer[producer]
	for len(offsets) > 0 && offsets[0] <= offset {
		offsets = offsets[1:]
	}
	a.byProducer[producer] = offsets
}

// ReadControl processes the markers at the ends of transactions. The key of a control record is a
// version and a type, 16 bits each.
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
