package scheduler

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

const megabyte = 1 << 20

func sized(n, size int) []message {
	all := messages(n)
	for i := range all {
		all[i].size = size
	}
	return all
}

// TestMessagesInMemoryAreBoundedByTheirBytes proves contract 5.2: the bound is over all handlers, and
// counts what waits, what runs, what the running claim may bring and what accepts were granted.
func TestMessagesInMemoryAreBoundedByTheirBytes(t *testing.T) {
	s := rig(Limits{Concurrency: 10, Prefetch: 2000, BatchSize: 500}, Rules{Key: "a"}, Rules{Key: "b"}, Rules{Key: "c"})
	s.Refresh()
	q := s.Claim()
	require.Len(t, q, 3)
	require.Equal(t, maxBytes/2/3, q["a"].Bytes, "an even part of one half")
	require.Equal(t, 4, q["a"].AtLeast, "the slots that are free")
	g := s.Reserve(map[string]int{"a": 1}, 100*megabyte)
	require.True(t, g.Empty(), "a claim of unknown size is running")
	s.Handler("a").Enqueue(sized(4, 4*megabyte), false)
	s.Handler("b").Enqueue(sized(2, 4*megabyte), false)
	s.EndClaim(Claimed{Full: []string{"a", "c"}})

	for range 6 {
		h, group := s.Next()
		require.NotNil(t, h)
		require.Len(t, group, 1)
	}
	q = s.Claim()
	require.Equal(t, map[string]Quota{
		"a": {Messages: 15, AtLeast: 2, Bytes: 8 * megabyte / 2 / 2, AskNextDue: true},
		"c": {Messages: 5, AtLeast: 3, Bytes: 8 * megabyte / 2 / 2, AskNextDue: true},
	}, withoutCounts(q, map[string]int{"a": 15, "c": 5}))
	s.Handler("c").Enqueue(sized(1, 4*megabyte), false)
	s.EndClaim(Claimed{Full: []string{"a", "c"}})

	q = s.Claim()
	require.Equal(t, 3, q["a"].Messages+q["c"].Messages, "only what can start at once")
	require.Equal(t, q["a"].Messages, q["a"].AtLeast)
	require.Equal(t, q["c"].Messages, q["c"].AtLeast)
	s.EndClaim(Claimed{Full: []string{"a", "c"}})

	s.Handler("a").Ended(time.Millisecond, 4*megabyte)
	s.Handler("a").Overdue()
	require.Equal(t, 24*megabyte, s.limits.bytes, "an overdue call still has its messages")
	s.Handler("a").Returned(4 * megabyte)
	s.Handler("a").NotStarted(4 * megabyte)
	s.Handler("c").Drop()
	require.Equal(t, 12*megabyte, s.limits.bytes)
}

// withoutCounts replaces the numbers of messages, which other tests are about.
func withoutCounts(quotas map[string]Quota, messages map[string]int) map[string]Quota {
	for key, q := range quotas {
		q.Messages = messages[key]
		quotas[key] = q
	}
	return quotas
}

// TestAcceptsAreGrantedMemory proves contract 5.17.
func TestAcceptsAreGrantedMemory(t *testing.T) {
	s := rig(Limits{Concurrency: 10, Prefetch: 2000, BatchSize: 500}, Rules{Key: "a", Counted: true})
	first := s.Reserve(map[string]int{"a": 5}, 20*megabyte)
	require.Equal(t, 20*megabyte, first.Bytes())
	second := s.Reserve(map[string]int{"a": 5}, 20*megabyte)
	require.Equal(t, 12*megabyte, second.Bytes())
	first.End()
	require.Zero(t, first.Bytes())
	first.End()
	second.Expire()
	second.End()
	require.Zero(t, s.limits.bytes)
	require.Equal(t, maxBytes, s.Reserve(map[string]int{"a": 5}, 100*megabyte).Bytes())
}

// TestBatchOfLargeMessagesIsNotClaimedAtOnce proves contract 5.2 for groups.
func TestBatchOfLargeMessagesIsNotClaimedAtOnce(t *testing.T) {
	s := rig(Limits{Concurrency: 2, Prefetch: 2000, BatchSize: 500}, Rules{Key: "a", GroupSize: 100})
	s.Refresh()
	s.Handler("a").Enqueue(sized(7, 4*megabyte), false)
	_, group := s.Next()
	require.Len(t, group, 7)
	q := s.Claim()["a"]
	require.Equal(t, 1, q.AtLeast)
	require.Equal(t, 2*megabyte, q.Bytes)
}

// large is a Task that a test can see collected.
type large struct{ content [1 << 10]byte }

func (*large) MayGroup() bool      { return true }
func (*large) QueuedAt() time.Time { return time.Time{} }
func (l *large) Size() int         { return len(l.content) }

func TestQueueDropsReferencesToRemovedMessages(t *testing.T) {
	for name, group := range map[string]int{"one by one": 1, "in groups": 3} {
		t.Run(name, func(t *testing.T) {
			s := New[*large](Limits{Concurrency: 1000, Prefetch: 1000, BatchSize: 1000}, []Rules{{Key: "a", GroupSize: group}},
				time.Second)
			var left []weak.Pointer[large]
			for range 10 {
				task := new(large)
				left = append(left, weak.Make(task))
				s.Handler("a").Enqueue([]*large{task}, false)
			}
			for range 9 / group {
				_, _ = s.Next()
			}
			runtime.GC()
			for i, task := range left[:9] {
				require.Nil(t, task.Value(), i)
			}
			require.NotNil(t, left[9].Value(), "it waits")
			runtime.KeepAlive(s)
		})
	}
}
