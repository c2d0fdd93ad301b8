package processor

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// listen wakes the loop when other processes notify of new statuses, until ctx ends. Polling
// continues, so nothing depends on a notification. While listening fails, the log says so from time
// to time, and health shows it. Where no notification can arrive, the log says so once.
func (p *Processor) listen(ctx context.Context) {
	longest := 12 * p.opts.restartDelay()
	retry := routine.Backoff{First: max(p.opts.restartDelay()/50, time.Millisecond), Max: longest}
	for ctx.Err() == nil {
		began := time.Now()
		err := routine.Protect("listening", func() error { return p.listenOnce(ctx) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest { // it worked for a while
			retry.Reset()
		}
		pause := retry.Next()
		if unable := errors.Is(err, store.ErrCannotListen); unable || errors.Is(err, store.ErrSharedSession) {
			p.polls.Do(func() {
				p.log.Info("inbox: notifications cannot arrive, what other processes accept is found by polling", zap.Error(err))
			})
			p.listening.End(nil)
			if unable {
				return // the driver does not change
			}
			pause = longest
		} else {
			p.listening.Begin(nil, err, zap.Duration(telemetry.FieldTryingAgainAfter, pause))
		}
		routine.Sleep(ctx, pause)
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
		p.wakeNotified(keys)
	}
}

// wakeNotified wakes the handlers that are registered here under any of the keys, or all handlers if there are no keys.
func (p *Processor) wakeNotified(keys []string) {
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

// listens reports whether this process notifies others, and is notified by them. SQLite has no notifications.
func (p *Processor) listens() bool { return p.opts.Listen && !p.store.SingleWriter() }

// notify notifies the workers of other processes that these handlers have new statuses.
func (p *Processor) notify(handlerKeys ...string) {
	if p.listens() {
		p.notifier.notify(handlerKeys...)
	}
}
