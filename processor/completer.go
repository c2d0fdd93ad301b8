package processor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// result is a finished attempt with its verdict, to be stored.
type result struct {
	*task
	verdict
	// tried says that an earlier write returned an error. That write may have been committed all the same.
	tried bool
	// found says that the attempt's commit got no response and was found by reading back.
	found bool
}

// ended reports whether the status is completed or poisoned.
func (r result) ended() bool {
	return r.outcome == handler.AttemptCompleted || r.outcome == superseded || r.outcome == handler.AttemptPoisoned
}

// mayHaveCommitted reports whether the commit of the attempt's transaction got no response and was
// not visible when the status was read back. It may still have committed later.
func (r result) mayHaveCommitted() bool {
	var cut *attempt.Cut
	return errors.As(r.failure, &cut) && cut.Unknown
}

// completer stores results. The first result is stored at once. While a write is running, and until groupWindow has
// passed since the last write or a batch is full, further results gather and are stored together. Results that arrived
// during a write follow it at once or, if it stored manyResults, when groupWindow has passed since it began. A result
// with a lane ends the gathering: the lane's next message waits until it is stored. The completer retries for as long
// as the database fails: results are given up only at the end of a stop.
type completer struct {
	*shared
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

func newCompleter(s *shared) *completer {
	return &completer{shared: s, arrived: routine.NewSignal(), urgent: routine.NewSignal(), hurried: routine.NewSignal()}
}

// add queues results, those of a run together. It never blocks. The messages' contents are not kept: the results may be
// many, and wait for as long as the database fails.
func (c *completer) add(results ...result) {
	urgent := false
	for _, r := range results {
		r.forgetMessage()
		urgent = urgent || r.claim.Lane != nil
	}
	c.mu.Lock()
	before := len(c.queue)
	c.queue = append(c.queue, results...)
	urgent = urgent || before < c.opts.BatchSize && len(c.queue) >= c.opts.BatchSize
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
	return len(c.queue)+c.refused >= c.opts.BatchSize ||
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
			c.gather(ctx, groupWindow-time.Since(last))
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
			// Results that arrived during the write are in the queue after the batch.
			c.mu.Lock()
			c.queue = slices.Delete(c.queue, 0, len(batch))
			c.refused += refused
			c.mu.Unlock()
			c.noteUnstored()
			c.drained()
			if len(batch) >= manyResults && c.backlog() > 0 {
				c.gather(ctx, groupWindow-time.Since(began))
			}
			continue
		}
		c.mu.Lock()
		for i := range batch {
			c.queue[i].tried = true
		}
		c.mu.Unlock()
		c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)))
		// If one row is locked by a transaction that does not end (such as one of a lost
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

// writeGroup stores a batch together or, if the database refuses that, each result alone: a status
// that the database refuses (a damaged page, a trigger of the application) must not block the
// others. left are the results to put aside; refused is how many of them are refused rather than
// locked. An error means that the outcome of the whole batch is unknown.
func (c *completer) writeGroup(
	ctx context.Context, batch []result, careful bool,
) (left []result, refused int, err error) {
	left, err = c.write(ctx, batch, careful)
	if err == nil || store.IsTransient(err) {
		return left, 0, err
	}
	for i := range batch { // one of the two statements may have been committed
		batch[i].tried = true
	}
	for i, r := range batch {
		waiting, err := c.write(ctx, []result{r}, true)
		switch {
		case err == nil:
			left = append(left, waiting...)
			continue
		case store.IsTransient(err): // the same would happen to the others
			c.storing.Begin(nil, err, zap.Int(telemetry.FieldResults, len(batch)-i))
			return append(left, batch[i:]...), refused + len(batch) - i, nil
		}
		left, refused = append(left, r), refused+1
		c.storing.Begin(nil, err, zap.String(telemetry.FieldHandlerKey, r.claim.HandlerKey),
			zap.String(telemetry.FieldMessageID, r.claim.MessageID))
	}
	return left, refused, nil
}

// write stores one batch: the completions in one statement, everything else in another. If careful,
// it skips rows that others have locked and returns their results.
func (c *completer) write(ctx context.Context, batch []result, careful bool) (left []result, err error) {
	locked := store.AwaitLocked
	if careful {
		locked = store.SkipLocked
	}
	var (
		completions = make([]store.Completion, 0, len(batch))
		completes   = make([]int, 0, len(batch))
		settlements []store.Settlement
		settles     []int
		applied     = make([]bool, len(batch))
	)
	for i, r := range batch {
		switch {
		case r.Stored:
			applied[i] = true
		case r.Stale:
		case r.outcome == handler.AttemptCompleted:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeProcessed)), append(completes, i)
		case r.outcome == superseded:
			completions, completes = append(completions, completionOf(r.claim, models.OutcomeSuperseded)), append(completes, i)
		default:
			settlements, settles = append(settlements, *r.settlement), append(settles, i)
		}
	}
	stmt, cancel := context.WithTimeout(ctx, c.opts.StatementTimeout)
	defer cancel()
	if len(completions) > 0 {
		done, err := c.store.Complete(stmt, completions, c.clock.Now(), locked)
		if err != nil {
			return nil, err
		}
		for k, ok := range done {
			applied[completes[k]] = ok
		}
	}
	if len(settlements) > 0 {
		done, err := c.store.Settle(stmt, settlements, locked)
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
	var ended []result
	for i, r := range batch {
		if applied[i] && r.claim.Lane != nil {
			ended = append(ended, r)
		}
	}
	c.lanes.runNext(stmt, ended, c.reserve)
	for i, r := range batch {
		if waiting[i] {
			left = append(left, r)
			continue
		}
		if r.found { // only now, so that nothing waits for the application's hooks
			r.NotifyCommitted()
		}
		c.settled(ctx, r, applied[i])
	}
	return left, nil
}

// readBack reads the rows that the write did not change, before they are counted as stale:
//
//   - A row that a careful write skipped and that still has the claim's version is locked: waiting.
//   - If an earlier write of the result returned an error, it may have committed without a response. So
//     a row that is one version ahead of the claim, in the state we wrote, counts as our own write.
//   - If the attempt's own commit had no response, a row completed at the next version counts as
//     completed by the attempt: only the holder of the claim can complete it at that version.
func (c *completer) readBack(
	ctx context.Context, batch []result, applied []bool, careful bool,
) (waiting []bool, err error) {
	waiting = make([]bool, len(batch))
	var refs []store.Ref
	for i, r := range batch {
		if !applied[i] && !r.Stale && (careful || r.tried || r.mayHaveCommitted()) {
			refs = append(refs, r.claim.Ref)
		}
	}
	if len(refs) == 0 {
		return waiting, nil
	}
	states, err := c.store.States(ctx, refs)
	if err != nil {
		return nil, err
	}
	for i, r := range batch {
		if applied[i] || r.Stale {
			continue
		}
		s, found := states[r.claim.StatusID]
		switch {
		case !found:
		case careful && s.Version == r.claim.Version:
			waiting[i] = true
		case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version+1:
			applied[i], batch[i].verdict = true, verdict{outcome: handler.AttemptCompleted}
			batch[i].found = true
		case r.tried:
			applied[i] = s.Version == r.claim.Version+1 && !s.Processing &&
				s.Completed == (r.outcome == handler.AttemptCompleted || r.outcome == superseded) &&
				s.Poisoned == (r.outcome == handler.AttemptPoisoned)
		}
	}
	return waiting, nil
}

func completionOf(c store.Claim, outcome models.Outcome) store.Completion {
	return store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: outcome}
}

func (p *Processor) newCompleter(h *held) *completer {
	c := newCompleter(p.shared)
	c.settled = func(ctx context.Context, r result, applied bool) {
		h.drop(r.claim)
		p.recordResult(ctx, r, applied)
	}
	c.drained, c.reserve = p.wakeup.notify, p.reserveNext
	return c
}

// recordResult counts a result that was stored, or that turned out to be stale, and calls the hooks.
func (p *Processor) recordResult(ctx context.Context, r result, applied bool) {
	if r.outcome != handler.AttemptReleased || !applied {
		p.runner.interruptions.forget(r.claim.StatusID)
	}
	if !applied {
		p.counters.OfHandler(telemetry.Fenced, r.claim.HandlerKey, 1)
		p.log.Warn("inbox: result of a stale claim changed nothing", r.fields(zap.String(telemetry.FieldOutcome,
			string(r.outcome)), zap.NamedError(telemetry.FieldHandlerError, r.failure))...)
		return
	}
	switch {
	case !r.next.IsZero():
		p.wakeup.at(r.next)
	case r.outcome == handler.AttemptReleased: // due now, for other workers or for a later session of this one
		p.Wake(r.Handler.Key())
	}
	switch r.outcome {
	case handler.AttemptFailed:
		p.log.Warn("inbox: attempt failed", r.fields(zap.Time(telemetry.FieldNextAttemptAt, r.next), zap.Error(r.failure))...)
	case handler.AttemptPoisoned:
		p.log.Error("inbox: message poisoned", r.fields(zap.Error(r.failure))...)
	case handler.AttemptReleased:
		if errors.As(r.failure, new(*sealing.MissingError)) {
			p.log.Error("inbox: a sealed message waits", r.fields(zap.Time(telemetry.FieldNextAttemptAt, r.next),
				zap.Error(r.failure))...)
		}
	case superseded:
		p.counters.OfHandler(telemetry.Superseded, r.claim.HandlerKey, 1)
		return
	}
	if r.outcome != handler.AttemptReleased {
		p.progress.Store(p.clock.Injected.Now().UnixNano())
		if r.outcome == handler.AttemptCompleted {
			p.reports.Instruments.Completed(ctx, r.claim.HandlerKey, p.clock.Now().Sub(r.claim.CreatedAt))
		}
	}
	p.reports.Ended(ctx, r.event(), r.transport, r.Cause)
}

// fields returns the log fields that name the attempt.
func (r *result) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String(telemetry.FieldHandlerKey, r.claim.HandlerKey),
		zap.String(telemetry.FieldMessageID, r.claim.MessageID), zap.Int(telemetry.FieldAttempt, r.number())}, more...)
}

// event returns the event for the hooks.
func (r *result) event() handler.AttemptEvent {
	return handler.AttemptEvent{MessageID: r.claim.MessageID, HandlerKey: r.claim.HandlerKey, Type: r.messageType,
		Attempt: r.number(), Outcome: r.outcome, Err: r.failure, Duration: r.Duration, NextAttemptAt: r.next}
}
