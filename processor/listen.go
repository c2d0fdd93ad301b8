package processor

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// listen wakes the loop when other processes notify of new statuses, until ctx ends. Polling
// continues, so nothing depends on a notification. While listening fails, the log says so from time
// to time, and health shows it.
func (p *Processor) listen(ctx context.Context) {
	first := max(p.opts.restartDelay()/50, time.Millisecond)
	longest := 12 * p.opts.restartDelay()
	pause := first
	for ctx.Err() == nil {
		began := time.Now()
		err := routine.Protect("listening", func() error { return p.listenOnce(ctx) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest { // it worked for a while
			pause = first
		}
		p.listening.Begin(nil, err, zap.Duration(telemetry.FieldTryingAgainAfter, pause))
		routine.Sleep(ctx, pause)
		pause = min(2*pause, longest)
	}
}

// listenOnce listens on one connection until that fails. It notices within two thirds of WorkerTimeout
// that a connection died silently.
func (p *Processor) listenOnce(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	l, err := p.store.Listen(connecting)
	cancel()
	if err != nil {
		return err
	}
	defer l.Close()
	p.listening.End(nil)
	// Notifications from before we listened are lost, so poll once. Poll after listening has begun,
	// so that what commits after the poll is notified.
	p.wakeup.wake()
	for {
		keys, err := l.Next(ctx, p.opts.WorkerTimeout/3)
		if err != nil {
			return err
		}
		p.wakeAnnounced(keys)
	}
}

// wakeAnnounced wakes the handlers that are registered here under any of the keys, or all handlers
// if there are no keys.
func (p *Processor) wakeAnnounced(keys []string) {
	if len(keys) == 0 {
		p.wakeup.wake()
		return
	}
	var known []string
	for _, key := range keys {
		if h, ok := p.registry.Lookup(key); ok {
			known = append(known, h.Key())
		}
	}
	if len(known) > 0 {
		p.wakeup.wake(known...)
	}
}

// announceReleased notifies the other workers that this one released claims during its stop: they
// are due now, and this worker will not run them.
func (p *Processor) announceReleased(hard context.Context) {
	if !p.opts.Listen || !p.released.Swap(false) {
		return
	}
	stmt, cancel := context.WithTimeout(hard, p.opts.StatementTimeout)
	defer cancel()
	if err := p.store.Notify(stmt); err != nil {
		p.log.Warn("inbox: notifying other workers of released claims failed, they find them by polling", zap.Error(err))
	}
}
