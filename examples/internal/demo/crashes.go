package demo

import (
	"context"
	"sync/atomic"
	"time"
)

// MaxKills is the most kills of a run. Workers that are killed on purpose need a MaxAbandoned above it.
const MaxKills = 50

// Crashes kills workers at random moments while they process what is sent to them, and starts them again.
type Crashes struct {
	Env     *Environment
	Workers Workers
	Kills   int
	// Read counts what the workers have done.
	Read func(ctx context.Context) (Tally, error)
	// Window is the longest time to a kill whose moment is chosen by the clock.
	Window time.Duration
	// Busy names the worker that did something last. It is killed three times in four; otherwise, and
	// if Busy is nil, the victim is random.
	Busy func(ctx context.Context) (name string, err error)
	// Done reports whether nothing is left to do. It is asked when everything has been sent.
	Done func(ctx context.Context, t Tally) (bool, error)

	// Killed counts the kills that have happened.
	Killed int

	last Tally // at the last kill
}

// RunCrashes sends the items and kills workers meanwhile. It returns when nothing is left to do. A part of the
// items is sent for each kill, so that no kill comes when the work is done already, and one after the last.
func RunCrashes[T any](
	ctx context.Context, c *Crashes, items []T, send func(ctx context.Context, items []T) error,
) error {
	for i := range c.Kills + 1 {
		part := items[len(items)*i/(c.Kills+1) : len(items)*(i+1)/(c.Kills+1)]
		var sent atomic.Bool
		err := Concurrently(ctx, func(ctx context.Context) error {
			err := send(ctx, part)
			sent.Store(true)
			return err
		}, func(ctx context.Context) error {
			if i < c.Kills {
				return c.kill(ctx, len(part))
			}
			return c.until(ctx, func(t Tally) (bool, error) {
				if !sent.Load() {
					return false, nil
				}
				return c.Done(ctx, t)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// until shows the progress until enough reports true. It fails if a worker exits by itself.
func (c *Crashes) until(ctx context.Context, enough func(Tally) (bool, error)) error {
	return Watch(ctx, c.Read, func(t Tally) (bool, error) {
		c.Env.Show("%s", t)
		if done, err := enough(t); done || err != nil {
			return done, err
		}
		return false, c.Workers.Unexpected()
	})
}

// kill kills a worker while a part of the items is processed, and starts it again.
func (c *Crashes) kill(ctx context.Context, items int) error {
	if err := c.until(ctx, c.moment(items)); err != nil {
		return err
	}
	victim, err := c.victim(ctx)
	if err != nil {
		return err
	}
	if err := victim.Kill(); err != nil {
		return err
	}
	c.Killed++
	if c.last, err = c.Read(ctx); err != nil {
		return err
	}
	c.Env.Say("killed %s (%d of %d): %s", victim.Name, c.Killed, c.Kills, c.last)
	return victim.Start()
}

// moment chooses when to kill: when some of the items are settled since the last kill or, half of the time
// if that comes first, after a random time. The latter may be while a worker starts, joins its group,
// accepts or takes over from another.
func (c *Crashes) moment(items int) func(Tally) (bool, error) {
	random := c.Env.Random
	settled := c.last.Settled() + random.Int64N(int64(items)*8/10+1)
	at := time.Now().Add(patience / 3) // a part may hold only duplicates and bad records, which settle nothing
	if random.IntN(2) == 0 {
		at = time.Now().Add(time.Duration(random.Int64N(int64(c.Window))))
	}
	return func(t Tally) (bool, error) { return t.Settled() >= settled || time.Now().After(at), nil }
}

func (c *Crashes) victim(ctx context.Context) (*Process, error) {
	victim := c.Workers[c.Env.Random.IntN(len(c.Workers))]
	if c.Busy == nil || c.Env.Random.IntN(4) == 0 {
		return victim, nil
	}
	name, err := c.Busy(ctx)
	for _, p := range c.Workers {
		if p.Name == name {
			victim = p
		}
	}
	return victim, err
}
