package processor

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// completer stores results. The first one is stored at once; while a write is
// under way, and until groupWindow has passed since the last one or a batch is
// full, further results gather and are stored together (contract 5.1). It retries for as
// long as the database is away: a result is only given up when a stop ends.
type completer struct {
	store            store.Completer
	window           time.Duration
	batchSize        int
	statementTimeout time.Duration
	now              func() time.Time
	storing          *condition.Condition
	lanes            *lanes
	// settled is told of each stored result; applied is false for a stale one.
	settled func(ctx context.Context, r result, applied bool)
	// drained is told when results have left the queue: claiming waits for
	// that when too many are in it.
	drained func()

	mu      sync.Mutex
	queue   []result
	refused int            // of the results put aside
	arrived routine.Signal // while queue may have something new
	full    routine.Signal // when queue has become a full batch
	hurried routine.Signal // when the pause of a retry is to end

	// Of the goroutine that flushes: room for the batch under way; results put
	// aside because others have locked their rows or the database refuses to
	// change them, and when to try them again.
	batch     []result
	aside     []result
	asideNext time.Time
}

func newCompleter(st store.Completer, opts Options, now func() time.Time, storing *condition.Condition, lanes *lanes,
	settled func(context.Context, result, bool), drained func(),
) *completer {
	return &completer{store: st, window: groupWindow, batchSize: opts.BatchSize, statementTimeout: opts.StatementTimeout,
		now: now, storing: storing, lanes: lanes, settled: settled, drained: drained, arrived: routine.NewSignal(),
		full: routine.NewSignal(), hurried: routine.NewSignal()}
}

// add queues a result; it never blocks.
func (c *completer) add(r result) {
	c.mu.Lock()
	c.queue = append(c.queue, r)
	full := len(c.queue) == c.batchSize
	c.mu.Unlock()
	if full {
		c.full.Notify()
	}
	c.arrived.Notify()
}

// hurry ends the pause of a retry: the database is back. The claims of the
// results that wait are those of a worker ID that is given up, perhaps, and the
// next sweeps would release them.
func (c *completer) hurry() {
	c.hurried.Notify()
}

// gather waits for results to ride together, but not for more than a statement
// is to carry: the database would have nothing to do meanwhile.
func (c *completer) gather(ctx context.Context, window time.Duration) {
	select {
	case <-c.full: // perhaps of results that are stored by now
	default:
	}
	if window <= 0 || c.backlog() >= c.batchSize {
		return
	}
	end := time.NewTimer(window)
	defer end.Stop()
	select {
	case <-ctx.Done():
	case <-c.full:
	case <-end.C:
	}
}

// backlog is the number of results not stored yet, but for those that wait for
// a lock: whoever holds it, it is about single rows.
func (c *completer) backlog() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) + c.refused
}

// asideRetry is the pause between tries of results that were put aside.
const asideRetry = time.Second

// run stores results until ctx ends. What is left then is for flush. No
// statement goes on after hard ends.
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

// flush stores everything queued, retrying until ctx ends, and reports
// whether it got to the end; results whose rows are locked, or refused, are put
// aside. It must not run twice at a time.
func (c *completer) flush(ctx, hard context.Context) bool {
	pause := 50 * time.Millisecond
	careful := false
	defer func() { clear(c.batch[:cap(c.batch)]) }() // it keeps nobody's messages
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
		left, refused, err := c.writeGroup(hard, batch, careful)
		if err == nil {
			c.putAside(left)
			pause, careful = 50*time.Millisecond, false
			// Results that arrived meanwhile stand behind the batch.
			c.mu.Lock()
			c.queue = slices.Delete(c.queue, 0, len(batch))
			c.refused += refused
			healthy := c.refused == 0
			c.mu.Unlock()
			if healthy {
				c.storing.End(nil)
			}
			c.drained()
			continue
		}
		c.mu.Lock()
		for i := range batch {
			c.queue[i].tried = true
		}
		c.mu.Unlock()
		c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)))
		// If one row is locked by a transaction that does not end (a lost
		// connection the server still waits for), the others must not wait.
		careful = true
		select {
		case <-ctx.Done():
			return false
		case <-c.hurried:
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// putAside keeps results for another try a while later, counted from the first
// of them: others that join must not put it off.
func (c *completer) putAside(left []result) {
	if len(left) > 0 && len(c.aside) == 0 {
		c.asideNext = time.Now().Add(asideRetry)
	}
	c.aside = append(c.aside, left...)
}

// flushLast stores everything, waiting for locked rows, until hard ends, and
// returns how many results are left. From the start it passes over locked rows:
// there may be no time for a second try.
func (c *completer) flushLast(hard context.Context) (left int) {
	for hard.Err() == nil {
		c.mu.Lock()
		batch := append(c.queue, c.aside...)
		c.queue, c.aside, c.refused = nil, nil, 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return 0
		}
		left, refused, err := c.writeGroup(hard, batch, true)
		if err == nil {
			if refused == 0 {
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
