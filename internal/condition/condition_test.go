package condition_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/condition"
)

// Contract 7.8.
func TestConditionLogsItsBeginRemindersAndEnd(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	clock := fxtest.NewClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	c := condition.New(zap.New(core), clock, zap.WarnLevel, "fetch", "nothing comes")
	said := func() []string {
		var lines []string
		for _, entry := range logs.TakeAll() {
			lines = append(lines, entry.Level.String()+" "+entry.Message)
		}
		return lines
	}
	c.End("a")
	c.Clear()
	require.Empty(t, said(), "nothing was wrong")
	require.Zero(t, c.Until())

	begun := clock.Now()
	boom, other := errors.New("boom"), errors.New("other")
	for range 299 { // every second
		c.Begin("a", boom)
		c.Begin("b", boom)
		clock.Advance(time.Second)
	}
	require.Equal(t, []string{"warn inbox: fetch failing: nothing comes"}, said(), "however often it is met")
	clock.Set(begun.Add(condition.Reminder))
	c.Begin("a", other, zap.Int("partition", 3))
	last := logs.All()[0]
	require.Equal(t, map[string]any{"condition": "fetch", "partition": int64(3), "after": condition.Reminder,
		"times": int64(599), "error": "other"}, last.ContextMap())
	c.Begin("b", other)
	require.Equal(t, []string{"warn inbox: fetch still failing: nothing comes"}, said(), "a reminder")
	clock.Set(begun.Add(2*condition.Reminder - time.Nanosecond))
	c.Begin("a", other)
	require.Empty(t, said())
	clock.Set(begun.Add(2 * condition.Reminder))
	c.Begin("a", other)
	require.Equal(t, []string{"warn inbox: fetch still failing: nothing comes"}, said(), "and another")

	since, err := c.Current()
	require.Equal(t, begun, since)
	require.Equal(t, other, err)
	require.Equal(t, clock.Now(), c.Until())
	c.End("a")
	require.Empty(t, said(), "one source is left")
	c.Clear()
	require.Empty(t, said(), "it is still there")
	_, err = c.Current()
	require.Error(t, err)
	c.End("b")
	require.Equal(t, []string{"info inbox: fetch recovered"}, said())
	_, err = c.Current()
	require.NoError(t, err)
	over := clock.Now()
	clock.Advance(time.Hour)
	require.Equal(t, over, c.Until())

	c.Begin("a", boom)
	require.Equal(t, []string{"warn inbox: fetch failing: nothing comes"}, said(), "a new one")
	c.Forget("a")
	_, err = c.Current()
	require.Error(t, err, "a source that went does not mean that all is well")
	c.Clear()
	require.Equal(t, []string{"info inbox: fetch no longer watched by this process"}, said())
	_, err = c.Current()
	require.NoError(t, err)
}

// Contract 7.8.
func TestConditionThatComesAndGoesIsLoggedSparsely(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	clock := fxtest.NewClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	c := condition.New(zap.New(core), clock, zap.WarnLevel, "fetch", "nothing comes")
	boom := errors.New("boom")
	for range 60 { // for 30 seconds
		c.Begin(nil, boom)
		_, err := c.Current()
		require.ErrorIs(t, err, boom, "health shows each of them")
		clock.Advance(250 * time.Millisecond)
		c.End(nil)
		_, err = c.Current()
		require.NoError(t, err)
		clock.Advance(250 * time.Millisecond)
	}
	require.Len(t, logs.FilterMessage("inbox: fetch failing: nothing comes").All(), 3)
	require.Len(t, logs.FilterMessage("inbox: fetch recovered").All(), 3)
	logs.TakeAll()

	c.Begin(nil, boom)
	c.End(nil)
	c.Begin(nil, boom)
	require.Empty(t, logs.All(), "it was just logged")
	clock.Advance(condition.Debounce)
	c.Begin(nil, boom)
	require.Len(t, logs.FilterMessage("inbox: fetch failing: nothing comes").All(), 1, "it lasts")
	c.End(nil)
	require.Len(t, logs.FilterMessage("inbox: fetch recovered").All(), 1)
	logs.TakeAll()

	clock.Advance(-time.Hour)
	c.Begin(nil, boom)
	require.Len(t, logs.All(), 1, "a clock that is set back hides nothing")
}
