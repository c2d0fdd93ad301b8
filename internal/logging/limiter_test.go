package logging_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/redact"
)

// clock is a zapcore.Clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time                         { return c.now }
func (c *clock) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }

func limited(options ...zap.Option) (*zap.Logger, *logging.Limiter, *observer.ObservedLogs, *clock) {
	core, logs := observer.New(zap.DebugLevel)
	c := &clock{time.Now()}
	log, limiter := logging.Limit(zap.New(core, append(options, zap.WithClock(c), zap.AddStacktrace(zap.WarnLevel))...),
		redaction.Redactor{})
	return log, limiter, logs, c
}

func TestRepeatedLinesAreSummedUpByHandlerAndChannel(t *testing.T) {
	log, limiter, logs, clock := limited()
	log = log.With(zap.String(telemetry.FieldInbox, "shop"))
	for range 1000 {
		log.Error("poisoned", zap.String(telemetry.FieldHandlerKey, "mail"), zap.Error(errors.New("boom")))
		log.With(zap.String(telemetry.FieldChannel, "orders")).Warn("bad record")
		log.Info("quiet")
	}
	log.Error("poisoned", zap.String(telemetry.FieldHandlerKey, "bill"))
	require.Equal(t, 10, logs.FilterMessage("poisoned").FilterField(zap.String(telemetry.FieldHandlerKey, "mail")).Len())
	require.Equal(t, 1, logs.FilterMessage("poisoned").FilterField(zap.String(telemetry.FieldHandlerKey, "bill")).Len())
	require.Equal(t, 10, logs.FilterMessage("bad record").Len())
	require.Equal(t, 1000, logs.FilterMessage("quiet").Len())
	for _, e := range logs.All() {
		require.Empty(t, e.Stack, "the module's own frames")
	}

	clock.now = clock.now.Add(10 * time.Second)
	log.Error("poisoned", zap.String(telemetry.FieldHandlerKey, "mail"))
	sums := logs.FilterMessage("poisoned: further lines were left out").All()
	require.Len(t, sums, 1, "the next line ends the window")
	require.Equal(t, map[string]any{telemetry.FieldInbox: "shop", telemetry.FieldHandlerKey: "mail",
		telemetry.FieldTimes: int64(990), telemetry.FieldAfter: 10 * time.Second}, sums[0].ContextMap())
	require.Equal(t, zapcore.ErrorLevel, sums[0].Level)
	require.Equal(t, 11, logs.FilterMessage("poisoned").FilterField(zap.String(telemetry.FieldHandlerKey, "mail")).Len())

	limiter.Flush()
	limiter.Flush()
	sums = logs.FilterMessage("bad record: further lines were left out").All()
	require.Len(t, sums, 1)
	require.Equal(t, "orders", sums[0].ContextMap()[telemetry.FieldChannel])
	require.Equal(t, int64(990), sums[0].ContextMap()[telemetry.FieldTimes])
	require.Equal(t, 2, logs.FilterMessageSnippet("left out").Len(), "nothing is said of windows without such lines")
}

func TestLimiterRespectsTheApplicationsLevelAndSampler(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	log, _ := logging.Limit(zap.New(zapcore.NewSamplerWithOptions(core, time.Hour, 2, 0)), redaction.Redactor{})
	for range 5 {
		log.Warn("warned")
		log.Error("failed")
	}
	require.Zero(t, logs.FilterMessage("warned").Len())
	require.Equal(t, 2, logs.FilterMessage("failed").Len())
}

func TestNoLoggerWritesNothing(t *testing.T) {
	log, limiter := logging.Limit(nil, redaction.Redactor{})
	log.Error("nowhere")
	limiter.Flush()
}

// Contract 12. What a message brought with it may have any size and any characters.
func TestFieldsAreBoundedAndSafeForATerminal(t *testing.T) {
	log, _, logs, _ := limited()
	huge, hostile := strings.Repeat("x", 16<<20), "a\u009b31m\u0085b\u2028c\u202ed"
	for _, level := range []zapcore.Level{zap.InfoLevel, zap.ErrorLevel} {
		log.Log(level, "line", zap.String(telemetry.FieldMessageType, huge), zap.Strings(telemetry.FieldMessageIDs,
			[]string{"1", huge, hostile}), zap.Error(errors.New(huge)), zap.NamedError("detailed", detailed{huge}))
		log.With(zap.String(telemetry.FieldMessageID, hostile)).Log(level, "hostile", zap.Error(errors.New(hostile)))
	}
	require.Equal(t, 4, logs.Len())
	for _, entry := range logs.All() {
		encoded, err := zapcore.NewJSONEncoder(zapcore.EncoderConfig{}).EncodeEntry(entry.Entry, entry.Context)
		require.NoError(t, err)
		require.Less(t, encoded.Len(), 10_000)
		require.NotRegexp(t, "[\u0080-\u009f\u2028\u2029\u202a-\u202e]", encoded.String())
	}
	require.Equal(t, `a\u009b31m\u0085b\u2028c\u202ed`, logs.FilterMessage("hostile").All()[0].ContextMap()["error"])
	require.Equal(t, strings.Repeat("x", 500)+"…",
		logs.FilterMessage("line").All()[0].ContextMap()[telemetry.FieldMessageType])
}

// detailed is an error with details beyond its text, like errors that have a stack.
type detailed struct{ text string }

func (d detailed) Error() string                 { return d.text }
func (d detailed) Format(f fmt.State, verb rune) { fmt.Fprintf(f, "%s at %s", d.text, d.text) }

// pointed is an error whose Error panics if it is a nil pointer.
type pointed struct{ text string }

func (p *pointed) Error() string { return p.text }

// Contract 11.6.
func TestErrorsAreRedactedInEveryLine(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	var seen []redact.Value
	log, _ := logging.Limit(zap.New(core), redaction.New(func(v redact.Value) []byte {
		seen = append(seen, v)
		return bytes.ReplaceAll(v.Bytes, []byte("secret"), []byte("***"))
	}))
	plain := errors.New("boom")
	log = log.With(zap.String(telemetry.FieldChannel, "c"), zap.NamedError("bound", errors.New("secret")))
	for _, level := range []zapcore.Level{zap.DebugLevel, zap.InfoLevel, zap.WarnLevel, zap.ErrorLevel} {
		log.Log(level, "line", zap.String(telemetry.FieldHandlerKey, "h"), zap.String(telemetry.FieldMessageID, "m"),
			zap.Error(fmt.Errorf("a secret: %w", plain)))
		log.Log(level, "detailed", zap.Error(detailed{"secret"}))
	}
	log.Error("plain", zap.Error(plain), zap.NamedError("none", nil))
	log.Error("broken", zap.Error((*pointed)(nil)))
	for _, entry := range logs.All() {
		encoded, err := zapcore.NewJSONEncoder(zapcore.EncoderConfig{}).EncodeEntry(entry.Entry, entry.Context)
		require.NoError(t, err)
		require.NotContains(t, encoded.String(), "secret")
	}
	require.Equal(t, "a ***: boom", logs.FilterMessage("line").All()[0].ContextMap()["error"])
	require.Equal(t, "*** at ***", logs.FilterMessage("detailed").All()[0].ContextMap()["errorVerbose"])
	kept := logs.FilterMessage("plain").All()[0].Context[2].Interface
	require.Same(t, plain, kept, "what hides nothing stays the application's own")
	require.Equal(t, "<nil>", logs.FilterMessage("broken").All()[0].ContextMap()["error"])
	require.Contains(t, seen, redact.Value{Part: redact.PartError, HandlerKey: "h", Channel: "c", MessageID: "m",
		Bytes: []byte("a secret: boom")})
}
