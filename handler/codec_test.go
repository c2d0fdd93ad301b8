package handler_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

// run calls a handler with one body and returns the payload that it got.
func run[T any](body string, opts ...handler.Option) (got T, err error) {
	h := handler.New("h", func(_ context.Context, m handler.Message[T]) error { got = m.Payload; return nil }, opts...)
	if h.Err() != nil {
		return got, h.Err()
	}
	d := handler.Delivery{Metadata: handler.Metadata{ContentType: "text/upper"}, Content: []byte(body)}
	return got, h.Run(context.Background(), nil, nil, d)[0]
}

func TestBodiesAreDecodedFromJSONBytesOrByCodec(t *testing.T) {
	type order struct{ N int }
	parsed, err := run[order](`{"N":7}`)
	require.NoError(t, err)
	require.Equal(t, order{7}, parsed)

	raw, err := run[[]byte]("\x00\xff")
	require.NoError(t, err)
	require.Equal(t, "\x00\xff", string(raw))

	upper := handler.CodecFunc[string](func(meta handler.Metadata, content []byte) (string, error) {
		require.Equal(t, "text/upper", meta.ContentType, "it may choose by the metadata")
		return strings.ToUpper(string(content)), nil
	})
	text, err := run[string]("abc", handler.WithCodec(upper))
	require.NoError(t, err)
	require.Equal(t, "ABC", text)

	_, err = run[order]("{")
	var undecodable *handler.DecodeError
	require.ErrorAs(t, err, &undecodable)
	require.Equal(t, "h", undecodable.HandlerKey)

	_, err = run[order]("{}", handler.WithCodec(upper))
	require.ErrorContains(t, err, "does not decode into handler_test.order")
}
