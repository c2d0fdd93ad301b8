package cleanup_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// consumers has a Waiting function whose result a test sets.
type consumers struct {
	mu     sync.Mutex
	behind error
	asked  int
}

func (c *consumers) say(behind error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind = behind
}

func (c *consumers) waiting() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.behind
}

var behind = &cleanup.WaitingError{Channel: "c", Topic: "orders", Partition: 7, Err: errors.New("halted")}

// cleaner returns a Cleaner on the same tables as an inbox whose messages are due for cleanup.
func cleaner(
	t *testing.T, d *inboxtest.Database, n int, change func(cfg *cleanup.Config),
) (c *cleanup.Cleaner, clock *fxtest.Clock, stored func() int) {
	t.Helper()
	ib := old(t, d, nil, n)
	clock = fxtest.NewClock(inboxtest.Noon.Add(2 * time.Hour))
	opts := cleanup.DefaultOptions()
	opts.Retention = time.Hour
	cfg := cleanup.Config{Store: inboxtest.Store(t, d.DB), Options: opts, StatementTimeout: inboxtest.Patience,
		Clock: clock, Logger: zap.NewNop()}
	change(&cfg)
	c, err := cleanup.New(cfg)
	require.NoError(t, err)
	return c, clock, func() int { return inboxtest.CountMessages(t, ib) }
}

func TestManualCleanupDeletesNothingWhileConsumersLag(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		who := &consumers{behind: behind}
		c, _, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) { cfg.Waiting = who.waiting })
		deleted, err := c.Clean(context.Background())
		var waiting *cleanup.WaitingError
		require.ErrorAs(t, err, &waiting)
		require.Equal(t, behind, waiting)
		require.EqualError(t, err,
			`cleanup: waiting for channel "c": orders/7 has not passed the high watermark it had when it was assigned: halted`)
		require.Zero(t, deleted)
		require.Equal(t, 1, stored())
		require.Zero(t, c.Health(), "runs by hand say so by themselves")
		who.say(nil)
		deleted, err = c.Clean(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted.Messages)
	})
}

func TestRunWaitsForPartitionsAssignedMeanwhile(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		who := &consumers{}
		handedOver := make(chan struct{}, 10)
		c, _, stored := cleaner(t, d, 4, func(cfg *cleanup.Config) {
			cfg.Waiting, cfg.Options.CleanupBatchSize = who.waiting, 2
			cfg.Archive = func(context.Context, []cleanup.Archived) error {
				who.say(behind) // a rebalance
				handedOver <- struct{}{}
				return nil
			}
		})
		ended := make(chan error, 1)
		go func() {
			_, err := c.Clean(context.Background())
			ended <- err
		}()
		for left := 4; left > 0; left -= 2 {
			inboxtest.Receive(t, handedOver, "a hand-over")
			before := asked(who)
			inboxtest.Eventually(t, func() bool { return asked(who) > before+1 }, "it asked again")
			require.Equal(t, left, stored(), "nothing is deleted meanwhile")
			who.say(nil)
		}
		require.NoError(t, inboxtest.Receive(t, ended, "the end of the run"))
		require.Zero(t, stored())
	})
}

func asked(c *consumers) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func TestHealthDegradesAfterSixIntervalsHeldAndEachChangeIsLoggedOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.DebugLevel)
		who := &consumers{behind: behind}
		c, clock, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Waiting, cfg.Options.CleanupInterval, cfg.Logger = who.waiting, 20*time.Millisecond, zap.New(core)
		})
		said := func(part string) int { return logs.FilterMessageSnippet(part).Len() }
		runs := func(n int) {
			before := asked(who)
			inboxtest.Eventually(t, func() bool { return asked(who) >= before+n }, "it ran")
		}
		c.Start()
		t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
		inboxtest.Eventually(t, func() bool { return c.Health().Held != nil }, "it is held")
		runs(5)
		h := c.Health()
		require.Equal(t, clock.Now(), h.HeldSince)
		require.ErrorIs(t, h.Held, behind)
		require.False(t, h.Overdue)
		clock.Advance(6*20*time.Millisecond - time.Microsecond)
		require.False(t, c.Health().Overdue)
		clock.Advance(time.Microsecond)
		require.True(t, c.Health().Overdue)
		runs(5)
		require.Equal(t, []int{1, 1, 0}, []int{said("cleanup waits"), said("six intervals"), said("no longer waits")})
		require.Equal(t, 1, stored())
		who.say(nil)
		inboxtest.Eventually(t, func() bool {
			return stored() == 0 && c.Health() == cleanup.Health{}
		}, "it cleaned and is healthy")
		runs(3)
		require.Equal(t, []int{1, 1, 1}, []int{said("cleanup waits"), said("six intervals"), said("no longer waits")})
	})
}

func TestHealthReportsWhyTheLastRunFailed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		boom := errors.New("boom")
		var mu sync.Mutex
		failing := true
		c, _, _ := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval = 20 * time.Millisecond
			cfg.Archive = func(context.Context, []cleanup.Archived) error {
				mu.Lock()
				defer mu.Unlock()
				if failing {
					return boom
				}
				return nil
			}
		})
		c.Start()
		t.Cleanup(func() { require.NoError(t, c.Stop(context.Background())) })
		inboxtest.Eventually(t, func() bool { return errors.Is(c.Health().Err, boom) }, "health tells")
		mu.Lock()
		failing = false
		mu.Unlock()
		inboxtest.Eventually(t, func() bool { return c.Health().Err == nil }, "health tells no more")
	})
}

// Otherwise two runs would clean at once, and a program that closes the database after Stop would
// close it during a run.
func TestEveryStopAndStartWaitsForTheCurrentRun(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		entered, release := make(chan struct{}, 100), make(chan struct{})
		c, _, _ := cleaner(t, d, 0, func(cfg *cleanup.Config) {
			cfg.Options.CleanupInterval = time.Millisecond
			cfg.Waiting = func() error { // ignores its context
				entered <- struct{}{}
				<-release
				return behind
			}
		})
		c.Start()
		inboxtest.Receive(t, entered, "the first run")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			require.ErrorIs(t, c.Stop(ended), context.Canceled, "the run is still under way")
		}
		c.Start()
		require.Never(t, func() bool {
			return len(entered) > 0
		}, 50*time.Millisecond, time.Millisecond, "a second run beside the first")
		close(release)
		inboxtest.Receive(t, entered, "the second run")
		require.NoError(t, c.Stop(t.Context()))
		require.Zero(t, c.Health(), "it starts again")
	})
}
