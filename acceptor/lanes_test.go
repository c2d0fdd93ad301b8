package acceptor_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// lane returns the lane of one status, nil if it has none.
func lane(t *testing.T, ib *inbox.Inbox, messageID, handlerKey string) *store.Lane {
	row := inboxtest.Status(t, ib, messageID, handlerKey)
	require.Equal(t, row.LaneHandler == nil, row.LaneKey == nil)
	if row.LaneKey == nil {
		return nil
	}
	return &store.Lane{Handler: *row.LaneHandler, Key: *row.LaneKey}
}

// TestStatusesOfOrderedHandlersHaveALane proves contract 5.12.
func TestStatusesOfOrderedHandlersHaveALane(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		byContent := func(m handler.RawMessage) []byte { return bytes.ToUpper(m.Content) }
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(
			nothing("plain"),
			inboxtest.Do("ordered", inboxtest.Nothing, handler.Ordered(), handler.LegacyKeys("newer", "oldest")),
			inboxtest.Do("own", inboxtest.Nothing, handler.OrderedBy(byContent)),
		))
		keyed, bare := inboxtest.Message("keyed"), inboxtest.Message("bare")
		keyed.OrderingKey = []byte("customer 7")
		_, err := ib.Accept(context.Background(), keyed, bare)
		require.NoError(t, err)
		require.Equal(t, store.LaneOf("oldest", []byte("customer 7")), lane(t, ib, "keyed", "ordered"),
			"lanes go by the oldest key")
		require.Equal(t, store.LaneOf("own", []byte("KEYED")), lane(t, ib, "keyed", "own"))
		require.Equal(t, store.LaneOf("own", []byte("BARE")), lane(t, ib, "bare", "own"))
		require.Nil(t, lane(t, ib, "keyed", "plain"))
		require.Nil(t, lane(t, ib, "bare", "ordered"), "without an ordering key there is no lane")
	})
}

func TestPanickingOrderingKeyInvalidatesOneMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("own", inboxtest.Nothing,
			handler.OrderedBy(func(m handler.RawMessage) []byte {
				return []byte{m.Content[3]}
			}))))
		short, long := inboxtest.Message("s"), inboxtest.Message("long enough")
		results, err := ib.Accept(context.Background(), short, long)
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, handler.OutcomeInvalid, results[0].Outcome)
		require.Equal(t, "bad_ordering_key", invalid.Reason)
		require.ErrorContains(t, invalid, `handler "own"`)
		require.ErrorContains(t, invalid, "panic")
		require.Equal(t, handler.OutcomeAccepted, results[1].Outcome)
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
	})
}

// TestRedeliveryPastHandlerRetentionAddsNothing proves contract 4.2, 6.2.
func TestRedeliveryPastHandlerRetentionAddsNothing(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		opts := []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = 24 * time.Hour
		})}
		ib := inboxtest.New(t, d.DB, append(opts, inboxtest.Handlers(nothing("a")))...)
		inboxtest.Accept(t, ib, "1")
		clock.Advance(2 * time.Hour)
		ib = inboxtest.New(t, d.Another(t), append(opts, inboxtest.Handlers(nothing("a"), nothing("inbox's"),
			inboxtest.Do("short", inboxtest.Nothing, handler.Retention(time.Hour)),
			inboxtest.Do("long", inboxtest.Nothing, handler.Retention(48*time.Hour))))...)
		require.Equal(t, 2, inboxtest.Accept(t, ib, "1")[0].Handlers,
			"the rows of the inbox's retention and of the longer one were missing, not cleaned")
		require.Len(t, inboxtest.Statuses(t, ib), 3)
	})
}
