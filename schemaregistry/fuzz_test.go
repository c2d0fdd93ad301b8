package schemaregistry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

type fuzzedOrder struct {
	ID    string            `avro:"id"`
	Items []string          `avro:"items"`
	Notes map[string]string `avro:"notes"`
	Price *float64          `avro:"price"`
}

// FuzzBodies proves that no body makes a codec panic, and that what is decoded can be encoded and comes back.
func FuzzBodies(f *testing.F) {
	g := newRig(f)
	avro := newAvro[fuzzedOrder](f, g, `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},
		{"name":"items","type":{"type":"array","items":"string"}},{"name":"notes","type":{"type":"map","values":"string"}},
		{"name":"price","type":["null","double"]}]}`)
	price := 1.5
	f.Add(encode(f, avro, fuzzedOrder{"o-1", []string{"hat"}, map[string]string{"a": "b"}, &price}))
	protobuf, err := schemaregistry.NewProtobuf[*wrapperspb.StringValue](g.Registry, schemaregistry.Schema{Text: wrappers,
		Subject: "hats", AutoRegister: true})
	require.NoError(f, err)
	f.Add(encode(f, protobuf, wrapperspb.String("hat")))
	g.register(f, "primitive", sr.Schema{Schema: `"string"`})
	f.Add(framed(3, "\x01"))
	f.Add(framed(1, "\x02a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"))
	f.Add(framed(2, "\xfe\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = g.TypeOf(envelope.Record{Value: body})
		if order, err := avro.Decode(handler.Metadata{}, body); err == nil {
			again, err := avro.Decode(handler.Metadata{}, encode(t, avro, order))
			require.NoError(t, err)
			require.Equal(t, len(order.Items), len(again.Items))
			require.Equal(t, order.ID, again.ID)
			require.Equal(t, order.Notes, again.Notes)
		}
		if hat, err := protobuf.Decode(handler.Metadata{}, body); err == nil {
			again, err := protobuf.Decode(handler.Metadata{}, encode(t, protobuf, hat))
			require.NoError(t, err)
			require.True(t, proto.Equal(hat, again))
		}
	})
}
