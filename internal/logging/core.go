package logging

import (
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/telemetry"
)

// core passes lines on as far as the limiter admits them.
type core struct {
	zapcore.Core
	limiter *Limiter
	bound   kind // what its fields say of the lines' kind
}

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{Core: c.Core.With(fields), limiter: c.limiter, bound: c.bound.with(fields)}
}

// Check implements zapcore.Core. What the application's core leaves out by
// itself, a sampler perhaps, it does when the line is passed on.
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

// failures is where zap says by default that a line cannot be written.
var failures = zapcore.Lock(os.Stderr)

// pass writes to the application's core, as its logger would.
func (c *core) pass(entry zapcore.Entry, fields []zapcore.Field) {
	if checked := c.Core.Check(entry, nil); checked != nil {
		checked.ErrorOutput = failures
		checked.Write(fields...)
	}
}

// with is the kind of a line with these fields.
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

// named are the fields of a kind that its core does not have.
func (k kind) named(bound kind) (fields []zapcore.Field) {
	if k.handlerKey != bound.handlerKey {
		fields = append(fields, zap.String(telemetry.FieldHandlerKey, k.handlerKey))
	}
	if k.channel != bound.channel {
		fields = append(fields, zap.String(telemetry.FieldChannel, k.channel))
	}
	return fields
}
