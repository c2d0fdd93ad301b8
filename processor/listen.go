package processor

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// listen wakes the loop with what other processes announce, until ctx ends
// (contract 4.7). Polling goes on beside it, so nothing depends on a
// notification: while it cannot listen, the log says so now and then and health all
// the time.
func (p *Processor) listen(ctx context.Context) {
	first := max(p.opts.restartDelay()/50, time.Millisecond)
	longest := 12 * p.opts.restartDelay()
	pause := first
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		if crash := protect(func() { err = p.hear(ctx) }); crash != nil {
			err = crash
		}
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

// hear listens on one connection until that fails. A connection that died
// without a word is noticed within two thirds of WorkerTimeout.
func (p *Processor) hear(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	l, err := p.store.Listen(connecting)
	cancel()
	if err != nil {
		return err
	}
	defer l.Close()
	p.listening.End(nil)
	// What was announced before it listened is not repeated. It looks after it
	// has begun to listen, so that what commits after the look is heard.
	p.wakeup.wake()
	for {
		keys, err := l.Next(ctx, p.opts.WorkerTimeout/3)
		if err != nil {
			return err
		}
		p.wakeAnnounced(keys)
	}
}

// wakeAnnounced wakes those handlers of the keys that are registered here, by
// whichever of their keys; all if there are no keys.
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

// announceReleased tells the other workers of claims that this one has given
// back at its stop: they are due now, and it will not run them.
func (p *Processor) announceReleased(hard context.Context) {
	if !p.opts.Listen || !p.released.Swap(false) {
		return
	}
	stmt, cancel := context.WithTimeout(hard, p.opts.StatementTimeout)
	defer cancel()
	if err := p.store.Notify(stmt); err != nil {
		p.log.Warn("inbox: other workers could not be told of released claims, they find them by polling", zap.Error(err))
	}
}
