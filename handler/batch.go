package handler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"
)

// NewBatch makes a plain handler that takes up to size messages in one call. It is for effects that are cheaper
// together: a bulk insert elsewhere, one request for many messages. A call gets the due messages: at least one, and
// never two of one lane.
//
// If all messages are done, fn returns nil; BatchResult returns one result per message. Any other error, a panic or a
// timeout fails every message, and failed messages are tried again alone. Messages whose body cannot be decoded fail by
// themselves. After a crash the whole call is repeated.
//
// Do not use it where messages have nothing to share: it only makes failures affect more messages. (Contract 5.11.)
func NewBatch[T any](
	key string, size int, fn func(ctx context.Context, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Plain, size, fn == nil, opts)
	h.run = func(ctx context.Context, _ *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, batch) })
	}
	return h
}

// NewTxBatch makes a transactional handler that takes up to size messages in one call: its writes through tx happen
// exactly once. If some messages fail, everything is rolled back, they are charged, and the call is repeated at once
// with the others, uncharged: nothing that a failed message wrote is ever committed. If it is unknown which message is
// to blame (all have failed, a panic, a timeout, a swallowed SQL error, a refused commit), none is charged and each
// runs again alone. Otherwise it behaves like NewBatch and NewTx. (Contract 5.11.)
func NewTxBatch[T any](
	key string, size int, fn func(ctx context.Context, tx *gorm.DB, batch []Message[T]) error, opts ...Option,
) *Handler {
	h, codec := buildBatch[T](key, Transactional, size, fn == nil, opts)
	h.run = func(ctx context.Context, tx *gorm.DB, ds []Delivery) error {
		return runBatch(key, codec, ds, func(batch []Message[T]) error { return fn(ctx, tx, batch) })
	}
	return h
}

// maxBatch bounds the messages that one claim may load into memory for one call.
const maxBatch = 10_000

func buildBatch[T any](key string, kind Kind, size int, missing bool, opts []Option) (*Handler, Codec[T]) {
	h, codec := build[T](key, kind, missing, opts)
	h.batch = size
	if size < 1 || size > maxBatch {
		h.err = errors.Join(h.err, fmt.Errorf("its batch size is %d: must be 1 to %d", size, maxBatch))
	}
	if h.txGroup > 1 {
		h.err = errors.Join(h.err,
			errors.New("TxGroup is for handlers of single messages: a batch shares its transaction anyway"))
	}
	return h, codec
}

// runBatch decodes the bodies and calls fn with the messages that could be decoded.
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

// BatchResult returns the result of a batch handler's call from one result per message, in their order, nil for those
// that are done. Each may be RetryAfter, Poison or Snooze, as for a single message. It returns nil if all are nil. If
// the number of results differs from the number of messages, all messages fail. (Contract 5.11.)
func BatchResult(results ...error) error {
	if cmp.Or(results...) == nil {
		return nil
	}
	return &BatchError{Results: results}
}

// BatchError is the error that BatchResult returns; find it with errors.As.
type BatchError struct {
	// Results are in the order of the messages; at least one is not nil.
	Results []error
}

// Error returns how many messages failed, and the first failure.
func (e *BatchError) Error() string {
	return fmt.Sprintf("%d of %d messages failed, the first: %v", len(e.Unwrap()), len(e.Results), cmp.Or(e.Results...))
}

// Unwrap returns the failures.
func (e *BatchError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Results), func(err error) bool { return err == nil })
}

// resultsOf returns the result of each of n messages, given err of the whole call.
func resultsOf(err error, n int) []error {
	if batch, ok := errors.AsType[*BatchError](err); ok {
		if len(batch.Results) == n {
			return slices.Clone(batch.Results)
		}
		// Do not wrap err: Poison or Snooze of one message must not apply to all.
		err = fmt.Errorf("the handler gave %d results for %d messages: %v", len(batch.Results), n, err)
	}
	return slices.Repeat([]error{err}, n)
}
