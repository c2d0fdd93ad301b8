package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
)

// Deliverer runs the handlers of records synchronously. It is called by several goroutines, one per partition.
type Deliverer interface {
	// Deliver returns when every handler of the record's messages has finished. It returns nil if all of them succeeded,
	// and otherwise the reason why the record is bad. envelope.ErrInterrupted means that it had to end before that, which
	// it does soon after ctx has ended. Once stopping is closed, it finishes what runs and starts nothing new.
	Deliver(ctx context.Context, stopping <-chan struct{}, received envelope.Received) error
	// Unrouted returns the record's messages that no handler takes.
	Unrouted(received envelope.Received) []handler.RawMessage
}

// NewDirect returns a consumer that delivers records to their handlers instead of accepting them (contract 7.6). It
// delivers in order per partition, and the offset passes a record once all its handlers are done.
//
// The acceptor gets what handlers cannot process: bad records, records that handlers gave up, and unrouted messages. It
// normally gets unrouted messages before the record's handlers run, so that it can halt there. With unroutedIsBad, set
// if the acceptor keeps records for unrouted messages (acceptor.UnroutedReject), it gets them after the handlers have
// run, so that the handlers' failures are kept with the record.
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

// directWorker delivers the records of one partition, one after the other. Its embedded worker
// accepts what cannot be delivered.
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

// passToAcceptor passes to the acceptor what no handler can process. next is the offset to continue at.
func (w *directWorker) passToAcceptor(acceptCtx context.Context, run int, r envelope.Received, next int64) bool {
	return w.accept(acceptCtx, []*chunk{{partition: w.partition, run: run, received: []envelope.Received{r}, next: next}})
}
