package schemaregistry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

// These stand for .proto files of the application, whose types protoc-gen-go has generated.
const (
	wrappers = `syntax = "proto3";
		package google.protobuf;
		import "elsewhere/unknown.proto";
		message StringValue { string value = 1; }
		message BytesValue { bytes value = 1; }`
	// In the descriptors of Go the entries of the map count as the first nested message, in the text they do not.
	descriptors = `syntax = "proto2";
		package google.protobuf;
		enum Edition { EDITION_UNKNOWN = 0; }
		message FileDescriptorSet {}
		message DescriptorProto {
			map<string, string> labels = 100;
			optional group Extra = 101 { optional int32 a = 1; }
			message ReservedRange {}
			message ExtensionRange { optional int32 start = 1; optional int32 end = 2; }
		}`
)

func newProtobuf[T proto.Message](t testing.TB, g *rig, text string) *schemaregistry.Protobuf[T] {
	t.Helper()
	c, err := schemaregistry.NewProtobuf[T](g.Registry, schemaregistry.Schema{Text: text, Subject: "orders-value",
		AutoRegister: true})
	require.NoError(t, err)
	return c
}

// requireProtobuf checks that a payload comes back from a body with these bytes before it.
func requireProtobuf[T proto.Message](t *testing.T, text string, payload T, indexes ...byte) {
	t.Helper()
	g := newRig(t)
	c := newProtobuf[T](t, g, text)
	body, err := proto.Marshal(payload)
	require.NoError(t, err)
	content := encode(t, c, payload)
	require.Equal(t, append(framed(1, string(indexes)), body...), content)
	decoded, err := c.Decode(handler.Metadata{}, content)
	require.NoError(t, err)
	require.True(t, proto.Equal(payload, decoded))
	name, err := g.TypeOf(envelope.Record{Value: content})
	require.NoError(t, err)
	require.EqualValues(t, payload.ProtoReflect().Descriptor().FullName(), name)
}

func TestProtobufBodyNamesItsMessageByIndexes(t *testing.T) {
	t.Run("first message", func(t *testing.T) { requireProtobuf(t, wrappers, wrapperspb.String("hat"), 0) })
	t.Run("later message", func(t *testing.T) { requireProtobuf(t, wrappers, wrapperspb.Bytes([]byte("hat")), 2, 2) })
	t.Run("nested message after a map and a group", func(t *testing.T) {
		requireProtobuf(t, descriptors, &descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(7)}, 4, 2, 2)
	})
}

func TestProtobufReadsTheLongFormOfTheFirstIndex(t *testing.T) {
	g := newRig(t)
	c := newProtobuf[*wrapperspb.StringValue](t, g, wrappers)
	content := encode(t, c, wrapperspb.String("hat"))
	decoded, err := c.Decode(handler.Metadata{}, framed(1, "\x02\x00"+string(content[6:])))
	require.NoError(t, err)
	require.Equal(t, "hat", decoded.GetValue())
}

func TestProtobufReadsWhatNewerWritersWrote(t *testing.T) {
	g := newRig(t)
	g.register(t, "orders-value", sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; package google.protobuf;
		message StringValue { string value = 1; int32 quantity = 2; }`})
	body := protowire.AppendVarint(protowire.AppendTag([]byte("\x00\x0a\x03hat"), 2, protowire.VarintType), 7)
	c, err := schemaregistry.NewProtobuf[*wrapperspb.StringValue](g.Registry, schemaregistry.Schema{})
	require.NoError(t, err)
	decoded, err := c.Decode(handler.Metadata{}, framed(1, string(body)))
	require.NoError(t, err)
	require.Equal(t, "hat", decoded.GetValue())

	_, _, err = c.Encode(decoded)
	require.EqualError(t, err, "schemaregistry: the codec only decodes: set Schema.Text to the .proto file")
}

// The bytes of one message are often valid for another. The indexes tell that it is not meant.
func TestProtobufRefusesAnotherMessage(t *testing.T) {
	g := newRig(t)
	content := encode(t, newProtobuf[*wrapperspb.BytesValue](t, g, wrappers), wrapperspb.Bytes([]byte("hat")))
	_, err := newProtobuf[*wrapperspb.StringValue](t, g, wrappers).Decode(handler.Metadata{}, content)
	requireLasting(t, err)
	require.EqualError(t, err,
		"schema 1: the message is google.protobuf.BytesValue: must be google.protobuf.StringValue")

	id := g.register(t, "avro", sr.Schema{Schema: placedV1})
	_, err = newProtobuf[*wrapperspb.StringValue](t, g, wrappers).Decode(handler.Metadata{}, framed(id, "\x00"))
	requireLasting(t, err)
	require.EqualError(t, err, "schema 2: its type is AVRO: must be PROTOBUF")
}

func TestProtobufRefusesCorruptBodies(t *testing.T) {
	g := newRig(t)
	c := newProtobuf[*wrapperspb.StringValue](t, g, wrappers)
	content := encode(t, c, wrapperspb.String("hat"))
	for n := range len(content) {
		if n == 6 {
			continue // no fields: an empty message
		}
		_, err := c.Decode(handler.Metadata{}, content[:n])
		requireLasting(t, err)
	}
	for name, rest := range map[string][]byte{
		"negative count":   {1},
		"negative index":   {2, 1},
		"unknown index":    {2, 4},
		"nested in none":   {4, 0, 0},
		"count beyond end": {6, 0},
		"count too large":  {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0},
		"endless varint":   {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"no Protobuf":      {0, 0xff},
	} {
		_, err := c.Decode(handler.Metadata{}, framed(1, string(rest)))
		requireLasting(t, err)
		require.ErrorContains(t, err, "schema 1: ", name)
	}
}

func TestNewProtobufRefusesWhatDoesNotFit(t *testing.T) {
	g := newRig(t)
	_, err := schemaregistry.NewProtobuf[*structpb.Struct](g.Registry, schemaregistry.Schema{Text: wrappers})
	require.EqualError(t, err, "schemaregistry: Schema.Text: does not declare the message google.protobuf.Struct")
	_, err = schemaregistry.NewProtobuf[*structpb.Struct](g.Registry, schemaregistry.Schema{Text: "message {"})
	require.ErrorContains(t, err, "schemaregistry: Schema.Text: ")
	_, err = schemaregistry.NewProtobuf[proto.Message](g.Registry, schemaregistry.Schema{})
	require.EqualError(t, err, "schemaregistry: protoreflect.ProtoMessage: must be a pointer to a generated type")
}
