package ops

import (
	"context"
	"errors"
)

// Retry makes a poisoned status pending again, due now: its error count and
// abandoned count are 0, its requeued count one more, its last error stays to
// be read. ErrNotFound, ErrStale and ErrNotPoisoned say why nothing was done; of
// two operators at once one gets such an error. In its lane it is where it was
// accepted (contract 11.1).
func (o *Ops) Retry(ctx context.Context, actor Actor, ref Ref) error { return errors.ErrUnsupported }

// Discard ends a poisoned status for good without running its handler. It is
// kept as memory, so that a redelivery is still a duplicate, and cleaned like a
// completed one. Its lane is free. Errors as Retry's.
func (o *Ops) Discard(ctx context.Context, actor Actor, ref Ref) error { return errors.ErrUnsupported }

// Bulk says how an action on all matching statuses goes.
type Bulk struct {
	// DryRun only counts.
	DryRun bool
	// ChunkSize is how many statuses share a transaction and an audit row: 1 to
	// MaxLimit, 0 for 200.
	ChunkSize int
	// Progress, if not nil, is told after each chunk, from the caller's
	// goroutine.
	Progress func(BulkResult)
}

// BulkResult is what an action on all matching statuses has come to.
type BulkResult struct {
	// Matched is the dry run's count; zero otherwise.
	Matched Count
	// Done were retried or discarded.
	Done int64
	// Skipped matched, but were changed by somebody else before their turn, and
	// were left alone.
	Skipped int64
	// Looked counts the rows looked at.
	Looked int64
}

// RetryMatching retries every poisoned status that matches the filter, in
// chunks, each a transaction of its own with its audit row. Filter.States may
// only name StatePoisoned; the rest of it may not be empty: to retry really
// everything name the handler keys. Each status is retried once: one that is poisoned again
// meanwhile stays so. The end of ctx ends it between two chunks or undoes the
// one under way; the result, also with an error, is what was done.
//
// Do a DryRun first and have the operator confirm its count.
func (o *Ops) RetryMatching(ctx context.Context, actor Actor, filter Filter, bulk Bulk) (BulkResult, error) {
	return BulkResult{}, errors.ErrUnsupported
}

// DiscardMatching discards every poisoned status that matches the filter, as
// RetryMatching retries them.
func (o *Ops) DiscardMatching(ctx context.Context, actor Actor, filter Filter, bulk Bulk) (BulkResult, error) {
	return BulkResult{}, errors.ErrUnsupported
}
