package logging

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Stderr returns the logger of an inbox that was given none: warnings and errors, as text for people, on the standard
// error.
func Stderr() *zap.Logger {
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime, encoder.EncodeDuration = zapcore.ISO8601TimeEncoder, zapcore.StringDurationEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoder), zapcore.Lock(os.Stderr), zapcore.WarnLevel))
}

// Slog returns a logger that writes to a slog.Handler. zap's own package for slog, zapslog, goes the other way.
func Slog(h slog.Handler) *zap.Logger { return zap.New(slogCore{h}) }

// slogCore passes zap's lines to a slog.Handler.
type slogCore struct{ handler slog.Handler }

// slogLevel converts a level: slog's Debug, Info, Warn and Error are -4, 0, 4 and 8, zap's are -1, 0, 1 and 2.
func slogLevel(l zapcore.Level) slog.Level { return slog.Level(l) * (slog.LevelWarn - slog.LevelInfo) }

// Enabled implements zapcore.Core.
func (c slogCore) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	for i, f := range fields {
		if f.Type == zapcore.NamespaceType {
			h := c.handler.WithAttrs(attrs(fields[:i])).WithGroup(f.Key)
			return slogCore{h}.With(fields[i+1:])
		}
	}
	return slogCore{c.handler.WithAttrs(attrs(fields))}
}

// Check implements zapcore.Core.
func (c slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	record := slog.NewRecord(entry.Time, slogLevel(entry.Level), entry.Message, entry.Caller.PC)
	if entry.LoggerName != "" {
		record.AddAttrs(slog.String("logger", entry.LoggerName))
	}
	record.AddAttrs(attrs(fields)...)
	if entry.Stack != "" {
		record.AddAttrs(slog.String("stacktrace", entry.Stack))
	}
	return c.handler.Handle(context.Background(), record)
}

// Sync implements zapcore.Core. A slog.Handler keeps nothing back.
func (c slogCore) Sync() error { return nil }

// attrs converts fields. Those after a namespace become its group.
func attrs(fields []zapcore.Field) []slog.Attr {
	var all []slog.Attr
	for i, f := range fields {
		if f.Type == zapcore.NamespaceType {
			return append(all, slog.Attr{Key: f.Key, Value: slog.GroupValue(attrs(fields[i+1:])...)})
		}
		into := zapcore.NewMapObjectEncoder()
		f.AddTo(into)
		all = append(all, attrsOf(into.Fields)...)
	}
	return all
}

// attrsOf converts what zap encoded, by key. Objects become groups.
func attrsOf(encoded map[string]any) []slog.Attr {
	var all []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(encoded)) {
		value := slog.AnyValue(encoded[key])
		if object, ok := encoded[key].(map[string]any); ok {
			value = slog.GroupValue(attrsOf(object)...)
		}
		all = append(all, slog.Attr{Key: key, Value: value})
	}
	return all
}
