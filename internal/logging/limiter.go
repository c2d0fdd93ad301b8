// Package logging limits what an inbox writes to the application's log: ten thousand poisoned messages must not produce
// ten thousand lines (contract 12).
package logging

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/redact"
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

// core passes the lines that the limiter admits to the application's core, with redacted errors and bounded fields. All
// lines of an inbox pass through it.
type core struct {
	zapcore.Core
	limiter  *Limiter
	redactor redaction.Redactor
	bound    kind // the lines' kind as far as bound fields say
}

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	bound := c.bound.with(fields)
	return &core{Core: c.Core.With(c.safe(bound, fields)), limiter: c.limiter, redactor: c.redactor, bound: bound}
}

// Check implements zapcore.Core. The application's core decides about the line, such as by sampling, when it gets it.
func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level < zapcore.WarnLevel {
		c.pass(entry, fields)
		return nil
	}
	k := c.bound.with(fields)
	k.message = entry.Message
	write, ended := c.limiter.admit(c, k, entry)
	if ended != nil {
		ended.write(entry.Time)
	}
	if write {
		c.pass(entry, fields)
	}
	return nil
}

// failures is where zap reports by default that a line cannot be written.
var failures = zapcore.Lock(os.Stderr)

// pass writes to the application's core, as the application's logger would.
func (c *core) pass(entry zapcore.Entry, fields []zapcore.Field) {
	if checked := c.Core.Check(entry, nil); checked != nil {
		checked.ErrorOutput = failures
		checked.Write(c.safe(c.bound.with(fields), fields)...)
	}
}

// safe returns the fields with redacted errors, bounded, and without characters that a terminal acts on (contract 12).
// If nothing changes it returns fields itself, so that unchanged errors stay the application's.
func (c *core) safe(of kind, fields []zapcore.Field) []zapcore.Field {
	about := redact.Value{HandlerKey: of.handlerKey, Channel: of.channel}
	for _, f := range fields {
		if f.Key == telemetry.FieldMessageID {
			about.MessageID = f.String
		}
	}
	all, copied := fields, false
	for i, f := range fields {
		safe, changed := f, false
		switch f.Type {
		case zapcore.StringType:
			safe.String = bounded(f.String, limitOf(f.Key))
			changed = safe.String != f.String
		case zapcore.ErrorType:
			text, details := texts(f.Interface)
			of := redactedError{bounded(c.redactor.Error(about, text), maxText),
				bounded(c.redactor.Error(about, details), maxText)}
			safe, changed = zap.NamedError(f.Key, of), of.text != text || of.details != details
		case zapcore.ArrayMarshalerType:
			if list, ok := listed(f.Interface); ok {
				safe, changed = zap.Strings(f.Key, list), true
			}
		}
		if changed && !copied {
			all, copied = slices.Clone(fields), true
		}
		if changed {
			all[i] = safe
		}
	}
	return all
}

// How many characters of a field are written: of errors and stacks, and of every other text, such as an ID.
const (
	maxText = 2000
	maxName = 500
)

func limitOf(field string) int {
	switch field {
	case telemetry.FieldStack, telemetry.FieldLastError, telemetry.FieldText:
		return maxText
	}
	return maxName
}

func bounded(text string, limit int) string {
	cut := brief.Characters(text, limit)
	if len(cut) < len(text) {
		return brief.Visible(cut) + "…"
	}
	return brief.Visible(text)
}

// listed returns the bounded texts of a list of strings, and false if nothing is to be changed. zap's type of such
// lists is not exported.
func listed(list any) ([]string, bool) {
	value := reflect.ValueOf(list)
	if value.Kind() != reflect.Slice || value.Type().Elem().Kind() != reflect.String {
		return nil, false
	}
	safe, changed := make([]string, value.Len()), false
	for i := range safe {
		text := value.Index(i).String()
		safe[i] = bounded(text, maxName)
		changed = changed || safe[i] != text
	}
	return safe, changed
}

// texts returns the texts that zap writes of an error: its text and, if it formats itself, its details. The error is
// application code, so its methods may panic.
func texts(of any) (text, details string) {
	defer func() {
		if recover() != nil {
			text, details = fmt.Sprintf("%T, which panics when it is asked for its text", of), ""
		}
	}()
	err, ok := of.(error)
	if !ok {
		return "", ""
	}
	text = err.Error()
	if _, formats := err.(fmt.Formatter); formats {
		details = fmt.Sprintf("%+v", err)
	}
	return text, details
}

// redactedError is an error reduced to its redacted texts.
type redactedError struct{ text, details string }

func (s redactedError) Error() string { return s.text }

// Format implements fmt.Formatter, which zap uses to get the details.
func (s redactedError) Format(f fmt.State, _ rune) {
	if f.Flag('+') && s.details != "" {
		_, _ = io.WriteString(f, s.details)
		return
	}
	_, _ = io.WriteString(f, s.text)
}

// with returns the kind of a line with these fields.
func (k kind) with(fields []zapcore.Field) kind {
	for _, f := range fields {
		switch f.Key {
		case telemetry.FieldHandlerKey:
			k.handlerKey = f.String
		case telemetry.FieldChannel:
			k.channel = f.String
		}
	}
	return k
}

// named returns the fields of a kind that its core does not have bound.
func (k kind) named(bound kind) (fields []zapcore.Field) {
	if k.handlerKey != bound.handlerKey {
		fields = append(fields, zap.String(telemetry.FieldHandlerKey, k.handlerKey))
	}
	if k.channel != bound.channel {
		fields = append(fields, zap.String(telemetry.FieldChannel, k.channel))
	}
	return fields
}
