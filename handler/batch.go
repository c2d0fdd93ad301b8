package handler

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// NewBatch makes a plain handler that takes up to size messages in one call,
// for effects that are cheaper together: a bulk insert elsewhere, one request
// for many. It is called with what is due, at least one message, never with
// two of one lane. fn returns nil if all are done; BatchResult tells them
// apart; any other error, a panic and a timeout are every message's, and what
// has failed is tried again alone. A crash repeats the whole call.
// Messages whose body cannot be decoded fail by themselves. Do not use it
// where messages have nothing to share: it only makes failures wider.
// (Contract 5.11.)
func NewBatch[T any](
	key string, size int, fn func(ctx context.Context, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Plain, size, fn == nil, opts)
	h.run = func(ctx context.Context, _ *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, batch) })
	}
	return h
}

// NewTxBatch makes a transactional handler that takes up to size messages in
// one call: its writes through tx happen exactly once. If some messages fail,
// everything is rolled back, they are charged, and the call is repeated at
// once with the others, uncharged: nothing that a failed message wrote is ever
// committed. What does not say whose fault it is (all have failed, a panic, a
// timeout, a swallowed SQL error, a refused commit) charges nobody: each runs
// again alone.
// Otherwise what NewBatch and NewTx say holds. (Contract 5.11.)
func NewTxBatch[T any](
	key string, size int, fn func(ctx context.Context, tx *gorm.DB, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Transactional, size, fn == nil, opts)
	h.run = func(ctx context.Context, tx *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, tx, batch) })
	}
	return h
}

// maxBatch bounds what one claim may bring into memory for one call.
const maxBatch = 10_000

func buildBatch[T any](key string, kind Kind, size int, missing bool, opts []Option) (*Handler, Codec[T]) {
	h, codec := build[T](key, kind, missing, opts)
	h.batch = size
	if size < 1 || size > maxBatch {
		h.err = errors.Join(h.err, fmt.Errorf("its batch size is %d, allowed is 1 to %d", size, maxBatch))
	}
	if h.txGroup > 1 {
		h.err = errors.Join(h.err,
			errors.New("TxGroup is for handlers of single messages: a batch shares its transaction anyway"))
	}
	return h, codec
}

// runBatch decodes what can be decoded and calls fn with it.
func runBatch[T any](key string, codec Codec[T], ds []Delivery, fn func([]Message[T]) error) error {
	results := make([]error, len(ds))
	var batch []Message[T]
	var at []int
	for i, d := range ds {
		m, err := decode(key, codec, d)
		if err != nil {
			results[i] = err
			continue
		}
		batch, at = append(batch, m), append(at, i)
	}
	if len(batch) > 0 {
		for k, err := range resultsOf(fn(batch), len(batch)) {
			results[at[k]] = err
		}
	}
	return BatchResult(results...)
}

// BatchResult is what a batch handler returns to tell its messages apart: one
// result per message, in their order, nil for those that are done. Each may
// steer like a single handler's error (RetryAfter, Poison, Snooze). It returns
// nil if all are nil. As the result of another number of messages it is the
// failure of all. (Contract 5.11.)
func BatchResult(results ...error) error {
	for _, err := range results {
		if err != nil {
			return &BatchError{Results: results}
		}
	}
	return nil
}

// BatchError is what BatchResult returns; find it with errors.As.
type BatchError struct {
	// Results are aligned with the messages; at least one is not nil.
	Results []error
}

// Error tells how many failed, and the first failure.
func (e *BatchError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e.Results {
		if err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	return fmt.Sprintf("%d of %d messages failed, the first: %v", failed, len(e.Results), first)
}

// Unwrap returns the failures.
func (e *BatchError) Unwrap() []error {
	var failures []error
	for _, err := range e.Results {
		if err != nil {
			failures = append(failures, err)
		}
	}
	return failures
}

// resultsOf gives each of n messages its part of err.
func resultsOf(err error, n int) []error {
	results := make([]error, n)
	if err == nil {
		return results
	}
	var batch *BatchError
	if errors.As(err, &batch) {
		if len(batch.Results) == n {
			return append(results[:0], batch.Results...)
		}
		// Not wrapped: one message's Poison or Snooze is not everyone's.
		err = fmt.Errorf("the handler gave %d results for %d messages: %v", len(batch.Results), n, err)
	}
	for i := range results {
		results[i] = err
	}
	return results
}
