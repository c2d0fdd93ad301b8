package database

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// NotifyFunction sends a text to those who listen on a channel, once its transaction is committed:
//
//	notify('channel', 'text')
const NotifyFunction = "notify"

type notification struct{ channel, text string }

// notify is NotifyFunction.
func (d *Database) notify(args []driver.Value) (driver.Value, error) {
	d.notices = append(d.notices, notification{fmt.Sprint(args[0]), fmt.Sprint(args[1])})
	return true, nil
}

// deliver sends the notifications of a transaction that is committed. The caller has the turn.
func (d *Database) deliver(notices []notification) {
	for _, notice := range notices {
		for l := range d.listeners {
			if l.channel == notice.channel {
				l.texts = append(l.texts, notice.text)
				l.signal.Notify()
			}
		}
	}
}

// Listener is a connection that receives notifications. One goroutine at a time may use it.
type Listener struct {
	database *Database
	link     Link
	channel  string
	signal   routine.Signal
	texts    []string // not received yet; guarded by the database's turn
}

// Listen opens a connection that listens on a channel. Its calls are "LISTEN", "NOTIFICATION" for each one, and "PING".
func (d *Database) Listen(ctx context.Context, link Link, channel string) (*Listener, error) {
	l := &Listener{database: d, link: orDirect(link), channel: channel, signal: routine.NewSignal()}
	if err := l.call(ctx, "LISTEN", func() error { d.listeners[l] = struct{}{}; return nil }); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Listener) call(ctx context.Context, text string, do func() error) error {
	return l.link(ctx, text, func() error {
		if err := l.database.turn.Acquire(ctx); err != nil {
			return err
		}
		defer l.database.turn.Release()
		return do()
	})
}

// Next waits for a notification. If there is none for the duration of quiet, it checks that the connection lives.
func (l *Listener) Next(ctx context.Context, quiet time.Duration) (text string, err error) {
	for {
		silence := time.NewTimer(quiet)
		select {
		case <-l.signal:
			silence.Stop()
			err = l.call(ctx, "NOTIFICATION", func() error {
				text, l.texts = l.texts[0], l.texts[1:]
				if len(l.texts) > 0 {
					l.signal.Notify()
				}
				return nil
			})
			return text, err
		case <-ctx.Done():
			err = ctx.Err()
		case <-silence.C:
			err = l.call(ctx, "PING", func() error { return nil })
		}
		silence.Stop()
		if err != nil {
			return "", err
		}
	}
}

// Close ends the connection.
func (l *Listener) Close() {
	if l.database.turn.Acquire(context.Background()) == nil {
		delete(l.database.listeners, l)
		l.database.turn.Release()
	}
}
