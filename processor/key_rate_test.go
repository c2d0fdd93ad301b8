package processor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// tenant returns the key of a test's message: what comes before the hyphen of its ID.
func tenant(id string) string {
	key, _, _ := strings.Cut(id, "-")
	return key
}

func byTenant(m handler.RawMessage) string { return tenant(m.ID) }

// ofTenant returns the IDs of a tenant's messages.
func ofTenant(key string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%06d", key, i)
	}
	return ids
}

// tenantCalls records the calls of each tenant, in their order.
type tenantCalls struct {
	mu sync.Mutex
	of map[string][]tenantCall
}

type tenantCall struct {
	id string
	at time.Time
}

func (c *tenantCalls) note(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string][]tenantCall{}
	}
	c.of[tenant(id)] = append(c.of[tenant(id)], tenantCall{id, time.Now()})
}

func (c *tenantCalls) run(_ context.Context, m inboxtest.Bytes) error {
	c.note(m.ID)
	return nil
}

func (c *tenantCalls) count(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.of[key])
}

// requireRate requires that in no period more of a tenant's calls began than the rate and the burst allow.
func (c *tenantCalls) requireRate(t *testing.T, perSecond float64, burst int) {
	t.Helper()
	const late = 250 * time.Millisecond // between the slot and the call, on a busy machine
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, began := range c.of {
		for i := range began {
			for j := i; j < len(began); j++ {
				period := began[j].at.Sub(began[i].at) + late
				require.LessOrEqual(t, float64(j-i+1), perSecond*period.Seconds()+float64(burst))
			}
		}
	}
}

// TestRateByKeyHoldsOverAllWorkers proves contract 5.18: each key has the rate, and what exceeds it is not charged.
func TestRateByKeyHoldsOverAllWorkers(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const perSecond, burst = 20, 4
		var c tenantCalls
		var inboxes []*inbox.Inbox
		for range 2 {
			inboxes = append(inboxes, inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(
				inboxtest.Do("limited", c.run, handler.RateBy(perSecond, burst, byTenant)))))
		}
		inboxtest.Accept(t, inboxes[0], slices.Concat(ofTenant("a", 40), ofTenant("b", 40), ofTenant("c", 2))...)
		inboxtest.Start(t, inboxes[0])
		inboxtest.Start(t, inboxes[1])
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "all were completed")
		require.Equal(t, []int{40, 40, 2}, []int{c.count("a"), c.count("b"), c.count("c")})
		c.requireRate(t, perSecond, burst)
		for _, s := range inboxtest.Statuses(t, inboxes[0]) {
			require.Zero(t, s.ErrorCount+s.AbandonedCount+s.InterruptedCount)
		}
	})
}

// TestOneTenantsBacklogHoldsUpNoOther proves contract 5.18 with 99 % of 100,000 messages of one tenant, which came
// first: the others are done soon, and each of the first is claimed about once, and then waits for its time. On SQLite
// there are fewer.
func TestOneTenantsBacklogHoldsUpNoOther(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const perSecond, others = 50, 100
		greedy := 99_000
		if d.Dialect == "sqlite" { // which is slow, and has one worker
			greedy /= 10
		}
		var c tenantCalls
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("limited",
			func(ctx context.Context, m inboxtest.Bytes) error {
				c.note(m.ID)
				return linger(ctx, 2*time.Millisecond)
			}, handler.RateBy(perSecond, 10, byTenant))))
		for ids := range slices.Chunk(ofTenant("greedy", greedy), 5_000) {
			inboxtest.Accept(t, ib, ids...)
		}
		for i := range others {
			inboxtest.Accept(t, ib, ofTenant(fmt.Sprint("t", i), 10)...)
		}
		inboxtest.Start(t, ib)
		began := time.Now()
		inboxtest.Eventually(t, func() bool {
			for i := range others {
				if c.count(fmt.Sprint("t", i)) < 10 {
					return false
				}
			}
			return true
		}, "the others are done")
		took := time.Since(began)
		c.requireRate(t, perSecond, 10)
		claims := 0 // each with its end raises the version by two; on MySQL 3 / 2 is 1.5
		require.NoError(t, d.DB.Model(&models.HandlerStatus{}).Select("sum(version - version % 2)").
			Where("message_id LIKE ?", "greedy-%").Scan(&claims).Error)
		claims /= 2
		t.Logf("the others took %s; the first tenant ran %d and had %d claims", took, c.count("greedy"), claims)
		require.Less(t, c.count("greedy"), greedy/10)
		require.Less(t, claims, greedy*5/4)
	})
}

// linger lasts for a while, unless ctx ends.
func linger(ctx context.Context, d time.Duration) error {
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestRateByKeyKeepsTheOrderOfLanes proves contract 5.18 and 5.12.
func TestRateByKeyKeepsTheOrderOfLanes(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var c tenantCalls
		var inboxes []*inbox.Inbox
		for range 2 {
			inboxes = append(inboxes, inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(
				inboxtest.Do("ordered", c.run, handler.RateBy(30, 2, byTenant),
					handler.OrderedBy(func(m handler.RawMessage) []byte { return []byte(tenant(m.ID)) })))))
		}
		inboxtest.Accept(t, inboxes[0], slices.Concat(ofTenant("a", 30), ofTenant("b", 30))...)
		inboxtest.Start(t, inboxes[0])
		inboxtest.Start(t, inboxes[1])
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, inboxes[0]) }, "all were completed")
		c.requireRate(t, 30, 2)
		for _, key := range []string{"a", "b"} {
			require.Len(t, c.of[key], 30)
			require.True(t, slices.IsSortedFunc(c.of[key], func(a, b tenantCall) int { return strings.Compare(a.id, b.id) }))
		}
	})
}

// TestEachMessageOfABatchCountsForItsKey proves contract 5.18 for calls with several messages.
func TestEachMessageOfABatchCountsForItsKey(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var c tenantCalls
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inbox.Batch("h", 10,
			func(_ context.Context, batch []inboxtest.Bytes) error {
				for _, m := range batch {
					c.note(m.ID)
				}
				return nil
			}, handler.RateBy(20, 3, byTenant))))
		inboxtest.Accept(t, ib, slices.Concat(ofTenant("a", 20), ofTenant("b", 20))...)
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		c.requireRate(t, 20, 3)
	})
}

// TestProcessPendingLeavesWhatExceedsTheRateOfItsKey proves contract 5.14 and 5.18.
func TestProcessPendingLeavesWhatExceedsTheRateOfItsKey(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var c tenantCalls
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("limited", c.run, handler.RateBy(5, 1, byTenant))))
		inboxtest.Accept(t, ib, slices.Concat(ofTenant("a", 5), ofTenant("b", 1))...)
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 1, c.count("b"))
		require.GreaterOrEqual(t, c.count("a"), 1)
		require.Equal(t, drained.Picked, drained.Completed+drained.Released, "%+v", drained)
		inboxtest.Eventually(t, func() bool {
			inboxtest.Process(t, ib)
			return inboxtest.AllCompleted(t, ib)
		}, "later calls run the rest")
		c.requireRate(t, 5, 1)
	})
}

// TestKeyOfASealedMessageIsComputedWithoutItsContent proves contract 5.18 and 15: sealed bytes would differ with each
// message, so that no key had its rate.
func TestKeyOfASealedMessageIsComputedWithoutItsContent(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var c tenantCalls
		var mu sync.Mutex
		got := map[string][]byte{}
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inboxtest.Handlers(inboxtest.Do("limited", c.run,
			handler.RateBy(1000, 10, func(m handler.RawMessage) string {
				mu.Lock()
				defer mu.Unlock()
				got[m.ID] = m.Content
				return m.Source
			}))))
		for id, key := range map[string]string{"sealed": "k1", "plain": ""} {
			box.Use(key)
			m := inboxtest.Message(id)
			m.Source, m.Content = "/tenant", []byte("content")
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Eventually(t, func() bool {
			inboxtest.Process(t, ib)
			return inboxtest.AllCompleted(t, ib)
		}, "all were completed")
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string][]byte{"sealed": nil, "plain": []byte("content")}, got)
	})
}

// TestPanicOfAKeyLosesNoMessage proves contract 5.18: such messages share a key.
func TestPanicOfAKeyLosesNoMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var c tenantCalls
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("limited", c.run,
			handler.RateBy(50, 2, func(handler.RawMessage) string { panic("no key") }))))
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, ofTenant("a", 10)...)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
		c.requireRate(t, 50, 2)
	})
}
