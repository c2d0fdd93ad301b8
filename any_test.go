package inbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestOnAnyTakesEveryType proves contract 4.2: each handler gets one row of each message, whatever its type is.
func TestOnAnyTakesEveryType(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var ran []string
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.Unrouted = acceptor.UnroutedReject
			o.Processor.Concurrency = 1
		}), inbox.Channel("c", inbox.OnAny(nothing("log"), inboxtest.Do("note", func(_ context.Context, m inboxtest.Bytes) error {
			ran = append(ran, m.Type)
			return nil
		}))), inbox.Channel("other", inbox.On("t", nothing("o"))))
		types := []string{"a", "b", "*"}
		for _, typ := range types {
			m := inboxtest.Message(typ)
			m.Type = typ
			results, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
			require.Equal(t, 2, results[0].Handlers)
		}
		inboxtest.Process(t, ib)
		require.ElementsMatch(t, types, ran)
		other := inboxtest.Message("x")
		other.Channel, other.Type = "other", "a"
		_, err := ib.Accept(t.Context(), other)
		require.ErrorContains(t, err, `channel "other" has no handler for type "a", only for ["t"]`)
	})
}

// TestBackfillOfOnAnyHandlerTakesEveryType proves contract 11.1.
func TestBackfillOfOnAnyHandlerTakesEveryType(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		before := inboxtest.New(t, d.DB, inbox.Channel("c", inbox.OnAny(nothing("old"))))
		for _, typ := range []string{"a", "b"} {
			m := inboxtest.Message(typ)
			m.Type = typ
			_, err := before.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		ib := inboxtest.New(t, d.DB, inbox.Channel("c", inbox.OnAny(nothing("old"), nothing("new"))))
		o, err := ib.Ops()
		require.NoError(t, err)
		result, err := o.Backfill(t.Context(), "ada", "new", time.Now().Add(-time.Hour), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 2, result.Done)
		inboxtest.Process(t, ib)
		for _, id := range []string{"a", "b"} {
			require.NotNil(t, inboxtest.Status(t, ib, id, "new").CompletedAt)
		}
	})
}

// TestWildcardTypesAreRefusedWithAHint proves contract 10.4, by New and Module.
func TestWildcardTypesAreRefusedWithAHint(t *testing.T) {
	hint := ` has type "*", which is no wildcard: declare handlers of all types by inbox.OnAny`
	for name, tc := range map[string]struct {
		opts []inbox.Option
		want string
	}{
		"On":        {[]inbox.Option{inbox.Channel("c", inbox.On("*", nothing("a")))}, `inbox "orders": channel "c": inbox.On` + hint},
		"Subscribe": {[]inbox.Option{inbox.Channel("c", inbox.On("t", nothing("b"))), inbox.Subscribe("c", "*", nothing("a"))}, `inbox "orders": channel "c": inbox.Subscribe` + hint},
		"OnAny beside On": {[]inbox.Option{inbox.Channel("c", inbox.On("t", nothing("a")), inbox.OnAny(nothing("b")))},
			`inbox "orders": channel "c" has inbox.OnAny and handlers for type "t": use On for all types, or OnAny alone`},
		"OnAny and Subscribe": {[]inbox.Option{inbox.Channel("c", inbox.OnAny(nothing("b"))), inbox.Subscribe("c", "t", nothing("a"))},
			`inbox "orders": channel "c" has inbox.OnAny and handlers for type "t"`},
		"OnAny without handlers": {[]inbox.Option{inbox.Channel("c", inbox.OnAny())},
			`inbox "orders": channel "c" has no handlers: declare them with inbox.On`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inbox.New("orders", fxtest.OpenDB(t), tc.opts...)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, startError(namedDB("orders", fxtest.OpenDB(t)), inbox.Module("orders", tc.opts...)), tc.want)
		})
	}
}

func TestUnroutedErrorNamesABoundedNumberOfTypes(t *testing.T) {
	var ons []inbox.ChannelOption
	for i := range 12 {
		typ := strings.Repeat("t", i+1)
		ons = append(ons, inbox.On(typ, nothing(typ)), inbox.On(typ, nothing("again "+typ)))
	}
	log, logs := inboxtest.Observe()
	ib := inboxtest.New(t, fxtest.OpenDB(t), log, inbox.Channel("c", ons...))
	m := inboxtest.Message("1")
	m.Type = "order.placd"
	_, err := ib.Accept(t.Context(), m)
	require.NoError(t, err)
	found := logs.FilterMessageSnippet("message type has no handler").All()
	require.Len(t, found, 1)
	require.Equal(t, `["t" "tt" "ttt" "tttt" "ttttt" "tttttt" "ttttttt" "tttttttt" "ttttttttt" "tttttttttt"] and 2 more`,
		found[0].ContextMap()["handled_types"])
}

func TestJSONMakesAMessageForAccept(t *testing.T) {
	m, err := inbox.JSON("c", "order.placed", "o-1", map[string]int{"total": 3})
	require.NoError(t, err)
	require.Equal(t, handler.RawMessage{Channel: "c", Type: "order.placed", ID: "o-1", ContentType: "application/json",
		Content: []byte(`{"total":3}`)}, m)
	_, err = inbox.JSON("c", "order.placed", "o-1", make(chan int))
	require.EqualError(t, err, `message "o-1": json: unsupported type: chan int`)
}
