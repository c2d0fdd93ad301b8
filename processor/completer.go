package processor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// completer stores results. The first result is stored at once. While a write is running, and until groupWindow has
// passed since the last write or a batch is full, further results gather and are stored together. Results that arrived
// during a write follow it at once or, if it stored manyResults, when groupWindow has passed since it began. A result
// with a lane ends the gathering: the lane's next message waits until it is stored. The completer retries for as long
// as the database fails: results are given up only at the end of a stop.
type completer struct {
	store            store.Completer
	window           time.Duration
	batchSize        int
	statementTimeout time.Duration
	now              func() time.Time
	storing          *condition.Condition
	lanes            *lanes
	// settled is called for each stored result; applied is false for a stale one.
	settled func(ctx context.Context, r result, applied bool)
	// reserve reserves slots for the next messages of lanes; nil if a claim must find them.
	reserve func(wanted map[string]int) *Reservation
	// drained is called when results have left the queue: claiming waits for it while the queue is too long.
	drained func()

	mu      sync.Mutex
	queue   []result
	refused int            // how many results in aside the database refuses
	arrived routine.Signal // set while the queue may have new results
	urgent  routine.Signal // set when the queue has reached a full batch or got a result with a lane
	hurried routine.Signal // set to end the pause before a retry

	// The goroutine that flushes owns the fields below. batch is the buffer of the running batch. aside are results whose
	// rows are locked by others or which the database refuses; they are tried again at asideNext.
	batch     []result
	aside     []result
	asideNext time.Time
}

func newCompleter(st store.Completer, opts Options, now func() time.Time, storing *condition.Condition, lanes *lanes,
	settled func(context.Context, result, bool), drained func(),
) *completer {
	return &completer{store: st, window: groupWindow, batchSize: opts.BatchSize, statementTimeout: opts.StatementTimeout,
		now: now, storing: storing, lanes: lanes, settled: settled, drained: drained, arrived: routine.NewSignal(),
		urgent: routine.NewSignal(), hurried: routine.NewSignal()}
}

// add queues a result. It never blocks. The message's content is not kept: the results may be many, and
// wait for as long as the database fails.
func (c *completer) add(r result) {
	r.forgetContent()
	c.mu.Lock()
	c.queue = append(c.queue, r)
	urgent := len(c.queue) == c.batchSize || r.claim.Lane != nil
	c.mu.Unlock()
	if urgent {
		c.urgent.Notify()
	}
	c.arrived.Notify()
}

// hurry ends the pause before a retry, because the database is reachable again. The waiting results
// may belong to a worker ID that was given up, whose claims the next sweeps would release.
func (c *completer) hurry() {
	c.hurried.Notify()
}

// manyResults is the size of a write after which the next one waits for more results. They come fast
// then, and a large write costs little more than a small one.
const manyResults = 100

// mustWrite reports whether the queue waits for no more results: it is a full batch, or has a result with a lane.
func (c *completer) mustWrite() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)+c.refused >= c.batchSize ||
		slices.ContainsFunc(c.queue, func(r result) bool { return r.claim.Lane != nil })
}

// gather waits up to window for more results to store together. It stops waiting at a full batch: waiting longer would
// only leave the database idle. It does not wait at all with a result that has a lane.
func (c *completer) gather(ctx context.Context, window time.Duration) {
	select {
	case <-c.urgent: // drop a signal for results that may be stored by now
	default:
	}
	if window <= 0 || c.mustWrite() {
		return
	}
	end := time.NewTimer(window)
	defer end.Stop()
	select {
	case <-ctx.Done():
	case <-c.urgent:
	case <-end.C:
	}
}

// backlog returns the number of results that are not stored yet. Results that wait for a row lock
// do not count: such a lock concerns single rows, not the database.
func (c *completer) backlog() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) + c.refused
}

// asideRetry is the pause between tries of results that were put aside.
const asideRetry = time.Second

// run stores results until ctx ends, and leaves the rest to flushLast. hard bounds its statements.
func (c *completer) run(ctx, hard context.Context) {
	var last time.Time
	for {
		var again <-chan time.Time
		if len(c.aside) > 0 {
			again = time.After(time.Until(c.asideNext))
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-c.hurried:
			c.asideNext = time.Now()
		case <-c.arrived:
			c.gather(ctx, c.window-time.Since(last))
		}
		if !c.flush(ctx, hard) {
			return
		}
		last = time.Now()
	}
}

// flush stores everything queued, and retries until ctx ends. It reports whether it stored everything; results whose
// rows are locked, and results that the database refuses, are put aside. It must not run concurrently with itself.
func (c *completer) flush(ctx, hard context.Context) bool {
	retry := routine.Backoff{First: 50 * time.Millisecond, Max: 2 * time.Second}
	careful := false
	defer func() { clear(c.batch[:cap(c.batch)]) }() // do not keep messages reachable
	for {
		c.mu.Lock()
		if len(c.aside) > 0 && !time.Now().Before(c.asideNext) {
			c.queue, c.aside, c.refused = append(c.queue, c.aside...), nil, 0
			careful = true
		}
		c.batch = append(c.batch[:0], c.queue...)
		c.mu.Unlock()
		batch := c.batch
		if len(batch) == 0 {
			return true
		}
		began := time.Now()
		left, refused, err := c.writeGroup(hard, batch, careful)
		if err == nil {
			c.putAside(left)
			retry.Reset()
			careful = false
			// Results that arrived meanwhile are in the queue after the batch.
			c.mu.Lock()
			c.queue = slices.Delete(c.queue, 0, len(batch))
			c.refused += refused
			c.mu.Unlock()
			c.noteUnstored()
			c.drained()
			if len(batch) >= manyResults && c.backlog() > 0 {
				c.gather(ctx, c.window-time.Since(began))
			}
			continue
		}
		c.mu.Lock()
		for i := range batch {
			c.queue[i].tried = true
		}
		c.mu.Unlock()
		c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)))
		// If one row is locked by a transaction that does not end (such as that of a lost
		// connection the server still waits for), the other results must not wait for it.
		careful = true
		select {
		case <-ctx.Done():
			return false
		case <-c.hurried:
		case <-time.After(retry.Next()):
		}
	}
}

// putAside keeps results for another try after asideRetry, counted from the first of them. Results
// that join later do not postpone it.
func (c *completer) putAside(left []result) {
	if len(left) > 0 && len(c.aside) == 0 {
		c.asideNext = time.Now().Add(asideRetry)
	}
	c.aside = append(c.aside, left...)
}

// errLocked is why results that were put aside are not stored.
var errLocked = errors.New("their rows are locked by transactions that do not end: " +
	"of an application, or of lost connections that the server has not given up")

// noteUnstored ends the condition once no result is aside. Results that the database refuses have said why.
func (c *completer) noteUnstored() {
	c.mu.Lock()
	refused := c.refused
	c.mu.Unlock()
	switch {
	case len(c.aside) == 0:
		c.storing.End(nil)
	case refused == 0:
		c.storing.Begin(nil, errLocked, zap.Int(telemetry.FieldResults, len(c.aside)))
	}
}

// flushLast stores everything until hard ends, and returns how many results are left. It skips locked rows from the
// beginning and tries them again: a try that waits for a lock might leave no time for another one.
func (c *completer) flushLast(hard context.Context) (left int) {
	for hard.Err() == nil {
		c.mu.Lock()
		batch := append(c.queue, c.aside...)
		c.queue, c.aside, c.refused = nil, nil, 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return 0
		}
		left, _, err := c.writeGroup(hard, batch, true)
		if err == nil {
			if len(left) == 0 {
				c.storing.End(nil)
			}
			c.drained()
			c.aside = left
		} else {
			for i := range batch {
				batch[i].tried = true
			}
			c.aside = batch
			c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)))
		}
		if len(c.aside) > 0 {
			routine.Sleep(hard, 100*time.Millisecond)
		}
	}
	return c.backlog() + len(c.aside)
}
