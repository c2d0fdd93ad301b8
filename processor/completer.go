package processor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// result is a finished attempt with its verdict, on its way to the database.
type result struct {
	*attempt
	verdict
}

// completer stores results. The first one is stored at once; while a write is
// under way, and until GroupWindow has passed since the last one, further
// results gather and are stored together (contract 5.1). It retries for as
// long as the database is away: a result is only given up when stop ends.
type completer struct {
	store            store.Store
	window           time.Duration
	batchSize        int
	statementTimeout time.Duration
	now              func() time.Time
	log              *stateLog
	// settled is told of each stored result; applied is false for a stale one.
	settled func(r result, applied bool)
	// drained is told when results have left the queue: claiming waits for
	// that when too many are in it.
	drained func()

	mu      sync.Mutex
	queue   []result
	arrived chan struct{} // holds one token while queue may have something new
}

func newCompleter(st store.Store, opts Options, now func() time.Time, log *stateLog, settled func(result, bool), drained func()) *completer {
	return &completer{store: st, window: opts.GroupWindow, batchSize: opts.BatchSize, statementTimeout: opts.StatementTimeout,
		now: now, log: log, settled: settled, drained: drained, arrived: make(chan struct{}, 1)}
}

// add queues a result; it never blocks.
func (c *completer) add(r result) {
	c.mu.Lock()
	c.queue = append(c.queue, r)
	c.mu.Unlock()
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

// backlog is the number of results not stored yet.
func (c *completer) backlog() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// run stores results until ctx ends. What is left then is for flush. No
// statement goes on after hard ends.
func (c *completer) run(ctx, hard context.Context) {
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.arrived:
		}
		if wait := c.window - time.Since(last); wait > 0 && c.backlog() < c.batchSize {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		if !c.flush(ctx, hard) {
			return
		}
		last = time.Now()
	}
}

// flush stores everything queued, retrying until ctx ends, and reports
// whether it got to the end. It must not run twice at a time.
func (c *completer) flush(ctx, hard context.Context) bool {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		c.mu.Lock()
		batch := c.queue
		c.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		err := c.write(hard, batch)
		if err == nil {
			// Results that arrived meanwhile stand behind the batch.
			c.mu.Lock()
			c.queue = c.queue[len(batch):]
			if len(c.queue) == 0 {
				c.queue = nil
			}
			c.mu.Unlock()
			c.log.healthy()
			c.drained()
			continue
		}
		c.log.failing("inbox: results cannot be stored, retrying", err, zap.Int("results", len(batch)))
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// write stores one batch: completions in one statement, everything else in
// another.
func (c *completer) write(ctx context.Context, batch []result) error {
	var (
		completions []store.Completion
		completes   []int
		settlements []store.Settlement
		settles     []int
		applied     = make([]bool, len(batch))
	)
	for i, r := range batch {
		switch {
		case r.stored:
			applied[i] = true
		case r.fenced:
		case r.outcome == completed:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeProcessed)), append(completes, i)
		case r.outcome == superseded:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeSuperseded)), append(completes, i)
		default:
			settlements, settles = append(settlements, r.settlement), append(settles, i)
		}
	}
	stmt, cancel := context.WithTimeout(ctx, c.statementTimeout)
	defer cancel()
	if len(completions) > 0 {
		done, err := c.store.Complete(stmt, completions, c.now())
		if err != nil {
			return err
		}
		for k, ok := range done {
			applied[completes[k]] = ok
		}
	}
	if len(settlements) > 0 {
		done, err := c.store.Settle(stmt, settlements)
		if err != nil {
			return err
		}
		for k, ok := range done {
			applied[settles[k]] = ok
		}
	}
	if err := c.readBack(stmt, batch, applied); err != nil {
		return err
	}
	for i, r := range batch {
		c.settled(r, applied[i])
	}
	return nil
}

// readBack looks at the rows that seem stale before they are called so: an
// earlier try of the same batch may have been committed although its answer
// was lost, and then these writes are our own. A version one ahead of the
// claim, in the state we wrote, can only be ours: whoever else takes a claim
// over leaves it neither completed nor, with these counts, poisoned.
func (c *completer) readBack(ctx context.Context, batch []result, applied []bool) error {
	var ids []string
	for i, r := range batch {
		if !applied[i] && !r.fenced {
			ids = append(ids, r.claim.StatusID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	states, err := c.store.States(ctx, ids)
	if err != nil {
		return err
	}
	for i, r := range batch {
		if applied[i] || r.fenced {
			continue
		}
		s, found := states[r.claim.StatusID]
		applied[i] = found && s.Version == r.claim.Version+1 &&
			s.Completed == (r.outcome == completed || r.outcome == superseded) && s.Poisoned == (r.outcome == poisoned) && !s.Processing
	}
	return nil
}
