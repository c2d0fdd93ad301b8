package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

func TestFullResultBatchIsStoredImmediately(t *testing.T) {
	c := newCompleter(&shared{opts: Options{BatchSize: 4}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		for range 4 {
			c.add(result{task: &task{}})
		}
	}()
	c.gather(ctx, time.Hour)
	require.NoError(t, ctx.Err())
	require.Equal(t, 4, c.backlog())
}

// TestLaneResultIsStoredImmediately proves part of contract 5.12: the lane's next message waits for
// the result.
func TestLaneResultIsStoredImmediately(t *testing.T) {
	for _, before := range []bool{true, false} {
		c := newCompleter(&shared{opts: Options{BatchSize: 4}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		add := func() {
			c.add(result{task: &task{}})
			c.add(result{task: &task{claim: store.Claim{Ref: store.Ref{Lane: &store.Lane{}}}}})
		}
		if before {
			add()
		} else {
			go add()
		}
		c.gather(ctx, time.Hour)
		require.NoError(t, ctx.Err())
		require.Equal(t, 2, c.backlog())
	}
}
