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

// Deliverer runs the handlers of records while the transport waits. It is
// called by several goroutines, one per partition.
type Deliverer interface {
	// Deliver returns when every handler of the record's messages has come to
	// its end: nil if all have done their part, the reason why the record is
	// bad if one has not. envelope.ErrInterrupted means that it had to end
	// before that, which it does soon after ctx has ended; once stopping is
	// closed it finishes what runs and begins nothing anew.
	Deliver(ctx context.Context, stopping <-chan struct{}, received envelope.Received) error
	// Unrouted returns those of the record's messages that no handler takes.
	Unrouted(received envelope.Received) []handler.RawMessage
}

// NewDirect makes a consumer that has records delivered to their handlers
// instead of accepted (contract 7.6): in order per partition, with the offset
// moving past a record when all its handlers are done. The acceptor gets what
// no handler can have: bad records, those whose handlers gave them up, and
// unrouted messages: before the record's handlers run, so that it can halt
// there, but after them if unroutedIsBad, that is if it would keep the record
// for them (acceptor.UnroutedReject): the handlers' failures then go with it. No
// time limit of the config's applies to handlers but DrainTimeout, once a
// rebalance or a stop has begun. Otherwise it is New.
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

// Direct says whether the consumer was made by NewDirect.
func (c *Consumer) Direct() bool { return c.deliverer != nil }

// directWorker delivers the records of one partition, one after the other. Its
// worker accepts what cannot be delivered.
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

// deliver brings a chunk's records to their end, one after the other, and
// reports false if ctx or acceptCtx ended first. What is not at its end then is
// not noted, so nothing of it is committed.
func (w *directWorker) deliver(ctx, acceptCtx context.Context, c *chunk) bool {
	for _, r := range c.received {
		if w.stopped[w.partition] {
			return true
		}
		if ctx.Err() != nil || !w.one(ctx, acceptCtx, r) {
			return false
		}
	}
	if !w.stopped[w.partition] {
		w.partition.accept(c.next, w.clock.Now()) // past hidden records, too
	}
	return true
}

// one brings one record to its end. Unrouted messages come first: their policy
// may be to stop before the record. Where they make it bad they wait for the
// handlers: a record is kept once, with all that is wrong with it.
func (w *directWorker) one(ctx, acceptCtx context.Context, r envelope.Received) bool {
	reason, next := r.Err, r.Record.Offset+1
	if reason == nil && len(r.Messages) == 0 {
		return w.handOver(acceptCtx, r, next) // which counts it
	}
	if reason == nil {
		unrouted := w.deliverer.Unrouted(r)
		if len(unrouted) > 0 && !w.unroutedIsBad {
			if !w.handOver(acceptCtx, envelope.Received{Record: r.Record, Messages: unrouted}, r.Record.Offset) {
				return false
			}
			if w.stopped[w.partition] {
				return true
			}
		}
		if reason = w.deliverer.Deliver(acceptCtx, ctx.Done(), r); errors.Is(reason, envelope.ErrInterrupted) {
			return false
		}
		if len(unrouted) > 0 && w.unroutedIsBad {
			if reason == nil {
				return w.handOver(acceptCtx, envelope.Received{Record: r.Record, Messages: unrouted}, next)
			}
			reason = fmt.Errorf("%w; besides, there is no handler for type %q", reason, unrouted[0].Type)
		}
	}
	if reason == nil {
		w.partition.accept(next, w.clock.Now())
		return true
	}
	return w.handOver(acceptCtx, envelope.Received{Record: r.Record, Err: reason}, next)
}

// handOver has the acceptor take what no handler can; next is the offset to
// continue at.
func (w *directWorker) handOver(acceptCtx context.Context, r envelope.Received, next int64) bool {
	return w.accept(acceptCtx, []*chunk{{partition: w.partition, received: []envelope.Received{r}, next: next}})
}
