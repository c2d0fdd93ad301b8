package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Stop ends processing (contract 5.8). Claiming stops at once. Running handlers have StopBudget to
// return and are then cancelled. All results are stored, and interrupted attempts are released
// uncharged. Stop returns by ctx's deadline; within it, time is reserved for cancelling and
// storing.
//
// It returns an error that names the handlers that still run, or says that results could not be
// stored. Other workers recover these claims. Stopping twice, or before Start, does nothing.
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
	// Everything that will have a result has it in the completer's queue now. If a hook hangs in
	// the completer's goroutine, that goroutine is abandoned.
	a.endStoring()
	unstored := a.completer.backlog()
	if waitFor(a.storing, budget.flush) {
		last := make(chan int, 1)
		go func() { last <- a.completer.flushLast(a.hard) }()
		select {
		case unstored = <-last:
		case <-time.After(time.Until(budget.flush) + 200*time.Millisecond):
			unstored++ // a hook hangs, so at least the result that it was called for is not known to be stored
		}
	}
	p.announceReleased(a.hard)
	if s := a.current(); s != nil {
		s.end(errStopping)
		settled := unstored == 0 && a.left.count() == 0
		if settled {
			p.markStopped(a.hard, s)
		}
		p.stopLock(a.hard, s, settled)
	}
	a.endHard()
	a.endServices()
	// A hook that ignores its context must not delay the stop.
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

// markStopped marks the worker as stopped. If that fails, the others notice that it is silent.
func (p *Processor) markStopped(hard context.Context, s *session) {
	stmt, cancel := context.WithTimeout(hard, p.opts.StatementTimeout)
	defer cancel()
	if err := p.store.StopWorker(stmt, s.id, p.clock.Now()); err != nil {
		p.log.Warn("inbox: worker could not be marked as stopped", zap.Error(err))
	}
}

// stopBudget divides the time of a stop. The last fifth is for storing results. The fifth before it
// is for handlers to notice that they are cancelled.
type stopBudget struct{ soft, cancel, flush time.Time }

func newStopBudget(ctx context.Context, opts Options) stopBudget {
	now := time.Now()
	// A short budget for handlers must not shorten the time for storing.
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
