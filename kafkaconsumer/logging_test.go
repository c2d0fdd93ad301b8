package kafkaconsumer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Contract 7.8.
func TestTroubleIsSaidWhenItBeginsNowAndThenAndWhenItIsOver(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	clock := &set{time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	trouble := &trouble{log: zap.New(core), clock: clock, what: "it fails"}
	said := func() []string {
		var lines []string
		for _, entry := range logs.TakeAll() {
			lines = append(lines, entry.Level.String()+" "+entry.Message)
		}
		return lines
	}
	trouble.end("a")
	trouble.clear()
	require.Empty(t, said(), "nothing was wrong")
	require.Zero(t, trouble.troubledUntil())

	begun := clock.now
	boom, other := errors.New("boom"), errors.New("other")
	for range 299 { // every second
		trouble.begin("a", boom)
		trouble.begin("b", boom)
		clock.now = clock.now.Add(time.Second)
	}
	require.Equal(t, []string{"warn inbox: it fails"}, said(), "however often it is met")
	clock.now = begun.Add(reminder)
	trouble.begin("a", other, zap.Int("partition", 3))
	last := logs.All()[0]
	require.Equal(t, map[string]any{"partition": int64(3), "after": reminder, "times": int64(599), "error": "other"}, last.ContextMap())
	trouble.begin("b", other)
	require.Equal(t, []string{"warn inbox: still: it fails"}, said(), "a reminder")
	clock.now = begun.Add(2*reminder - time.Nanosecond)
	trouble.begin("a", other)
	require.Empty(t, said())
	clock.now = begun.Add(2 * reminder)
	trouble.begin("a", other)
	require.Equal(t, []string{"warn inbox: still: it fails"}, said(), "and another")

	since, err := trouble.current()
	require.Equal(t, begun, since)
	require.Equal(t, other, err)
	require.Equal(t, clock.now, trouble.troubledUntil())
	trouble.end("a")
	require.Empty(t, said(), "one source is left")
	trouble.clear()
	require.Empty(t, said(), "it is still there")
	_, err = trouble.current()
	require.Error(t, err)
	trouble.end("b")
	require.Equal(t, []string{"info inbox: over: it fails"}, said())
	_, err = trouble.current()
	require.NoError(t, err)
	over := clock.now
	clock.now = clock.now.Add(time.Hour)
	require.Equal(t, over, trouble.troubledUntil())

	trouble.begin("a", boom)
	require.Equal(t, []string{"warn inbox: it fails"}, said(), "a new one")
	trouble.forget("a")
	_, err = trouble.current()
	require.Error(t, err, "a source that went does not mean that all is well")
	trouble.clear()
	require.Equal(t, []string{"info inbox: no longer with this member: it fails"}, said())
	_, err = trouble.current()
	require.NoError(t, err)
}
