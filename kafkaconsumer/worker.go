package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Acceptor persists the records that a consumer received. *acceptor.Acceptor is one.
//
// AcceptRecords returns one result per record, in their order. Its error means that some records may not be stored and
// that the cause may pass. The same records are then passed again, with growing pauses, until it succeeds. So a defect
// of a record must be a result and not an error (contract 7.1, 7.4). AcceptRecords bounds each of its transactions. The
// consumer cancels ctx only DrainTimeout after it lost the partitions or began to stop, and AcceptRecords must return
// soon after that. Several goroutines call it, each with its own partitions.
//
// AcceptGap decides whether to continue after a gap. Durable means that the gap is stored, or need not be. Halt stops
// the partition. After an error the same gap is passed again, as with AcceptRecords. A gap that was stored and is
// passed again after a crash counts as the same gap (contract 7.5).
//
// PartitionRequests returns operators' requests for the channel's halted partitions. It is called every
// HeartbeatInterval while one is halted (contract 7.10).
//
// CarryOut deletes a request and, in the same transaction, stores record as rejected, or gap, if it gets one. Durable
// means that this is done. Halt means that nothing is stored, because the request is gone or the database refuses its
// effect: the partition stays halted. After an error the same is passed again, as with AcceptRecords.
type Acceptor interface {
	AcceptRecords(ctx context.Context, channel string, received []envelope.Received) ([]envelope.Result, error)
	AcceptGap(ctx context.Context, channel string, gap envelope.Gap) (envelope.Disposition, error)
	PartitionRequests(ctx context.Context, channel string) ([]models.PartitionRequest, error)
	CarryOut(ctx context.Context, request models.PartitionRequest, record *envelope.Received, gap *envelope.Gap) (
		envelope.Disposition, error)
}

// Retrying an accept.
const (
	acceptBackoffFirst = 50 * time.Millisecond
	maxAcceptBackoff   = 5 * time.Second
)

// worker accepts the chunks of its partitions, several per accept. Each partition has one worker,
// which keeps the partition's order.
type worker struct {
	*shared
	in      chan *chunk
	buffer  *kafkawire.Budget
	session context.Context

	carry *chunk // a chunk that was received and did not fit into the batch
}

// run works until ctx ends and the accept running then is done. acceptCtx ends when that takes too long.
func (w *worker) run(ctx, acceptCtx context.Context) {
	defer w.accepting.Forget(w)
	defer w.drop()
	for {
		batch := w.gather(ctx)
		if batch == nil {
			return
		}
		ok := w.accept(acceptCtx, batch)
		for _, c := range batch {
			w.buffer.Release(c.bytes)
		}
		if !ok {
			return
		}
	}
}

func (w *worker) queue() chan *chunk { return w.in }

// drop releases the buffer of chunks that will not be accepted any more.
func (w *worker) drop() {
	if w.carry != nil {
		w.buffer.Release(w.carry.bytes)
	}
	for {
		select {
		case c := <-w.in:
			w.buffer.Release(c.bytes)
		default:
			return
		}
	}
}

// gather takes chunks until the batch is full or Linger has passed since the first one. It returns nil when ctx ends.
func (w *worker) gather(ctx context.Context) []*chunk {
	var (
		batch           []*chunk
		messages, bytes int
		linger          <-chan time.Time
	)
	for {
		c := w.carry
		w.carry = nil
		if c == nil {
			select {
			case c = <-w.in:
			case <-linger:
				return batch
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			// The gathered chunks are not accepted yet, so they are redelivered.
			for _, gathered := range batch {
				w.buffer.Release(gathered.bytes)
			}
			w.carry = c
			return nil
		}
		if len(batch) > 0 && (messages+c.messages > w.cfg.BatchRecords || bytes+c.bytes > w.cfg.BatchBytes) {
			w.carry = c
			return batch
		}
		batch = append(batch, c)
		messages += c.messages
		bytes += c.bytes
		if messages >= w.cfg.BatchRecords || bytes >= w.cfg.BatchBytes {
			return batch
		}
		if linger == nil {
			linger = time.After(w.cfg.Linger)
		}
	}
}

// accept passes a batch to the acceptor until it is accepted and its dead letters are acknowledged. It reports false if
// it had to end before that. Records that are not noted by then are not committed.
func (w *worker) accept(ctx context.Context, batch []*chunk) bool {
	live, records := batch[:0:0], 0
	for _, c := range batch {
		switch {
		case !c.partition.takes(c.run):
		case c.skipping != nil: // the first chunk of its partition's run
			if !w.skip(ctx, c) {
				return false
			}
		default:
			live = append(live, c)
			records += len(c.received)
		}
	}
	received := make([]envelope.Received, 0, records)
	for _, c := range live {
		received = append(received, c.received...)
	}
	var results []envelope.Result
	if len(received) > 0 && !w.untilDone(ctx, len(received), func() (err error) {
		results, err = w.try(ctx, received)
		return err
	}) {
		return false
	}
	return w.finishBatch(ctx, live, results)
}

// untilDone calls the acceptor until it succeeds. It reports false if ctx ended first.
func (w *worker) untilDone(ctx context.Context, records int, call func() error) bool {
	retry := routine.Backoff{First: acceptBackoffFirst, Max: maxAcceptBackoff}
	for {
		err := call()
		if err == nil {
			w.accepting.End(w)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		w.accepting.Begin(w, err, zap.Int(telemetry.FieldRecords, records))
		if !retry.Wait(ctx) {
			return false
		}
	}
}

// try calls the acceptor once.
func (w *worker) try(ctx context.Context, received []envelope.Received) (results []envelope.Result, err error) {
	return try(received, func() ([]envelope.Result, error) { return w.acceptor.AcceptRecords(ctx, w.channel, received) })
}

// try calls the acceptor, which must return a result for each record.
func try(received []envelope.Received, accept func() ([]envelope.Result, error)) ([]envelope.Result, error) {
	results, err := protect(accept)
	if err == nil && len(results) != len(received) {
		err = fmt.Errorf("the acceptor returned %d results for %d records", len(results), len(received))
	}
	return results, err
}

// protect calls the acceptor, and turns its panic into an error.
func protect[T any](call func() (T, error)) (result T, err error) {
	err = routine.Protect("the acceptor", func() (err error) {
		result, err = call()
		return err
	})
	return result, err
}

// batchOutcome is what an accepted batch means for one of its partitions.
type batchOutcome struct {
	partition   *partition
	deadLetters []deadLetter
	// next is the offset to continue at once the dead letters are published. halted is why the partition
	// does not continue.
	next   int64
	halted *halt
}

// finishBatch records how far the partitions of an accepted batch are accepted, after it has published
// the batch's dead letters. It reports false if ctx ended first, or if the session ended while
// publishing failed. A record that halts stops its partition right before the record and until the
// partition is resumed or assigned again. The other partitions continue.
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
	// Start with everything that needs no publishing. A dead-letter topic that is down then holds back, of this batch,
	// only the records after the first one that it should take. Later batches wait, and with them all partitions of
	// this worker. Other workers' partitions continue.
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
		w.halt(s.partition, recordHalt(err, true))
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
		}
		reason, skippable := r.Err, r.Skippable
		switch {
		case r.Disposition == envelope.DeadLetter:
			reason, skippable = fmt.Errorf("no DeadLetterTopic is configured for the bad record: %w", r.Err), true
		case reason == nil:
			reason = errors.New("the acceptor halted before the record")
		}
		h := recordHalt(reason, skippable)
		s.halted, s.next = &h, c.received[i].Record.Offset
		return
	}
}

func (w *worker) finish(s *batchOutcome) {
	s.partition.accept(s.next, w.clock.Now())
	if s.halted != nil {
		w.halt(s.partition, *s.halted)
	}
}

// Deliverer runs the handlers of records synchronously. It is called by several goroutines, one per partition.
type Deliverer interface {
	// Deliver returns when every handler of the record's messages has finished. It returns nil if all of them succeeded,
	// and otherwise the reason why the record is bad. envelope.ErrInterrupted means that it had to end before that, which
	// it does soon after ctx has ended. Once stopping is closed, it finishes the running handlers and starts nothing new.
	Deliver(ctx context.Context, stopping <-chan struct{}, received envelope.Received) error
	// Unrouted returns the record's messages that no handler takes.
	Unrouted(received envelope.Received) []handler.RawMessage
}

// NewDirect returns a consumer that delivers records to their handlers instead of accepting them (contract 7.6). It
// delivers in order per partition, and the offset passes a record once all its handlers are done.
//
// The acceptor gets the records that handlers cannot process: bad records, records that handlers gave up, and unrouted
// messages. It normally gets unrouted messages before the record's handlers run, so that it can halt there. With
// unroutedIsBad, set if the acceptor keeps records for unrouted messages (acceptor.UnroutedReject), it gets them after
// the handlers have run, so that the handlers' failures are kept with the record.
//
// Of the config's time limits only DrainTimeout applies to handlers, once a rebalance or a stop has
// begun. Everything else is as in New.
func NewDirect(channel string, cfg Config, deliverer Deliverer, unroutedIsBad bool, acceptor Acceptor,
	logger *zap.Logger, clk clock.Clock,
) (*Consumer, error) {
	if deliverer == nil {
		return nil, fmt.Errorf("channel %q: kafka consumer has no deliverer", channel)
	}
	c, err := New(channel, cfg, acceptor, logger, clk)
	if err != nil {
		return nil, err
	}
	c.deliverer, c.unroutedIsBad = deliverer, unroutedIsBad
	return c, nil
}

// Direct reports whether the consumer was made by NewDirect.
func (c *Consumer) Direct() bool { return c.deliverer != nil }

// directWorker delivers the records of one partition, one after the other. Its embedded worker accepts the records that
// cannot be delivered.
type directWorker struct {
	*worker
	partition     *partition
	deliverer     Deliverer
	unroutedIsBad bool
}

func (w *directWorker) run(ctx, acceptCtx context.Context) {
	defer w.accepting.Forget(w.worker)
	for {
		select {
		case c := <-w.in:
			ok := w.deliver(ctx, acceptCtx, c)
			w.buffer.Release(c.bytes)
			if !ok {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// deliver finishes a chunk's records, one after the other. It reports false if ctx or acceptCtx
// ended first. Records that are unfinished then are not noted, so they are not committed.
func (w *directWorker) deliver(ctx, acceptCtx context.Context, c *chunk) bool {
	if c.skipping != nil && w.partition.takes(c.run) {
		return w.skip(acceptCtx, c)
	}
	for _, r := range c.received {
		if !w.partition.takes(c.run) {
			return true
		}
		if ctx.Err() != nil || !w.one(ctx, acceptCtx, c.run, r) {
			return false
		}
	}
	if w.partition.takes(c.run) {
		w.partition.accept(c.next, w.clock.Now()) // past hidden records, too
	}
	return true
}

// one finishes one record. Unrouted messages are handed over first, because their policy may be to
// halt before the record. Where they make the record bad, they wait for the handlers: a record is
// kept once, with everything that is wrong with it.
func (w *directWorker) one(ctx, acceptCtx context.Context, run int, r envelope.Received) bool {
	reason, next := r.Err, r.Record.Offset+1
	if reason == nil && len(r.Messages) == 0 {
		return w.passToAcceptor(acceptCtx, run, r, next) // the acceptor counts the empty record
	}
	if reason == nil {
		unrouted := w.deliverer.Unrouted(r)
		if len(unrouted) > 0 && !w.unroutedIsBad {
			held := envelope.Received{Record: r.Record, Messages: unrouted}
			if !w.passToAcceptor(acceptCtx, run, held, r.Record.Offset) {
				return false
			}
			if !w.partition.takes(run) {
				return true
			}
		}
		if reason = w.deliverer.Deliver(acceptCtx, ctx.Done(), r); errors.Is(reason, envelope.ErrInterrupted) {
			return false
		}
		if len(unrouted) > 0 && w.unroutedIsBad {
			if reason == nil {
				return w.passToAcceptor(acceptCtx, run, envelope.Received{Record: r.Record, Messages: unrouted}, next)
			}
			reason = fmt.Errorf("%w; besides, there is no handler for type %q", reason, unrouted[0].Type)
		}
	}
	if reason == nil {
		w.partition.accept(next, w.clock.Now())
		return true
	}
	return w.passToAcceptor(acceptCtx, run, envelope.Received{Record: r.Record, Err: reason}, next)
}

// passToAcceptor passes to the acceptor the records that no handler can process. next is the offset to continue at.
func (w *directWorker) passToAcceptor(acceptCtx context.Context, run int, r envelope.Received, next int64) bool {
	return w.accept(acceptCtx, []*chunk{{partition: w.partition, run: run, received: []envelope.Received{r}, next: next}})
}
