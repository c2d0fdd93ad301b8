package handler_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

type shipment struct{ ID string }

func ship(context.Context, handler.Message[shipment]) error { return nil }

func TestIdempotencyKeyGetsTheDecodedMessage(t *testing.T) {
	h := handler.New("h", ship, handler.IdempotencyKey(func(m handler.Message[shipment]) (string, error) {
		if m.Payload.ID == "" {
			return "", errors.New("no ID")
		}
		return m.Source + "/" + m.Payload.ID, nil
	}))
	require.NoError(t, h.Err())
	find := func(body string) (string, error) {
		return h.IdempotencyKey()(handler.Delivery{Metadata: handler.Metadata{Source: "s"}, Content: []byte(body)})
	}
	id, err := find(`{"ID":"7"}`)
	require.NoError(t, err)
	require.Equal(t, "s/7", id)
	_, err = find(`{}`)
	require.EqualError(t, err, "no ID")
	_, err = find(`{`)
	var undecodable *handler.DecodeError
	require.ErrorAs(t, err, &undecodable)
	require.Nil(t, handler.New("h", ship).IdempotencyKey())
}

// The handler does not see what the function changes in the body.
func TestIdempotencyKeyGetsACopyOfTheBody(t *testing.T) {
	h := handler.New("h", func(context.Context, handler.Message[[]byte]) error { return nil },
		handler.IdempotencyKey(func(m handler.Message[[]byte]) (string, error) {
			id := string(m.Payload)
			clear(m.Payload)
			return id, nil
		}))
	d := handler.Delivery{Content: []byte("7")}
	for range 2 {
		id, err := h.IdempotencyKey()(d)
		require.NoError(t, err)
		require.Equal(t, "7", id)
	}
}

func TestIdempotencyKeyOfAnotherTypeOrNilIsAnError(t *testing.T) {
	other := handler.New("h", ship, handler.IdempotencyKey(func(handler.Message[string]) (string, error) {
		return "",
			nil
	}))
	require.ErrorContains(t, other.Err(),
		"its IdempotencyKey is a func(handler.Message[string]) (string, error): must be a func(handler.Message[")
	require.ErrorContains(t, handler.New("h", ship, handler.IdempotencyKey[shipment](nil)).Err(),
		"its IdempotencyKey is nil: must be a func")
}
