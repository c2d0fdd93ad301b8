package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
)

// batchOutcome is what an accepted batch means for one of its partitions.
type batchOutcome struct {
	partition   *partition
	deadLetters []deadLetter
	// next is the offset to continue at once the dead letters are published. halted is why the partition
	// does not continue.
	next   int64
	halted error
}

// finishBatch records how far the partitions of an accepted batch are accepted, after it has published
// the batch's dead letters. It reports false if ctx ended first, or if the session ended while
// publishing failed. A record that halts stops its partition right before the record and until the
// partition is assigned again. The other partitions continue.
func (w *worker) finishBatch(ctx context.Context, batch []*chunk, results []envelope.Result) bool {
	var all []*batchOutcome
	known := map[*partition]*batchOutcome{}
	for _, c := range batch {
		s := known[c.partition]
		if s == nil {
			s = &batchOutcome{partition: c.partition}
			known[c.partition] = s
			all = append(all, s)
		}
		s.take(c, results[:len(c.received)], w.deadLetters != nil)
		results = results[len(c.received):]
	}
	// Start with everything that needs no publishing. A dead-letter topic that is down then holds
	// back, of this batch, only what comes after the first record that it should take. Later
	// batches wait, and with them all partitions of this worker. Those of other workers continue.
	for _, s := range all {
		if len(s.deadLetters) > 0 {
			s.partition.accept(s.deadLetters[0].record.Offset, w.clock.Now())
			continue
		}
		w.finish(s)
	}
	for _, s := range all {
		if len(s.deadLetters) == 0 {
			continue
		}
		acknowledged, err := w.deadLetters.publish(ctx, w.session, s.partition, s.deadLetters)
		if err == nil {
			w.finish(s)
			continue
		}
		s.partition.accept(s.deadLetters[acknowledged].record.Offset, w.clock.Now())
		if refused := (*DeadLetterError)(nil); !errors.As(err, &refused) {
			return false
		}
		w.stop(s.partition, err)
	}
	return true
}

// take adds a chunk of the partition, up to a record that halts.
func (s *batchOutcome) take(c *chunk, results []envelope.Result, canPublish bool) {
	if s.halted != nil {
		return
	}
	s.next = c.next
	for i, r := range results {
		switch {
		case r.Disposition == envelope.Durable:
			continue
		case r.Disposition == envelope.DeadLetter && canPublish:
			s.deadLetters = append(s.deadLetters, deadLetter{c.received[i].Record, r.Err, r.Reason})
			continue
		case r.Disposition == envelope.DeadLetter:
			s.halted = fmt.Errorf("no DeadLetterTopic is configured for the bad record: %w", r.Err)
		case r.Err != nil:
			s.halted = r.Err
		default:
			s.halted = errors.New("the acceptor halted before the record")
		}
		s.next = c.received[i].Record.Offset
		return
	}
}

func (w *worker) finish(s *batchOutcome) {
	s.partition.accept(s.next, w.clock.Now())
	if s.halted != nil {
		w.stop(s.partition, s.halted)
	}
}

func (w *worker) stop(p *partition, reason error) {
	w.stopped[p] = true
	w.halt(p, reason)
}
