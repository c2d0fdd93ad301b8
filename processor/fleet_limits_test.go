package processor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// tally counts the calls that run at once, and when each began.
type tally struct {
	mu            sync.Mutex
	running, most int
	began         []time.Time
	last          chan struct{} // open while calls must not return; nil if they return at once
}

func (c *tally) run(ctx context.Context, _ inboxtest.Bytes) error {
	c.mu.Lock()
	c.running++
	c.most = max(c.most, c.running)
	c.began = append(c.began, time.Now())
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}()
	wait := time.NewTimer(3 * time.Millisecond) // so that calls overlap
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.last != nil {
		select {
		case <-c.last:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *tally) count() (running, most, began int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running, c.most, len(c.began)
}

// starts returns when the calls began, the earliest first.
func (c *tally) starts() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(slices.Values(c.began), time.Time.Compare)
}

// competing makes an inbox of a fleet whose handler "limited" runs under c.
func competing(t *testing.T, db *gorm.DB, c *tally, opts ...handler.Option) *inbox.Inbox {
	return inboxtest.New(t, db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Mode = processor.ModeCompeting
		o.Processor.Concurrency = 4
		o.Processor.PollingInterval = 100 * time.Millisecond
	}), inboxtest.Handlers(inboxtest.Do("limited", c.run, opts...)))
}

// TestWorkersTogetherKeepTheFleetsConcurrency proves contract 5.18 while workers start and stop.
func TestWorkersTogetherKeepTheFleetsConcurrency(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const limit = 3
		var c tally
		var inboxes []*inbox.Inbox
		for _, db := range []*gorm.DB{d.DB, d.Another(t), d.Another(t)} {
			inboxes = append(inboxes, competing(t, db, &c, handler.FleetConcurrency(limit)))
		}
		accepted := 0
		accept := func() {
			inboxtest.Accept(t, inboxes[0], many(accepted + 50)[accepted:]...)
			accepted += 50
		}
		accept()
		end := inboxtest.Start(t, inboxes[0])
		inboxtest.Eventually(t, func() bool { _, most, _ := c.count(); return most == limit }, "one worker uses all")
		inboxtest.Start(t, inboxes[1])
		inboxtest.Start(t, inboxes[2])
		inboxtest.Eventually(t, func() bool {
			if inboxtest.AllCompleted(t, inboxes[0]) {
				accept()
			}
			return inboxes[1].Counters().Processed > 0 && inboxes[2].Counters().Processed > 0
		}, "the others have their part")
		accept()
		end()
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "all were completed")
		_, most, began := c.count()
		require.Equal(t, limit, most)
		require.Equal(t, accepted, began)
	})
}

func TestFewerCallsThanWorkersStarveNone(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		c := tally{last: make(chan struct{})}
		var ends []func()
		var inboxes []*inbox.Inbox
		for range 3 {
			ib := competing(t, d.Another(t), &c, handler.FleetConcurrency(1))
			inboxes, ends = append(inboxes, ib), append(ends, inboxtest.Start(t, ib))
		}
		inboxtest.Accept(t, inboxes[2], many(20)...)
		inboxtest.Eventually(t, func() bool { running, _, _ := c.count(); return running == 1 }, "one runs")
		close(c.last)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "it runs all")
		for i, ib := range inboxes[1:] {
			ends[i]() // the one that may call
			inboxtest.Accept(t, ib, many(40 + 20*i)[20+20*i:]...)
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "another takes its place")
		}
		_, most, _ := c.count()
		require.Equal(t, 1, most)
	})
}

// TestPortionOfADeadWorkerReturns proves contract 5.18: the leases of a worker that has vanished run out.
func TestPortionOfADeadWorkerReturns(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var c tally
		ib := competing(t, d.DB, &c, handler.FleetConcurrency(1))
		dead := "01890000-0000-7000-8000-000000000000"
		held, err := inboxtest.Store(t, d.DB).AcquireLease(t.Context(), "limit:limited:0", dead, time.Second, system.Now())
		require.NoError(t, err)
		require.True(t, held)
		taken := time.Now()
		inboxtest.Accept(t, ib, "m")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "its lease has run out")
		require.GreaterOrEqual(t, c.starts()[0].Sub(taken), 900*time.Millisecond)
	})
}

// TestRateHoldsOverAllWorkers proves contract 5.18: in no period more calls start than the rate and the burst allow.
func TestRateHoldsOverAllWorkers(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const perSecond, burst = 40, 4
		var c tally
		one := competing(t, d.DB, &c, handler.Rate(perSecond, burst))
		two := competing(t, d.Another(t), &c, handler.Rate(perSecond, burst))
		accepted := 80
		inboxtest.Accept(t, one, many(accepted)...)
		inboxtest.Start(t, one)
		inboxtest.Start(t, two)
		inboxtest.Eventually(t, func() bool {
			done := inboxtest.AllCompleted(t, one)
			if done && two.Counters().Processed == 0 {
				inboxtest.Accept(t, one, many(accepted + 20)[accepted:]...)
				accepted += 20
				return false
			}
			return done
		}, "both have a part of the rate, and all were completed")
		began := c.starts()
		const late = 250 * time.Millisecond // between the slot and the call, on a busy machine
		for i := range began {
			for j := i; j < len(began); j++ {
				period := began[j].Sub(began[i]) + late
				require.LessOrEqual(t, float64(j-i+1), perSecond*period.Seconds()+burst)
			}
		}
	})
}

// TestRateHoldsWhenTheLockChangesHands proves contract 5.18 in Exclusive mode: who waits for the lock saves no burst.
func TestRateHoldsWhenTheLockChangesHands(t *testing.T) {
	for name, next := range map[string]func(t testing.TB, ib *inbox.Inbox) (ended func()){
		"to a worker": inboxtest.Start,
		"to ProcessPending": func(t testing.TB, ib *inbox.Inbox) func() {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				// The former holder may have put m2 off until its time comes, and then the first call finds nothing due.
				for completed := 0; completed == 0 && t.Context().Err() == nil; {
					drained, err := ib.ProcessPending(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					completed = drained.Completed
				}
			}()
			return func() { <-ended }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				const perSecond, burst = 0.5, 1
				var c tally
				limited := func() *inbox.Inbox {
					return exclusive(t, d, inbox.Configure(func(o *inbox.Options) {
						o.Processor.WorkerTimeout = 6 * time.Second // the lock is waited for for 12 s, which a busy machine needs
					}), inboxtest.Handlers(inboxtest.Do("limited", c.run, handler.Rate(perSecond, burst))))
				}
				one, two := limited(), limited()
				inboxtest.Accept(t, one, "m1")
				end := inboxtest.Start(t, one)
				inboxtest.Eventually(t, func() bool { return holdsLock(one) }, "it holds the lock")
				ended := next(t, two)
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, one) }, "the burst is used")
				inboxtest.Accept(t, one, "m2")
				end()
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, two) }, "the other has the lock")
				ended()
				began := c.starts()
				const late = 250 * time.Millisecond // between the slot and the call, on a busy machine
				require.GreaterOrEqual(t, began[1].Sub(began[0])+late, 2*time.Second)
			})
		})
	}
}

func TestRateOfOneHandlerHoldsUpNoOther(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var slow, quick tally
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
		}), inboxtest.Handlers(inboxtest.Do("slow", slow.run, handler.Rate(0.001, 5)), inboxtest.Do("quick", quick.run)))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, many(200)...)
		inboxtest.Eventually(t, func() bool { _, _, began := quick.count(); return began == 200 }, "the other runs all")
		_, _, began := slow.count()
		require.Zero(t, began)
		for _, s := range inboxtest.Statuses(t, ib) {
			if s.HandlerKey == "slow" {
				require.Zero(t, s.ErrorCount+s.AbandonedCount)
				require.Nil(t, s.ProcessingStartedAt, "it waits unclaimed")
			}
		}
	})
}

func TestProcessPendingKeepsLimits(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var c tally
		opts := []handler.Option{handler.FleetConcurrency(2), handler.Rate(200, 1)}
		one, two := competing(t, d.DB, &c, opts...), competing(t, d.Another(t), &c, opts...)
		inboxtest.Accept(t, one, many(30)...)
		began := time.Now()
		ended := make(chan processor.Drained)
		go func() {
			drained, err := two.ProcessPending(t.Context())
			if err != nil {
				t.Error(err)
			}
			ended <- drained
		}()
		inboxtest.Process(t, one)
		<-ended
		require.True(t, inboxtest.AllCompleted(t, one), "who has the rate runs all that is due")
		require.GreaterOrEqual(t, time.Since(began), 28*time.Second/200)
		_, most, ran := c.count()
		require.LessOrEqual(t, most, 2)
		require.Equal(t, 30, ran)
		require.Zero(t, inboxtest.Process(t, one).Picked)
	})
}

// TestProcessPendingTakesNoPortionOfALivingWorker proves contract 5.18 after a jump of the database's clock.
func TestProcessPendingTakesNoPortionOfALivingWorker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		c := tally{last: make(chan struct{})}
		limited := func(db *gorm.DB) *inbox.Inbox {
			return inboxtest.New(t, db, inbox.Configure(func(o *inbox.Options) {
				p := &o.Processor
				p.Mode, p.PollingInterval = processor.ModeCompeting, 100*time.Millisecond
				p.HeartbeatInterval, p.SweepInterval = inboxtest.Patience/3, inboxtest.Patience/3 // no renewal in between
			}), inboxtest.Handlers(inboxtest.Do("limited", c.run, handler.FleetConcurrency(1))))
		}
		one, two := limited(d.DB), limited(d.Another(t))
		inboxtest.Start(t, one)
		inboxtest.Accept(t, one, "m0")
		inboxtest.Eventually(t, func() bool { running, _, _ := c.count(); return running == 1 }, "it runs one")
		inboxtest.Accept(t, two, many(20)...)
		expired := d.DB.Model(&models.Lock{}).Where("name = ?", "limit:limited:0").
			Update("expires_at", time.Now().UTC().Add(-48*time.Hour))
		require.NoError(t, expired.Error)
		require.EqualValues(t, 1, expired.RowsAffected)
		require.Zero(t, inboxtest.Process(t, two).Picked)
		close(c.last)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, one) }, "its worker runs the others")
		_, most, _ := c.count()
		require.Equal(t, 1, most)
	})
}

// TestProcessPendingLeavesLimitedHandlersToItsWorker proves contract 5.14 and 5.18: together they keep the limit.
func TestProcessPendingLeavesLimitedHandlersToItsWorker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		c := tally{last: make(chan struct{})}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Do("limited", c.run, handler.FleetConcurrency(2))))
		inboxtest.Accept(t, ib, many(10)...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { running, _, _ := c.count(); return running == 2 }, "the limit is reached")
		require.Zero(t, inboxtest.Process(t, ib).Picked)
		close(c.last)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		_, most, _ := c.count()
		require.Equal(t, 2, most)
	})
}
