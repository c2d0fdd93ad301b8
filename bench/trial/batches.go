package trial

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// InBatches calls work for each batch of n units, [from, to), from so many
// goroutines at once, and returns the first error.
func InBatches(ctx context.Context, n, batch, goroutines int, work func(ctx context.Context, from, to int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(goroutines)
	for from := 0; from < n && ctx.Err() == nil; from += batch {
		g.Go(func() error { return work(ctx, from, min(from+batch, n)) })
	}
	return g.Wait()
}
