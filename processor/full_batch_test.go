package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestFullBatchOfResultsWaitsForNoOthers(t *testing.T) {
	c := &completer{batchSize: 4, arrived: routine.NewSignal(), full: routine.NewSignal()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		for range 4 {
			c.add(result{})
		}
	}()
	c.gather(ctx, time.Hour)
	require.NoError(t, ctx.Err())
	require.Equal(t, 4, c.backlog())
}
