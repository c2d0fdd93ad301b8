package handler_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

var errBoom = errors.New("boom")

func plain(context.Context, handler.Message[[]byte]) error                 { return nil }
func plainBatch(context.Context, []handler.Message[[]byte]) error          { return nil }
func inTx(context.Context, *gorm.DB, handler.Message[[]byte]) error        { return nil }
func inTxBatch(context.Context, *gorm.DB, []handler.Message[[]byte]) error { return nil }
func through(ctx context.Context, _ handler.Call, next func(context.Context) error) error {
	return next(ctx)
}

func TestDeclarationErrorsNameOptionValueAndAllowedValues(t *testing.T) {
	for text, h := range map[string]*handler.Handler{
		"its function is nil":                        handler.New[[]byte]("h", nil),
		"option Timeout = -1s: must be 0 or more":    handler.New("h", plain, handler.Timeout(-time.Second)),
		"option Concurrency = -1: must be 0":         handler.New("h", plain, handler.Concurrency(-1)),
		"option FleetConcurrency = -1: must be 0":    handler.New("h", plain, handler.FleetConcurrency(-1)),
		"option Rate = 0 calls a second: must be":    handler.New("h", plain, handler.Rate(0, 1)),
		"option Rate = NaN calls a second: must be":  handler.New("h", plain, handler.Rate(math.NaN(), 1)),
		"option Rate with a burst of 0: must be 1":   handler.New("h", plain, handler.Rate(5, 0)),
		"RateBy's function is nil":                   handler.New("h", plain, handler.RateBy(5, 1, nil)),
		"Rate spaces calls: TxGroup makes several":   handler.NewTx("h", inTx, handler.Rate(5, 1), handler.TxGroup(2)),
		"option MaxRetries = -1: must be 0 or more":  handler.New("h", plain, handler.MaxRetries(-1)),
		"option Retention = -1s: must be 0":          handler.New("h", plain, handler.Retention(-time.Second)),
		"TxGroup needs a transactional handler":      handler.New("h", plain, handler.TxGroup(2)),
		"option TxGroup = -1: must be 1 to 1000":     handler.NewTx("h", inTx, handler.TxGroup(-1)),
		"TxGroup is for handlers of single messages": handler.NewTxBatch("h", 5, inTxBatch, handler.TxGroup(2)),
		"its batch size is 0: must be 1 to 10000":    handler.NewBatch("h", 0, plainBatch),
		"option CircuitBreaker.Failures = 0: must be 1 or more": handler.New("h", plain,
			handler.CircuitBreaker(handler.Breaker{OpenFor: time.Second})),
		"option CircuitBreaker.OpenFor = 0s: must be more than": handler.New("h", plain,
			handler.CircuitBreaker(handler.Breaker{Failures: 1})),
		"middleware 2 is nil":                     handler.New("h", plain, handler.Use(through, nil)),
		"OrderedBy's function is nil":             handler.New("h", plain, handler.OrderedBy(nil)),
		"SkipPoisoned needs Ordered or OrderedBy": handler.New("h", plain, handler.SkipPoisoned()),
	} {
		require.ErrorContains(t, h.Err(), text)
	}
	require.NoError(t, handler.NewTx("h", inTx, nil, handler.TxGroup(10), handler.MaxRetries(0), handler.Ordered(),
		handler.SkipPoisoned(), handler.Use(through)).Err())
}

func TestUnsetOptionsAreInheritedFromTheInbox(t *testing.T) {
	h := handler.New("h", plain)
	_, own := h.MaxRetries()
	require.False(t, own)
	_, own = h.CircuitBreaker()
	require.False(t, own)
	require.Nil(t, h.Backoff())
	require.Equal(t, []int{1, 1, 0, 0}, []int{h.BatchSize(), h.TxGroup(), h.Concurrency(), h.FleetConcurrency()})
	rate, burst := h.Rate()
	require.Zero(t, rate)
	require.Zero(t, burst)
	n, own := handler.New("h", plain, handler.MaxRetries(0)).MaxRetries()
	require.True(t, own)
	require.Zero(t, n)
}

func TestHandlerMayReplaceTheOrderingKey(t *testing.T) {
	m := handler.RawMessage{Type: "t", OrderingKey: []byte("k")}
	require.Nil(t, handler.New("h", plain).OrderingKey(m))
	require.Equal(t, []byte("k"), handler.New("h", plain, handler.Ordered()).OrderingKey(m))
	require.Nil(t, handler.New("h", plain, handler.Ordered()).OrderingKey(handler.RawMessage{}))
	byType := handler.OrderedBy(func(m handler.RawMessage) []byte { return []byte(m.Type) })
	require.Equal(t, []byte("t"), handler.New("h", plain, byType).OrderingKey(m))
}

func TestLanesAreNamedByTheOldestKey(t *testing.T) {
	require.Equal(t, "new", handler.New("new", plain).LaneKey())
	require.Equal(t, "oldest", handler.New("new", plain, handler.LegacyKeys("old", "oldest")).LaneKey())
}
