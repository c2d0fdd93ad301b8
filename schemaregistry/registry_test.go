package schemaregistry_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

func TestOptionsAreValidated(t *testing.T) {
	_, err := schemaregistry.New(nil)
	require.EqualError(t, err, "schemaregistry: client is nil")
	client, err := sr.NewClient()
	require.NoError(t, err)
	_, err = schemaregistry.New(client, func(o *schemaregistry.Options) { o.Timeout = 0 })
	require.EqualError(t, err, "schemaregistry: option Timeout = 0s: must be 1ms or more")
	_, err = schemaregistry.New(client, nil)
	require.NoError(t, err)
}

func TestConcurrentRequestsForOneSchemaAreOne(t *testing.T) {
	g := newRig(t)
	id := g.register(t, "orders-value", sr.Schema{Schema: placedV1})
	var all, begun sync.WaitGroup
	begun.Add(32)
	g.answers(func(http.ResponseWriter, *http.Request) bool {
		begun.Wait()
		return false
	})
	for range 32 {
		all.Go(func() {
			begun.Done()
			if name, err := g.TypeOf(envelope.Record{Value: framed(id, "")}); name != "shop.OrderPlaced" {
				t.Errorf("type %q, %v", name, err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, g.requests.Load())
}

// Contract 5.7.
func TestUnreachableRegistryMakesNoMessageBad(t *testing.T) {
	for name, by := range map[string]answer{
		"connection lost": hangUp,
		"unavailable":     respond(http.StatusServiceUnavailable, "try later"),
		"store fails":     respond(http.StatusInternalServerError, `{"error_code":50001,"message":"store"}`),
		"login refused":   respond(http.StatusUnauthorized, `{"error_code":401,"message":"who"}`),
		"too many":        respond(http.StatusTooManyRequests, ""),
		"wrong address":   respond(http.StatusNotFound, "<html>"),
		"no JSON":         respond(http.StatusOK, "<html>"),
		"no answer": func(_ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // a server notices that the client has gone only after the body
			<-r.Context().Done()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			g := newRig(t, func(o *schemaregistry.Options) {
				o.Timeout, o.Logger = 100*time.Millisecond, zap.New(core)
			})
			id := g.register(t, "orders-value", sr.Schema{Schema: placedV1})
			c := newAvro[orderV1](t, g, placedV1)
			body := framed(id, "\x06o-1")

			g.answers(by)
			for range 3 {
				_, err := c.Decode(handler.Metadata{}, body)
				requireSnoozed(t, err)
				_, err = g.TypeOf(envelope.Record{Value: body})
				require.ErrorIs(t, err, envelope.ErrUnavailable)
				require.ErrorContains(t, err, "schema 1: temporarily unavailable: ")
			}
			require.EqualValues(t, 1, g.requests.Load(), "a failure is remembered for a second")
			_, _, err := c.Encode(orderV1{"o-2"})
			require.ErrorIs(t, err, envelope.ErrUnavailable)
			require.ErrorContains(t, err, `schema of subject "orders-value": `)

			g.recovers()
			g.clock.Advance(time.Second)
			order, err := c.Decode(handler.Metadata{}, body)
			require.NoError(t, err)
			require.Equal(t, orderV1{"o-1"}, order)
			require.Equal(t, body, encode(t, c, order))
			require.Equal(t, 1, logs.FilterMessageSnippet("schema registry failing").Len())
			require.Equal(t, 1, logs.FilterMessageSnippet("schema registry recovered").Len())
		})
	}
}

// A closed port refuses the connection.
func TestRegistryThatIsNotThereIsUnavailable(t *testing.T) {
	g := newRig(t)
	g.fake.Close()
	_, err := g.TypeOf(envelope.Record{Value: framed(1, "")})
	require.ErrorIs(t, err, envelope.ErrUnavailable)
}

func TestUnknownSchemaIsWaitedForAndThenCharged(t *testing.T) {
	g := newRig(t)
	c := newAvro[orderV1](t, g, placedV1)
	body := framed(1, "\x06o-1")
	_, err := g.TypeOf(envelope.Record{Value: body})
	require.ErrorIs(t, err, envelope.ErrUnavailable)
	_, err = c.Decode(handler.Metadata{}, body)
	requireSnoozed(t, err)

	g.clock.Advance(5 * time.Second)
	_, err = g.TypeOf(envelope.Record{Value: body})
	require.ErrorIs(t, err, schemaregistry.ErrUnknownSchema)
	require.NotErrorIs(t, err, envelope.ErrUnavailable)
	_, err = c.Decode(handler.Metadata{}, body)
	charged := (*handler.RetryAfterError)(nil)
	require.ErrorAs(t, err, &charged)
	require.Positive(t, charged.Delay)
	require.NotErrorAs(t, err, new(*handler.SnoozeError))

	require.Equal(t, 1, g.register(t, "orders-value", sr.Schema{Schema: placedV1}))
	g.clock.Advance(time.Second)
	_, err = c.Decode(handler.Metadata{}, body)
	require.NoError(t, err)
}

func TestUnknownSchemaIsWaitedForAgain(t *testing.T) {
	for name, between := range map[string]func(g *rig, ask func() error){
		"after a long time": func(g *rig, _ func() error) { g.clock.Advance(time.Hour) },
		"after an outage": func(g *rig, ask func() error) {
			g.answers(hangUp)
			require.NotErrorIs(t, ask(), schemaregistry.ErrUnknownSchema)
			g.recovers()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			ask := func() error {
				g.clock.Advance(time.Second)
				_, err := g.TypeOf(envelope.Record{Value: framed(1, "")})
				return err
			}
			for range 2 {
				for range 5 {
					require.ErrorIs(t, ask(), envelope.ErrUnavailable)
				}
				require.NotErrorIs(t, ask(), envelope.ErrUnavailable)
				g.clock.Advance(time.Minute)
				require.NotErrorIs(t, ask(), envelope.ErrUnavailable, "attempts a minute apart are charged")
				between(g, ask)
			}
		})
	}
}

func TestFailuresOfManyIDsAreForgotten(t *testing.T) {
	g := newRig(t)
	for id := range 2500 {
		_, err := g.TypeOf(envelope.Record{Value: framed(id+1, "")})
		require.ErrorIs(t, err, schemaregistry.ErrUnknownSchema)
	}
	_, err := g.TypeOf(envelope.Record{Value: framed(1, "")})
	require.Error(t, err)
	require.EqualValues(t, 2501, g.requests.Load(), "the first ID is asked for again")
}

func TestTypeOfRefusesRecordsWithoutATypedSchema(t *testing.T) {
	g := newRig(t)
	for _, text := range []string{`"string"`, `["null","string"]`} {
		id := g.register(t, "s"+text, sr.Schema{Schema: text})
		_, err := g.TypeOf(envelope.Record{Value: framed(id, "")})
		require.ErrorContains(t, err, "has no name: must be an Avro record")
		require.NotErrorIs(t, err, envelope.ErrUnavailable)
	}
	id := g.register(t, "json", sr.Schema{Schema: `{"type":"object"}`, Type: sr.TypeJSON})
	_, err := g.TypeOf(envelope.Record{Value: framed(id, "")})
	require.EqualError(t, err, "schema 3: its type is JSON: must be AVRO or PROTOBUF")
	for _, value := range [][]byte{nil, {0}, {0, 0, 0, 1}, {1, 0, 0, 0, 1, 2}, framed(-1, "")} {
		_, err := g.TypeOf(envelope.Record{Value: value})
		require.ErrorContains(t, err, "does not begin with a zero byte and a schema ID")
	}
	dotted := g.register(t, "dotted", sr.Schema{Schema: cancelled})
	name, err := g.TypeOf(envelope.Record{Value: framed(dotted, "")})
	require.NoError(t, err)
	require.Equal(t, "shop.OrderCancelled", name)
}

func TestEncodeOnlyUsesARegisteredSchemaUnlessItMayRegister(t *testing.T) {
	g := newRig(t)
	asked := func(s schemaregistry.Schema) *schemaregistry.Avro[orderV1] {
		s.Text = placedV1
		c, err := schemaregistry.NewAvro[orderV1](g.Registry, s)
		require.NoError(t, err)
		return c
	}
	c := asked(schemaregistry.Schema{})
	_, _, err := c.Encode(orderV1{"o-1"})
	require.ErrorIs(t, err, schemaregistry.ErrUnknownSchema)
	require.ErrorContains(t, err, `schema of subject "shop.OrderPlaced": `)
	require.ErrorContains(t, err, "register it, or set Schema.Subject or AutoRegister")
	require.False(t, g.fake.SubjectExists("shop.OrderPlaced"))

	g.register(t, "shop.OrderPlaced", sr.Schema{Schema: cancelled})
	_, _, err = c.Encode(orderV1{"o-1"})
	require.ErrorIs(t, err, schemaregistry.ErrUnknownSchema, "another schema of the subject does not count")
	id := g.register(t, "shop.OrderPlaced", sr.Schema{Schema: placedV1})
	require.Equal(t, framed(id, "\x06o-1"), encode(t, c, orderV1{"o-1"}))
	require.Equal(t, framed(id, "\x06o-2"), encode(t, c, orderV1{"o-2"}))

	registering := asked(schemaregistry.Schema{Subject: "orders-value", AutoRegister: true})
	encode(t, registering, orderV1{"o-1"})
	require.True(t, g.fake.SubjectExists("orders-value"))
	before := g.requests.Load()
	encode(t, registering, orderV1{"o-1"})
	require.Equal(t, before, g.requests.Load(), "the ID is kept")

	g.answers(respond(http.StatusConflict, `{"error_code":409,"message":"incompatible"}`))
	_, _, err = asked(schemaregistry.Schema{Subject: "a", AutoRegister: true}).Encode(orderV1{})
	require.EqualError(t, err, `schema of subject "a": incompatible`)
}
