package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/clock"
)

// settable is a machine's clock that the test sets.
type settable struct{ now time.Time }

func (c *settable) Now() time.Time { return c.now }

// Contract 3.5. A machine's clock leaps an hour ahead and back: the processor's time goes on.
func TestDatabaseClockIgnoresJumpsOfTheMachinesClock(t *testing.T) {
	machine := &settable{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	c := &clock.Database{Injected: machine, Follows: true}
	require.Equal(t, machine.now, c.Now(), "before the first reading")
	database := machine.now.Add(-time.Minute)
	c.Follow(database, time.Now())
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		machine.now = machine.now.Add(jump)
		require.WithinRange(t, c.Now(), database, database.Add(30*time.Second))
	}
	within := func(want time.Time) { t.Helper(); require.WithinRange(t, c.Now(), want, want.Add(30*time.Second)) }
	c.Follow(database.Add(-5*time.Minute), time.Now().Add(-10*time.Minute))
	within(database) // a slow response may be as old as it says
	c.Follow(database.Add(-time.Hour), time.Now())
	within(database.Add(-time.Hour)) // as after a failover
	c.Follow(database.Add(time.Hour), time.Now())
	within(database.Add(time.Hour))
	c.Follow(time.Time{}, time.Now())
	within(database.Add(time.Hour)) // SQLite reports no time
}

func TestJumpingClockShowsWhatItWasSetTo(t *testing.T) {
	var c clock.Jumping
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		c.Set(ahead)
		require.WithinDuration(t, time.Now().Add(ahead), c.Now(), 30*time.Second)
	}
	require.False(t, clock.IsTest(&c), "it is a machine's clock")
}
