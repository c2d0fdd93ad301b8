package schemaregistry_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

const (
	placedV1 = `{"type":"record","name":"OrderPlaced","namespace":"shop","fields":[{"name":"id","type":"string"}]}`
	placedV2 = `{"type":"record","name":"OrderPlaced","namespace":"shop","fields":[{"name":"id","type":"string"},
		{"name":"quantity","type":"int","default":1}]}`
	cancelled = `{"type":"record","name":"shop.OrderCancelled","fields":[{"name":"id","type":"string"}]}`
)

type orderV1 struct {
	ID string `avro:"id"`
}

type orderV2 struct {
	ID       string `avro:"id"`
	Quantity int    `avro:"quantity"`
}

func newAvro[T any](t testing.TB, g *rig, text string) *schemaregistry.Avro[T] {
	t.Helper()
	c, err := schemaregistry.NewAvro[T](g.Registry, schemaregistry.Schema{Text: text, Subject: "orders-value",
		AutoRegister: true})
	require.NoError(t, err)
	return c
}

func TestAvroBodyHasTheWireFormatAndComesBack(t *testing.T) {
	g := newRig(t)
	c := newAvro[orderV1](t, g, placedV1)
	content := encode(t, c, orderV1{"o-1"})
	registered, ok := g.fake.GetSchema("orders-value", 1)
	require.True(t, ok)
	require.Equal(t, framed(registered.ID, "\x06o-1"), content)
	order, err := c.Decode(handler.Metadata{}, content)
	require.NoError(t, err)
	require.Equal(t, orderV1{"o-1"}, order)
}

func TestEncodedBodiesShareNoMemory(t *testing.T) {
	g := newRig(t)
	empty := newAvro[struct{}](t, g, `{"type":"record","name":"Empty","fields":[]}`)
	requireNotShared(t, framed(1, ""), empty, struct{}{})
	requireNotShared(t, framed(2, "\x02a"), newAvro[orderV1](t, g, placedV1), orderV1{"a"})
	requireNotShared(t, framed(3, "\x00"), newProtobuf[*wrapperspb.StringValue](t, g, wrappers), wrapperspb.String(""))
}

// requireNotShared checks that a caller who changes a body changes no other.
func requireNotShared[T any](t *testing.T, want []byte, c codec[T], payload T) {
	t.Helper()
	for range 3 {
		body := encode(t, c, payload)
		require.Equal(t, want, body)
		for i := range body {
			body[i] = 0xff
		}
	}
}

func TestAvroReadsWhatOlderAndNewerWritersWrote(t *testing.T) {
	g := newRig(t)
	older, newer := newAvro[orderV1](t, g, placedV1), newAvro[orderV2](t, g, placedV2)
	byOlder, byNewer := encode(t, older, orderV1{"o-1"}), encode(t, newer, orderV2{"o-2", 7})

	withDefault, err := newer.Decode(handler.Metadata{}, byOlder)
	require.NoError(t, err)
	require.Equal(t, orderV2{"o-1", 1}, withDefault)
	skipped, err := older.Decode(handler.Metadata{}, byNewer)
	require.NoError(t, err)
	require.Equal(t, orderV1{"o-2"}, skipped)
}

func TestAvroRefusesASchemaThatCannotBeResolved(t *testing.T) {
	g := newRig(t)
	id := g.register(t, "cancelled", sr.Schema{Schema: cancelled})
	_, err := newAvro[orderV1](t, g, placedV1).Decode(handler.Metadata{}, framed(id, "\x06o-1"))
	requireLasting(t, err)
	require.ErrorContains(t, err, "schema 1: ")

	other := g.register(t, "proto", sr.Schema{Schema: `syntax = "proto3"; message A {}`, Type: sr.TypeProtobuf})
	_, err = newAvro[orderV1](t, g, placedV1).Decode(handler.Metadata{}, framed(other, "\x06o-1"))
	requireLasting(t, err)
	require.ErrorContains(t, err, "schema 2: its type is PROTOBUF: must be AVRO")
}

func TestAvroReadsSchemasThatReferToOthers(t *testing.T) {
	g := newRig(t)
	g.register(t, "money", sr.Schema{Schema: `{"type":"record","name":"shop.Money","fields":[{"name":"cents","type":"long"}]}`})
	g.register(t, "item", sr.Schema{Schema: `{"type":"record","name":"shop.Item","fields":[{"name":"price","type":"shop.Money"}]}`,
		References: []sr.SchemaReference{{Name: "shop.Money", Subject: "money", Version: 1}}})
	id := g.register(t, "order", sr.Schema{Schema: `{"type":"record","name":"shop.Order","fields":[{"name":"item","type":"shop.Item"},
		{"name":"fee","type":"shop.Money"}]}`, References: []sr.SchemaReference{{Name: "shop.Item", Subject: "item", Version: 1},
		{Name: "shop.Money", Subject: "money", Version: 1}}})
	c := newAvro[map[string]any](t, g, `{"type":"record","name":"shop.Order","fields":[
		{"name":"fee","type":{"type":"record","name":"shop.Money","fields":[{"name":"cents","type":"long"}]}}]}`)
	for _, subject := range []string{"order", "item", "money"} {
		_, err := g.client.DeleteSubject(t.Context(), subject, sr.SoftDelete)
		require.NoError(t, err)
	}
	before := g.requests.Load()
	order, err := c.Decode(handler.Metadata{}, framed(id, "\x0a\x04"))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"fee": map[string]any{"cents": int64(2)}}, order)
	require.EqualValues(t, 3, g.requests.Load()-before, "each is asked for once")
}

func TestAvroRefusesCorruptBodies(t *testing.T) {
	g := newRig(t)
	c := newAvro[orderV2](t, g, placedV2)
	content := encode(t, c, orderV2{"o-1", 7})
	for n := range content {
		_, err := c.Decode(handler.Metadata{}, content[:n])
		requireLasting(t, err)
	}
	for name, body := range map[string][]byte{
		"no body":           nil,
		"wrong magic byte":  append([]byte{1}, content[1:]...),
		"JSON":              []byte(`{"id":"o-1"}`),
		"bytes after it":    append(content[:len(content):len(content)], 0),
		"ID above 31 bits":  framed(-1, string(content[5:])),
		"length beyond end": framed(1, "\x7e"),
	} {
		_, err := c.Decode(handler.Metadata{}, body)
		requireLasting(t, err)
		require.NotContains(t, err.Error(), "panic", name)
	}
	require.EqualValues(t, 2, g.requests.Load(), "one to register, one to read")
}

func TestNewAvroRefusesSchemasThatItCannotParse(t *testing.T) {
	g := newRig(t)
	_, err := schemaregistry.NewAvro[orderV1](g.Registry, schemaregistry.Schema{})
	require.ErrorContains(t, err, "schemaregistry: Schema.Text: ")
	_, err = schemaregistry.NewAvro[orderV1](g.Registry, schemaregistry.Schema{Text: placedV1,
		References: []sr.SchemaReference{{Name: "a"}}})
	require.EqualError(t, err, "schemaregistry: Schema.References: must be empty for Avro: put the types into Schema.Text")
}

func TestConcurrentCallsOfACodecAgree(t *testing.T) {
	g := newRig(t)
	id := g.register(t, "orders-value", sr.Schema{Schema: placedV1})
	c := newAvro[orderV2](t, g, placedV2)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			order, err := c.Decode(handler.Metadata{}, framed(id, "\x06o-1"))
			if err != nil || order != (orderV2{"o-1", 1}) {
				t.Errorf("decoded %v, %v", order, err)
			}
			if content, _, err := c.Encode(orderV2{"o-2", 7}); err != nil || !strings.HasSuffix(string(content), "o-2\x0e") {
				t.Errorf("encoded %q, %v", content, err)
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, g.requests.Load(), int64(1+16), "one to read, the others to register")
}
