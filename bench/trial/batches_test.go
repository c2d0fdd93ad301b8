package trial

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBatchesCoverEveryUnitOnce(t *testing.T) {
	seen := make([]atomic.Int32, 1001)
	require.NoError(t, InBatches(t.Context(), len(seen), 500, 2, func(_ context.Context, from, to int) error {
		for i := from; i < to; i++ {
			seen[i].Add(1)
		}
		return nil
	}))
	for i := range seen {
		require.EqualValues(t, 1, seen[i].Load(), i)
	}
}

func TestFailedBatchEndsOthersAndIsReturned(t *testing.T) {
	broken := errors.New("broken")
	calls := 0
	err := InBatches(t.Context(), 1000, 1, 1, func(_ context.Context, from, _ int) error {
		calls++
		if from == 3 {
			return broken
		}
		return nil
	})
	require.ErrorIs(t, err, broken)
	require.Less(t, calls, 1000)
}

func TestBatchesFailOnceTheContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, InBatches(ctx, 10, 1, 1, func(context.Context, int, int) error { return nil }), context.Canceled)
}
