// Package logging limits what an inbox writes to the application's log: ten thousand poisoned messages must not produce
// ten thousand lines (contract 12).
package logging

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Warnings and errors of one kind are written at once until there are so many within the window. The others are
// counted, and a line at the end of the window reports their number.
const (
	lines  = 10
	window = 10 * time.Second
)

// WithoutStacks returns log without the stacks that zap adds to errors: they would show this module's frames. For nil
// it returns a logger that writes nothing.
func WithoutStacks(log *zap.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return log.WithOptions(zap.AddStacktrace(zapcore.FatalLevel + 1))
}

// Limiter limits the warnings and errors of a logger. Lines are of one kind if they have the same text, handler key and
// channel. It is safe for concurrent use.
type Limiter struct {
	mu    sync.Mutex
	kinds map[kind]*count
	now   func() time.Time
}

type kind struct{ message, handlerKey, channel string }

// count counts the lines of one kind since its window began.
type count struct {
	kind
	began   time.Time
	written int
	left    int           // not written
	entry   zapcore.Entry // the last one left out
	core    *core
}

// Limit returns log without stacks, with its lines limited by the returned Limiter and its errors redacted.
func Limit(log *zap.Logger, redactor redaction.Redactor) (*zap.Logger, *Limiter) {
	l := &Limiter{kinds: map[kind]*count{}, now: time.Now}
	return WithoutStacks(log).WithOptions(zap.WrapCore(func(inner zapcore.Core) zapcore.Core {
		return &core{Core: inner, limiter: l, redactor: redactor}
	})), l
}

// Run reports the lines left out at the end of each window, until ctx ends.
func (l *Limiter) Run(ctx context.Context) {
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.sum(func(c *count) bool { return l.now().Sub(c.began) >= window })
		}
	}
}

// Flush reports the lines left out so far.
func (l *Limiter) Flush() { l.sum(func(*count) bool { return true }) }

// sum ends the windows that are over and reports the lines that they left out.
func (l *Limiter) sum(over func(*count) bool) {
	l.mu.Lock()
	var ended []*count
	for k, c := range l.kinds {
		if over(c) {
			ended = append(ended, c)
			delete(l.kinds, k)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(ended, func(a, b *count) int { return a.entry.Time.Compare(b.entry.Time) })
	for _, c := range ended {
		c.write(l.now())
	}
}

// write logs how many lines were left out.
func (c *count) write(now time.Time) {
	if c.left == 0 {
		return
	}
	of := c.entry
	of.Message, of.Time = of.Message+": further lines were left out", now
	c.core.pass(of, append(c.named(c.core.bound), zap.Int(telemetry.FieldTimes, c.left),
		zap.Duration(telemetry.FieldAfter, now.Sub(c.began))))
}

// admit counts a line. It reports whether to write it, and returns the window that the line ended, if any.
func (l *Limiter) admit(c *core, k kind, entry zapcore.Entry) (write bool, ended *count) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.kinds[k]
	if of == nil || entry.Time.Sub(of.began) >= window {
		ended = of
		of = &count{kind: k, began: entry.Time}
		l.kinds[k] = of
	}
	if of.written < lines {
		of.written++
		return true, ended
	}
	of.left, of.entry, of.core = of.left+1, entry, c
	return false, ended
}
