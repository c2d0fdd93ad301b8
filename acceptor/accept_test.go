package acceptor_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

func nothing(key string) *inbox.HandlerSpec { return inboxtest.Do(key, inboxtest.Nothing) }

func TestSequentialDuplicatesLeaveOneRow(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a"), nothing("b")))
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeAccepted, Handlers: 2}},
			inboxtest.Accept(t, ib, "1"))
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeDuplicate}}, inboxtest.Accept(t, ib, "1"))
		require.Equal(t, []acceptor.Result{{MessageID: "2", Outcome: handler.OutcomeAccepted, Handlers: 2},
			{MessageID: "2", Outcome: handler.OutcomeDuplicate}},
			inboxtest.Accept(t, ib, "2", "2"), "within one accept")
		inboxtest.Process(t, ib)
		require.Equal(t, handler.OutcomeDuplicate, inboxtest.Accept(t, ib, "1")[0].Outcome, "after completion, too")
		require.Equal(t, 2, inboxtest.CountMessages(t, ib))
		require.Len(t, inboxtest.Statuses(t, ib), 4)
		c := ib.Counters()
		require.EqualValues(t, 2, c.Accepted)
		require.EqualValues(t, 3, c.Duplicates)
		require.Zero(t, inboxtest.Process(t, ib), "nothing runs twice")
	})
}

func TestConcurrentDuplicatesLeaveOneRow(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const accepts, messages = 8, 20
		ids := make([]string, messages)
		for i := range ids {
			ids[i] = fmt.Sprintf("m%02d", i)
		}
		processes := []*inbox.Inbox{
			inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a"), nothing("b"))),
			inboxtest.New(t, d.Another(t), inboxtest.Handlers(nothing("a"), nothing("b"))),
		}
		start := make(chan struct{})
		errs := make(chan error, accepts)
		var mu sync.Mutex
		accepted, handlers := map[string]int{}, 0
		for i := range accepts {
			go func() {
				batch := make([]handler.RawMessage, messages)
				for k := range batch { // overlapping batches in different orders
					batch[k] = inboxtest.Message(ids[(k*7+i*3)%messages])
				}
				<-start
				results, err := processes[i%2].Accept(context.Background(), batch...)
				mu.Lock()
				for _, r := range results {
					if r.Outcome == handler.OutcomeAccepted {
						accepted[r.MessageID]++
					}
					handlers += r.Handlers
				}
				mu.Unlock()
				errs <- err
			}()
		}
		close(start)
		for range accepts {
			require.NoError(t, inboxtest.Receive(t, errs, "an accept"))
		}
		require.Equal(t, messages, inboxtest.CountMessages(t, processes[0]))
		require.Len(t, inboxtest.Statuses(t, processes[0]), 2*messages)
		require.Equal(t, 2*messages, handlers)
		require.Len(t, accepted, messages)
		for id, n := range accepted {
			require.Equal(t, 1, n, "message %s was accepted more than once", id)
		}
	})
}

func TestRedeliveryAddsRowsForHandlersRegisteredSince(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		opts := []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		})}
		inboxtest.Accept(t, inboxtest.New(t, d.DB, append(opts, inboxtest.Handlers(nothing("a")))...), "1", "2")

		ib := inboxtest.New(t, d.DB, append(opts, inboxtest.Handlers(nothing("a"), nothing("b")))...)
		clock.Advance(time.Hour)
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeDuplicate, Handlers: 1}},
			inboxtest.Accept(t, ib, "1"), "within retention")
		clock.Advance(time.Microsecond)
		require.Equal(t, []acceptor.Result{{MessageID: "2", Outcome: handler.OutcomeDuplicate}}, inboxtest.Accept(t, ib, "2"),
			"beyond retention the row was cleaned, not missing")
		require.Len(t, inboxtest.Statuses(t, ib), 3)

		forever := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(nothing("a"), nothing("b")))
		clock.Advance(1000 * time.Hour)
		require.Equal(t, 1, inboxtest.Accept(t, forever, "2")[0].Handlers, "without retention nothing is ever cleaned")
	})
}

func TestMessageIDHasOneTo200Characters(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		for _, id := range []string{"x", strings.Repeat("x", 200), strings.Repeat("é", 200), strings.Repeat("🦊", 200)} {
			require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, ib, id)[0].Outcome)
			var stored []models.Message
			require.NoError(t, d.DB.Clauses(ib.Tables()).Where("id = ?", id).Find(&stored).Error)
			require.Len(t, stored, 1)
		}
		for id, reason := range map[string]string{
			strings.Repeat("é", 201): "id_too_long",
			"":                       "missing_id",
			"a\x00b":                 "bad_id",
			"a\xffb":                 "bad_id",
		} {
			results, err := ib.Accept(context.Background(), inboxtest.Message(id), inboxtest.Message("valid-"+string(reason)))
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, reason, invalid.Reason)
			require.Equal(t, handler.OutcomeInvalid, results[0].Outcome)
			require.Equal(t, err.Error(), `inbox "test": `+results[0].Err.Error())
			require.NotEqual(t, handler.OutcomeInvalid, results[1].Outcome, "the valid one is stored")
			if reason == "id_too_long" {
				require.ErrorContains(t, err, "201 characters: must be 1 to 200")
			}
		}
		require.Equal(t, 4+3, inboxtest.CountMessages(t, ib))
	})
}

func TestUnstorableValuesMakeAMessageInvalid(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		long := inbox.Channel("long", inbox.On(strings.Repeat("t", 256), nothing("b")), inbox.On("bad\x00", nothing("c")))
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")), long)
		for name, tc := range map[string]struct {
			change func(m *handler.RawMessage)
			reason string
		}{
			"type too long": {func(m *handler.RawMessage) {
				m.Channel, m.Type = "long", strings.Repeat("t", 256)
			}, "too_long"},
			"type with NUL": {func(m *handler.RawMessage) {
				m.Channel, m.Type = "long", "bad\x00"
			}, "bad_text"},
			"source too long": {func(m *handler.RawMessage) {
				m.Source = strings.Repeat("s", 1025)
			}, "too_long"},
			"content type too long": {func(m *handler.RawMessage) {
				m.ContentType = strings.Repeat("s", 256)
			}, "too_long"},
			"transport too long": {func(m *handler.RawMessage) {
				m.Transport = strings.Repeat("s", 51)
			}, "too_long"},
			"attribute not UTF-8": {func(m *handler.RawMessage) {
				m.Properties.Attributes = map[string]string{"a": "\xff"}
			}, "bad_properties"},
			"channel never declared": {func(m *handler.RawMessage) { m.Channel = "nowhere" }, "unknown_channel"},
		} {
			m := inboxtest.Message("1")
			tc.change(&m)
			_, err := ib.Accept(context.Background(), m)
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid, name)
			require.Equal(t, tc.reason, invalid.Reason, name)
		}
		require.Zero(t, inboxtest.CountMessages(t, ib))
		require.EqualValues(t, 7, ib.Counters().Invalid)
	})
}

func TestKnownIDWithAnotherTypeOrSourceIsAConflict(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Channel("c", inbox.On("t", nothing("a")), inbox.On("u", nothing("b"))))
		inboxtest.Accept(t, ib, "1")
		otherType, otherSource := inboxtest.Message("1"), inboxtest.Message("1")
		otherType.Type, otherSource.Source = "u", "elsewhere"
		for _, m := range []handler.RawMessage{otherType, otherSource} {
			results, err := ib.Accept(context.Background(), m, inboxtest.Message("2"))
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "id_conflict", invalid.Reason)
			require.ErrorContains(t, err, `the ID is known with type "t" and source ""`)
			require.Equal(t, handler.OutcomeInvalid, results[0].Outcome)
			require.NoError(t, results[1].Err)
		}
		_, err := ib.Accept(context.Background(), inboxtest.Message("3"), func() handler.RawMessage {
			m := inboxtest.Message("3")
			m.Type = "u"
			return m
		}())
		require.ErrorContains(t, err, "id_conflict", "within one accept, too")
		require.Len(t, inboxtest.Statuses(t, ib), 3, "a conflict adds no row")
	})
}

func TestDuplicateWithDifferentContentIsCounted(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		inboxtest.Accept(t, ib, "1")
		other := inboxtest.Message("1")
		other.Content = []byte("changed")
		results, err := ib.Accept(context.Background(), other)
		require.NoError(t, err)
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeDuplicate, ContentDiffers: true}},
			results)
		require.EqualValues(t, 1, ib.Counters().DuplicateContentDiffers)
		var stored models.Message
		require.NoError(t, d.DB.Clauses(ib.Tables()).Take(&stored).Error)
		require.Equal(t, "1", string(stored.Content), "the first content stays")
	})
}

func TestAcceptFailsWithoutADatabase(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		results, err := ib.Accept(ctx, inboxtest.Message("1"))
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, results)
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, ib, "1")[0].Outcome, "the same again is safe")
	})
}
