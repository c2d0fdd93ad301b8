package processor

import (
	"context"
	"errors"
	"slices"
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
	// tried: an earlier write of it returned an error, and may yet have been
	// committed.
	tried bool
}

// mayHaveCommitted: its transaction was sent to commit, and had not when the
// status was read back.
func (r result) mayHaveCommitted() bool {
	var cut *uncharged
	return errors.As(r.failure, &cut) && cut.unknown
}

// completer stores results. The first one is stored at once; while a write is
// under way, and until GroupWindow has passed since the last one, further
// results gather and are stored together (contract 5.1). It retries for as
// long as the database is away: a result is only given up when a stop ends.
type completer struct {
	store            store.Store
	window           time.Duration
	batchSize        int
	statementTimeout time.Duration
	now              func() time.Time
	log              *stateLog
	lanes            *lanes
	// settled is told of each stored result; applied is false for a stale one.
	settled func(ctx context.Context, r result, applied bool)
	// drained is told when results have left the queue: claiming waits for
	// that when too many are in it.
	drained func()

	mu      sync.Mutex
	queue   []result
	refused int           // of the results put aside
	arrived chan struct{} // holds one token while queue may have something new
	hurried chan struct{} // holds one token when the pause of a retry is to end

	// Of the goroutine that flushes: results put aside because others have
	// locked their rows or the database refuses to change them, and when to
	// try them again.
	aside     []result
	asideNext time.Time
}

func newCompleter(st store.Store, opts Options, now func() time.Time, log *stateLog, lanes *lanes,
	settled func(context.Context, result, bool), drained func(),
) *completer {
	return &completer{store: st, window: opts.GroupWindow, batchSize: opts.BatchSize, statementTimeout: opts.StatementTimeout,
		now: now, log: log, lanes: lanes, settled: settled, drained: drained, arrived: make(chan struct{}, 1), hurried: make(chan struct{}, 1)}
}

// add queues a result; it never blocks.
func (c *completer) add(r result) {
	c.mu.Lock()
	c.queue = append(c.queue, r)
	c.mu.Unlock()
	c.ring()
}

// hurry ends the pause of a retry: the database is back. The claims of the
// results that wait are those of a worker ID that is given up, perhaps, and the
// next sweeps would release them.
func (c *completer) hurry() {
	select {
	case c.hurried <- struct{}{}:
	default:
	}
}

func (c *completer) ring() {
	select {
	case c.arrived <- struct{}{}:
	default:
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
			if wait := c.window - time.Since(last); wait > 0 && c.backlog() < c.batchSize {
				sleep(ctx, wait)
			}
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
	for {
		c.mu.Lock()
		if len(c.aside) > 0 && !time.Now().Before(c.asideNext) {
			c.queue, c.aside, c.refused = append(c.queue, c.aside...), nil, 0
			careful = true
		}
		batch := slices.Clone(c.queue)
		c.mu.Unlock()
		if len(batch) == 0 {
			return true
		}
		left, refused, err := c.writeGroup(hard, batch, careful)
		if err == nil {
			c.putAside(left)
			pause, careful = 50*time.Millisecond, false
			// Results that arrived meanwhile stand behind the batch.
			c.mu.Lock()
			c.queue = slices.Clone(c.queue[len(batch):])
			c.refused += refused
			healthy := c.refused == 0
			c.mu.Unlock()
			if healthy {
				c.log.healthy()
			}
			c.drained()
			continue
		}
		c.mu.Lock()
		for i := range batch {
			c.queue[i].tried = true
		}
		c.mu.Unlock()
		c.log.failing("inbox: results cannot be stored, retrying", err, zap.Int("results", len(batch)))
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

// writeGroup stores a batch together or, if the database refuses that, each
// result alone: what it refuses of one status (a damaged page, a trigger of
// the application's) must not strand the others (contract 5.10). left are
// those to put aside, refused of them not for a lock's sake; an error says that
// nothing is known of any.
func (c *completer) writeGroup(ctx context.Context, batch []result, careful bool) (left []result, refused int, err error) {
	left, err = c.write(ctx, batch, careful)
	if err == nil || store.IsTransient(err) {
		return left, 0, err
	}
	for i := range batch { // one of its two statements may have passed
		batch[i].tried = true
	}
	for i, r := range batch {
		waiting, err := c.write(ctx, []result{r}, true)
		switch {
		case err == nil:
			left = append(left, waiting...)
			continue
		case store.IsTransient(err): // and so it would be for the others
			c.log.failing("inbox: results cannot be stored, retrying", err, zap.Int("results", len(batch)-i))
			return append(left, batch[i:]...), refused + len(batch) - i, nil
		}
		left, refused = append(left, r), refused+1
		c.log.failing("inbox: results cannot be stored, retrying", err, zap.String("handler_key", r.claim.HandlerKey), zap.String("message_id", r.claim.MessageID))
	}
	return left, refused, nil
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
				c.log.healthy()
			}
			c.drained()
			c.aside = left
		} else {
			for i := range batch {
				batch[i].tried = true
			}
			c.aside = batch
			c.log.failing("inbox: results cannot be stored, retrying", err, zap.Int("results", len(batch)))
		}
		if len(c.aside) > 0 {
			sleep(hard, 100*time.Millisecond)
		}
	}
	return c.backlog() + len(c.aside)
}

// write stores one batch: completions in one statement, everything else in
// another. Careful, it passes over rows that others have locked and returns
// their results.
func (c *completer) write(ctx context.Context, batch []result, careful bool) (left []result, err error) {
	complete, settle := c.store.Complete, c.store.Settle
	if careful {
		complete, settle = c.store.CompleteUnlocked, c.store.SettleUnlocked
	}
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
		done, err := complete(stmt, completions, c.now())
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[completes[k]] = ok
		}
	}
	if len(settlements) > 0 {
		done, err := settle(stmt, settlements)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[settles[k]] = ok
		}
	}
	waiting, err := c.readBack(stmt, batch, applied, careful)
	if err != nil {
		return nil, err
	}
	var ended []store.Ref
	for i, r := range batch {
		if applied[i] {
			ended = append(ended, r.claim.Ref)
		}
	}
	c.lanes.advance(stmt, ended)
	for i, r := range batch {
		if waiting[i] {
			left = append(left, r)
			continue
		}
		c.settled(ctx, r, applied[i])
	}
	return left, nil
}

// readBack looks at the rows that were not changed before they are called
// stale. A row that a careful write passed over and that still is at the
// claim's version is locked: waiting. And if an earlier try of the result
// returned an error it may have been committed although its answer was lost:
// a row one version ahead of the claim, in the state we wrote, is then taken
// for our own writing. So is a completed one if the attempt's commit was still
// under way when it was asked for: only a claim's own holder can complete it at
// that version, so the commit has won and the attempt has completed.
func (c *completer) readBack(ctx context.Context, batch []result, applied []bool, careful bool) (waiting []bool, err error) {
	waiting = make([]bool, len(batch))
	var ids []string
	for i, r := range batch {
		if !applied[i] && !r.fenced && (careful || r.tried || r.mayHaveCommitted()) {
			ids = append(ids, r.claim.StatusID)
		}
	}
	if len(ids) == 0 {
		return waiting, nil
	}
	states, err := c.store.States(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, r := range batch {
		if applied[i] || r.fenced {
			continue
		}
		s, found := states[r.claim.StatusID]
		switch {
		case !found:
		case careful && s.Version == r.claim.Version:
			waiting[i] = true
		case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version+1:
			applied[i], batch[i].verdict = true, verdict{outcome: completed}
		case r.tried:
			applied[i] = s.Version == r.claim.Version+1 && !s.Processing &&
				s.Completed == (r.outcome == completed || r.outcome == superseded) && s.Poisoned == (r.outcome == poisoned)
		}
	}
	return waiting, nil
}
