package trial

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// InBatches calls work for each batch [from, to) of n units, from several goroutines. It returns
// the first error. A nil error means that all batches were started and none failed.
func InBatches(
	ctx context.Context, n, batch, goroutines int, work func(ctx context.Context, from, to int) error,
) error {
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(goroutines)
	for from := 0; from < n && each.Err() == nil; from += batch {
		g.Go(func() error { return work(each, from, min(from+batch, n)) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}
