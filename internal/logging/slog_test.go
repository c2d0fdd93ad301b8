package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/internal/logging"
)

// slogged returns the lines that write logs through a JSON handler of the level, without their times.
func slogged(t *testing.T, level slog.Level, write func(*zap.Logger)) []map[string]any {
	t.Helper()
	var out bytes.Buffer
	write(logging.Slog(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level})))
	var lines []map[string]any
	for d := json.NewDecoder(&out); d.More(); {
		line := map[string]any{}
		require.NoError(t, d.Decode(&line))
		require.NotEmpty(t, line["time"])
		delete(line, "time")
		lines = append(lines, line)
	}
	return lines
}

type point struct{ x, y int }

func (p point) MarshalLogObject(e zapcore.ObjectEncoder) error {
	e.AddInt("x", p.x)
	e.AddInt("y", p.y)
	return nil
}

func TestSlogHandlerGetsEveryKindOfField(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.Equal(t, []map[string]any{{"level": "WARN", "msg": "m", "s": "text", "n": 7.0, "ok": true,
		"error": "boom", "took": float64(time.Second), "at": "2026-01-02T03:04:05Z", "keys": []any{"a", "b"},
		"p": map[string]any{"x": 1.0, "y": 2.0}}},
		slogged(t, slog.LevelInfo, func(log *zap.Logger) {
			log.Warn("m", zap.String("s", "text"), zap.Int("n", 7), zap.Bool("ok", true), zap.Error(errors.New("boom")),
				zap.Duration("took", time.Second), zap.Time("at", at), zap.Strings("keys", []string{"a", "b"}),
				zap.Object("p", point{1, 2}), zap.Skip())
		}))
}

func TestSlogHandlerDecidesWhichLevelsAreWritten(t *testing.T) {
	all := func(log *zap.Logger) {
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e")
	}
	require.Equal(t, []map[string]any{{"level": "WARN", "msg": "w"}, {"level": "ERROR", "msg": "e"}},
		slogged(t, slog.LevelWarn, all))
	require.Equal(t, []map[string]any{{"level": "DEBUG", "msg": "d"}, {"level": "INFO", "msg": "i"},
		{"level": "WARN", "msg": "w"}, {"level": "ERROR", "msg": "e"}}, slogged(t, slog.LevelDebug, all))
}

func TestNamespacesAreSlogGroups(t *testing.T) {
	require.Equal(t, []map[string]any{
		{"level": "INFO", "msg": "m", "inbox": "orders", "kafka": map[string]any{"topic": "t",
			"at": map[string]any{"offset": 3.0}}},
		{"level": "INFO", "msg": "other", "inbox": "orders", "logger": "name"},
	}, slogged(t, slog.LevelInfo, func(log *zap.Logger) {
		log = log.With(zap.String("inbox", "orders"))
		log.With(zap.Namespace("kafka"), zap.String("topic", "t")).Info("m", zap.Namespace("at"), zap.Int("offset", 3))
		log.Named("name").Info("other")
	}))
}

// The caller of zap is the line's source, not this adapter.
func TestSlogLinesNameZapsCaller(t *testing.T) {
	var out bytes.Buffer
	logging.Slog(slog.NewJSONHandler(&out, &slog.HandlerOptions{AddSource: true})).
		WithOptions(zap.AddCaller(), zap.AddStacktrace(zap.ErrorLevel)).Error("m")
	var line struct {
		Source     struct{ File string }
		Stacktrace string
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Contains(t, line.Source.File, "slog_test.go")
	require.Contains(t, line.Stacktrace, "TestSlogLinesNameZapsCaller")
}
