package handler_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

func deliveries(bodies ...string) []handler.Delivery {
	ds := make([]handler.Delivery, len(bodies))
	for i, body := range bodies {
		ds[i] = handler.Delivery{Metadata: handler.Metadata{ID: body}, Content: []byte(body)}
	}
	return ds
}

func TestEachMessageOfABatchGetsItsResult(t *testing.T) {
	result := func(err error) []error {
		h := handler.NewBatch("h", 3, func(context.Context, []handler.Message[[]byte]) error { return err })
		return h.Run(context.Background(), nil, nil, deliveries("a", "b", "c")...)
	}
	require.Equal(t, []error{nil, nil, nil}, result(nil))
	require.Equal(t, []error{nil, nil, nil}, result(handler.BatchResult(nil, nil, nil)))
	require.Equal(t, []error{nil, errBoom, nil}, result(handler.BatchResult(nil, errBoom, nil)))
	require.Equal(t, []error{nil, errBoom, nil}, result(errors.Join(handler.BatchResult(nil, errBoom, nil))),
		"also when wrapped")
	for _, err := range result(errBoom) {
		require.Equal(t, errBoom, err, "a single error is every message's")
	}
	for _, err := range result(handler.BatchResult(nil, errBoom)) {
		require.ErrorContains(t, err, "2 results for 3 messages")
		require.ErrorContains(t, err, "boom")
	}
	for _, err := range result(handler.BatchResult(handler.Poison(errBoom), nil)) {
		var poison *handler.PoisonError
		require.NotErrorAs(t, err, &poison, "one message's fate is not everyone's")
	}
	var snooze *handler.SnoozeError
	require.ErrorAs(t, result(handler.BatchResult(handler.Snooze(time.Second), nil, nil))[0], &snooze)
}

func TestUndecodableMessagesOfABatchFailAlone(t *testing.T) {
	var got []int
	h := handler.NewBatch("h", 3, func(_ context.Context, batch []handler.Message[int]) error {
		for _, m := range batch {
			got = append(got, m.Payload)
		}
		return handler.BatchResult(nil, errBoom)
	})
	errs := h.Run(context.Background(), nil, nil, deliveries("1", "{", "3")...)
	require.Equal(t, []int{1, 3}, got)
	require.NoError(t, errs[0])
	var undecodable *handler.DecodeError
	require.ErrorAs(t, errs[1], &undecodable)
	require.Equal(t, errBoom, errs[2])

	got = nil
	errs = h.Run(context.Background(), nil, nil, deliveries("x")...)
	require.ErrorAs(t, errs[0], &undecodable)
	require.Empty(t, got, "nothing was left to call it with")
}

func TestBatchErrorCountsFailuresAndUnwraps(t *testing.T) {
	err := handler.BatchResult(nil, errBoom, handler.Poison(errBoom))
	require.EqualError(t, err, "2 of 3 messages failed, the first: boom")
	require.ErrorIs(t, err, errBoom)
}

func TestInboxMiddlewareRunsOutermost(t *testing.T) {
	var order []string
	note := func(name string) handler.Middleware {
		return func(ctx context.Context, call handler.Call, next func(context.Context) error) error {
			require.Equal(t, "h", call.HandlerKey)
			require.Equal(t, "1", call.Messages[0].ID)
			order = append(order, name)
			err := next(context.WithValue(ctx, noteKey{}, name))
			order = append(order, "after "+name)
			return err
		}
	}
	h := handler.New("h", func(ctx context.Context, _ handler.Message[int]) error {
		order = append(order, "handler in "+ctx.Value(noteKey{}).(string))
		return errBoom
	}, handler.Use(note("own 1"), note("own 2")))
	errs := h.Run(context.Background(), nil, []handler.Middleware{note("inbox 1"), note("inbox 2")}, deliveries("1")...)
	require.Equal(t, []error{errBoom}, errs)
	require.Equal(t, []string{"inbox 1", "inbox 2", "own 1", "own 2", "handler in own 2", "after own 2", "after own 1",
		"after inbox 2", "after inbox 1"}, order)
}

type noteKey struct{}

func TestMiddlewareMayReplaceTheResultOfABatch(t *testing.T) {
	forgive := func(ctx context.Context, call handler.Call, next func(context.Context) error) error {
		require.Len(t, call.Messages, 2)
		var batch *handler.BatchError
		if err := next(ctx); errors.As(err, &batch) {
			batch.Results[0] = nil
			return batch
		}
		return nil
	}
	h := handler.NewBatch("h", 2, func(context.Context, []handler.Message[json.RawMessage]) error {
		return handler.BatchResult(errBoom, errBoom)
	}, handler.Use(forgive))
	require.Equal(t, []error{nil, errBoom}, h.Run(context.Background(), nil, nil, deliveries("1", "2")...))
}
