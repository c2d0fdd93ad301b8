package kafkawire

import (
	"context"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func abortedList(pairs ...int64) (list []byte) {
	for _, n := range pairs {
		list = binary.BigEndian.AppendUint64(list, uint64(n))
	}
	return list
}

// Contract 7.2. Each of a million entries with a producer of its own took more than a kilobyte.
func TestAbortedListStaysWithinItsMemoryBudget(t *testing.T) {
	pairs := make([]int64, 0, 2*maxAborted)
	for i := range int64(maxAborted) {
		pairs = append(pairs, i*7919%maxAborted, i)
	}
	list := abortedList(pairs...)
	h := NewBudget(1 << 30).NewHold()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a, ok := NewAborted(t.Context(), &Response{Aborted: list}, h)
	runtime.ReadMemStats(&after)
	require.True(t, ok)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*len(list)))
	require.GreaterOrEqual(t, h.bytes(), len(list))
	require.True(t, a.Covers(7919, 1))
	require.False(t, a.Covers(7919, 0))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok = NewAborted(ctx, &Response{Aborted: list}, NewBudget(1).NewHold())
	require.False(t, ok)
}

// FuzzAborted compares the aborted transactions with a list for each producer.
func FuzzAborted(f *testing.F) {
	f.Add([]byte{1, 5, 1, 9, 2, 3}, []byte{0, 1, 5, 1, 1, 7, 0, 1, 9, 0, 2, 2})
	f.Fuzz(func(t *testing.T, list, steps []byte) {
		naive := map[byte][]byte{}
		var pairs []int64
		for ; len(list) >= 2; list = list[2:] {
			naive[list[0]] = append(naive[list[0]], list[1])
			pairs = append(pairs, int64(list[0]), int64(list[1]))
		}
		a, ok := NewAborted(t.Context(), &Response{Aborted: abortedList(pairs...)}, NewBudget(1<<20).NewHold())
		require.True(t, ok)
		at := byte(0)
		for ; len(steps) >= 3; steps = steps[3:] {
			producer := steps[1]
			at = max(at, steps[2]) // offsets only grow
			if steps[0]%2 == 1 {
				a.end(int64(producer), int64(at))
				var open []byte
				for _, first := range naive[producer] {
					if first > at {
						open = append(open, first)
					}
				}
				naive[producer] = open
				continue
			}
			covered := false
			for _, first := range naive[producer] {
				covered = covered || first <= at
			}
			require.Equal(t, covered, a.Covers(int64(producer), int64(at)))
		}
	})
}
