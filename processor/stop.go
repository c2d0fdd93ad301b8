package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Stop ends processing (contract 5.8): claiming stops at once, running
// handlers have StopBudget to return and are cancelled then, all results are
// stored. What was interrupted is released uncharged. Stop returns by ctx's
// deadline; within it, time is kept for the cancellation and for storing. It
// returns an error if handlers still run, which it names, or if results could
// not be stored: other workers recover those claims. Stopping twice, or before
// Start, does nothing.
func (p *Processor) Stop(ctx context.Context) error {
	p.lifecycle.Lock()
	defer p.lifecycle.Unlock()
	a := p.now
	if a == nil {
		return nil
	}
	p.mu.Lock()
	p.now = nil
	p.mu.Unlock()

	budget := newStopBudget(ctx, p.opts)
	defer time.AfterFunc(time.Until(budget.flush), a.endHard).Stop()
	a.stop()
	if !waitFor(a.done, budget.soft) {
		if s := a.current(); s != nil {
			s.end(errStopping)
		}
		if !waitFor(a.done, budget.cancel) {
			close(a.giveUp)
			<-a.done
		}
	}
	// Everything that will have a result has it in the completer's queue.
	// Should a hook hang in the completer's goroutine, it is left behind.
	a.endStoring()
	unstored := a.completer.backlog()
	if waitFor(a.storing, budget.flush) {
		last := make(chan int, 1)
		go func() { last <- a.completer.flushLast(a.hard) }()
		select {
		case unstored = <-last:
		case <-time.After(time.Until(budget.flush) + 200*time.Millisecond):
			unstored++ // a hook hangs: at least its own result's fate is not known
		}
	}
	p.announceReleased(a.hard)
	if s := a.current(); s != nil {
		s.end(errStopping)
		settled := unstored == 0 && a.left.count() == 0
		if settled {
			p.farewell(a.hard, s)
		}
		p.stopLock(a.hard, s, settled)
	}
	a.endHard()
	a.endServices()
	// A hook that ignores its context must not hold up the stop.
	ended := make(chan struct{})
	go func() { a.services.Wait(); close(ended) }()
	waitFor(ended, time.Now().Add(max(time.Until(budget.flush), time.Second)))
	var problems []error
	if left := a.left.count(); left > 0 {
		problems = append(problems,
			fmt.Errorf("stop: %d handlers still run, their claims are recovered by another worker: %s", left, a.left.names()))
	}
	if unstored > 0 {
		problems = append(problems,
			fmt.Errorf("stop: %d results could not be stored, their claims are recovered by another worker", unstored))
	}
	return errors.Join(problems...)
}

// farewell marks the worker as stopped; if that fails its silence tells.
func (p *Processor) farewell(hard context.Context, s *session) {
	stmt, cancel := context.WithTimeout(hard, p.opts.StatementTimeout)
	defer cancel()
	if err := p.store.StopWorker(stmt, s.id, p.clock.Now()); err != nil {
		p.log.Warn("inbox: worker could not be marked as stopped", zap.Error(err))
	}
}

// stopBudget divides the time of a stop: the last fifth is for storing
// results, the fifth before for handlers to notice their cancellation.
type stopBudget struct{ soft, cancel, flush time.Time }

func newStopBudget(ctx context.Context, opts Options) stopBudget {
	now := time.Now()
	// A short budget for handlers must not cut the time for storing short.
	end := now.Add(opts.StopBudget*5/3 + opts.StatementTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	total := max(end.Sub(now), 0)
	soft := min(opts.StopBudget, total*3/5)
	return stopBudget{soft: now.Add(soft), cancel: now.Add(total * 4 / 5), flush: now.Add(total * 39 / 40)}
}

func waitFor(done <-chan struct{}, until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
