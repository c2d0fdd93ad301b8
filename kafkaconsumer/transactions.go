package kafkaconsumer

import (
	"fmt"
	"sort"

	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/gorm-inbox/inbox/envelope"
)

// abortedTransactions are those of one response, each known by its producer
// and where it begins; it ends with its marker. Their list comes only with
// read_committed.
type abortedTransactions struct {
	byProducer map[int64][]int64 // first offsets, ascending
}

func newAborted(list []fetch.ResponseTransaction) *abortedTransactions {
	a := &abortedTransactions{byProducer: map[int64][]int64{}}
	for _, t := range list {
		a.byProducer[t.ProducerID] = append(a.byProducer[t.ProducerID], t.FirstOffset)
	}
	for _, offsets := range a.byProducer {
		sort.Slice(offsets, func(i, j int) bool { return offsets[i] < offsets[j] })
	}
	return a
}

// covers says whether a transactional batch belongs to an aborted transaction.
func (a *abortedTransactions) covers(producer, base int64) bool {
	offsets := a.byProducer[producer]
	return len(offsets) > 0 && offsets[0] <= base
}

// end forgets what the marker at offset aborts: a producer has one transaction
// at a time, so everything of it that began before is over.
func (a *abortedTransactions) end(producer, offset int64) {
	offsets := a.byProducer[producer]
	for len(offsets) > 0 && offsets[0] <= offset {
		offsets = offsets[1:]
	}
	a.byProducer[producer] = offsets
}

// readControl follows the markers at the ends of transactions: the key of a
// control record is a version and a type, 16 bits each.
func (a *abortedTransactions) readControl(b batch, content []byte) error {
	const abortMarker = 0
	return b.walk(content, 0, func(r envelope.Record) error {
		c := cursor{rest: r.Key}
		c.int16()
		kind := c.int16()
		if c.short {
			return fmt.Errorf("%w: the control record at offset %d has a key of %d bytes", ErrUndecodable, r.Offset, len(r.Key))
		}
		if kind == abortMarker {
			a.end(b.producer, r.Offset)
		}
		return nil
	})
}
