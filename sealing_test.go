package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// seen records what handlers get.
type seen struct {
	mu       sync.Mutex
	contents map[string][]string // by handler key
}

func (s *seen) note(m inboxtest.Bytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.contents == nil {
		s.contents = map[string][]string{}
	}
	s.contents[m.HandlerKey] = append(s.contents[m.HandlerKey], m.ID+"="+string(m.Payload))
}

func (s *seen) of(key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.contents[key])
}

// plain is a handler that notes what it gets.
func (s *seen) plain(key string, opts ...handler.Option) *inbox.HandlerSpec {
	return inboxtest.Do(key, func(_ context.Context, m inboxtest.Bytes) error { s.note(m); return nil }, opts...)
}

// secret returns a message with a content that is found nowhere else in its row.
func secret(id, text string) handler.RawMessage {
	m := inboxtest.Message(id)
	m.Source, m.Content = "/bank", []byte("secret "+text)
	return m
}

func storedMessages(t *testing.T, d *inboxtest.Database) []models.Message {
	t.Helper()
	var rows []models.Message
	require.NoError(t, d.DB.Order("id").Find(&rows).Error)
	return rows
}

// Contract 15.
func TestStoredContentsAreSealedAndEveryHandlerGetsThemPlain(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), box.Option(), inboxtest.Handlers(got.plain("plain"),
			inboxtest.Tx("tx", func(_ context.Context, _ *gorm.DB, m inboxtest.Bytes) error { got.note(m); return nil }),
			inbox.Batch("batch", 10, func(_ context.Context, batch []inboxtest.Bytes) error {
				for _, m := range batch {
					got.note(m)
				}
				return nil
			})))
		_, err := ib.Accept(t.Context(), secret("a", "1"), secret("b", "2"))
		require.NoError(t, err)
		inboxtest.Process(t, ib)
		inboxtest.Start(t, ib) // from here on statuses may be dispatched locally
		_, err = ib.Accept(t.Context(), secret("c", "3"))
		require.NoError(t, err)
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			receipt, err := ib.AcceptTx(t.Context(), tx, secret("d", "4"))
			if err == nil {
				defer receipt.Wake()
			}
			return err
		}))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are handled")
		for _, key := range []string{"plain", "tx", "batch"} {
			require.ElementsMatch(t, []string{"a=secret 1", "b=secret 2", "c=secret 3", "d=secret 4"}, got.of(key), key)
		}
		rows := storedMessages(t, d)
		require.Len(t, rows, 4)
		for _, row := range rows {
			require.NotContains(t, string(row.Content)+row.SerializedProperties, "secret")
			require.Contains(t, row.SerializedProperties, `"sealed":{"key":"k1"`)
		}
		require.Contains(t, box.Opened(), handler.Identity{Channel: "c", ID: "a", Type: "t", Source: "/bank"})
	})
}

// Contract 15.
func TestKeysRotateAndUnsealedMessagesStayReadable(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		handlers := inboxtest.Handlers(got.plain("h"))
		before := inboxtest.New(t, d.DB, handlers)
		_, err := before.Accept(t.Context(), secret("a", "from before"))
		require.NoError(t, err)
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), handlers)
		for id, key := range map[string]string{"b": "k1", "c": "k2", "d": ""} {
			box.Use(key)
			_, err = ib.Accept(t.Context(), secret(id, "with "+key))
			require.NoError(t, err)
		}
		inboxtest.Process(t, ib)
		require.ElementsMatch(t, []string{"a=secret from before", "b=secret with k1", "c=secret with k2",
			"d=secret with "}, got.of("h"))
		var plain []string
		for _, row := range storedMessages(t, d) {
			if bytes.Contains(row.Content, []byte("secret")) {
				require.NotContains(t, row.SerializedProperties, "sealed")
				plain = append(plain, row.ID)
			}
		}
		require.Equal(t, []string{"a", "d"}, plain)
	})
}

// Contract 15: empty contents are sealed like any other, and tell nothing apart from missing ones.
func TestEmptyContentIsSealed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		ib := inboxtest.New(t, d.DB, inboxtest.NewBox("k1").Option(), inboxtest.Handlers(got.plain("h")))
		none := inboxtest.Message("a")
		none.Content = nil
		_, err := ib.Accept(t.Context(), none)
		require.NoError(t, err)
		require.NotEmpty(t, storedMessages(t, d)[0].Content)
		results, err := ib.Accept(t.Context(), none)
		require.NoError(t, err)
		require.False(t, results[0].ContentDiffers)
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"a="}, got.of("h"))
	})
}

// Contract 15: without the option a sealed message waits, however often it is tried.
func TestSealedMessageWaitsForAProcessWithTheSealer(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		clock := fxtest.NewClock(inboxtest.Noon)
		timed := inbox.Configure(func(o *inbox.Options) { o.Clock, o.Processor.MaxRetries = clock, 2 })
		handlers := inboxtest.Handlers(got.plain("h"))
		ib := inboxtest.New(t, d.DB, timed, inboxtest.NewBox("k1").Option(), handlers)
		_, err := ib.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		logging, logs := inboxtest.Observe()
		without := inboxtest.New(t, d.DB, timed, handlers, logging)
		for range 4 {
			drained := inboxtest.Process(t, without)
			require.Equal(t, 1, drained.Released, "%+v", drained)
			require.Zero(t, inboxtest.Process(t, without).Picked, "not at once")
			clock.Advance(16 * time.Second)
		}
		s := inboxtest.Status(t, without, "a", "h")
		require.False(t, s.IsPoisoned)
		require.Zero(t, s.ErrorCount)
		require.Equal(t, `message "a": content is sealed with key "k1": set the option Sealer in this process`, *s.LastError)
		require.NotZero(t, logs.FilterMessage("inbox: a sealed message waits").Len())
		require.Empty(t, got.of("h"))
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"a=secret 1"}, got.of("h"))
	})
}

// Contract 15: an error of Open counts as the handler's.
func TestMessageThatCannotBeOpenedIsPoisonedOrRetried(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		clock := fxtest.NewClock(inboxtest.Noon)
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inbox.Configure(func(o *inbox.Options) {
			o.Clock, o.Processor.MaxRetries = clock, 2
		}), inboxtest.Handlers(got.plain("h")))
		ids := []string{"fails", "gone", "panics", "sleeps", "works"}
		for _, id := range ids {
			_, err := ib.Accept(t.Context(), secret(id, id))
			require.NoError(t, err)
		}
		box.Fail(nil, func(of handler.Identity, keyID string) error {
			switch of.ID {
			case "fails":
				return errors.New("key server is down")
			case "gone":
				return handler.Poison(fmt.Errorf("no key %q any more", keyID))
			case "panics":
				panic("out of entropy")
			case "sleeps":
				return handler.Snooze(time.Hour)
			}
			return nil
		})
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 2, drained.Failed, "%+v", drained)
		require.Equal(t, 1, drained.Poisoned, "%+v", drained)
		require.Equal(t, []string{"works=secret works"}, got.of("h"))
		gone := inboxtest.Status(t, ib, "gone", "h")
		require.True(t, gone.IsPoisoned)
		require.Equal(t, 1, gone.ErrorCount)
		require.Equal(t, `message "gone": open content sealed with key "k1": poison: no key "k1" any more`, *gone.LastError)
		fails := inboxtest.Status(t, ib, "fails", "h")
		require.False(t, fails.IsPoisoned)
		require.Equal(t, 1, fails.ErrorCount)
		require.Contains(t, *inboxtest.Status(t, ib, "panics", "h").LastError, "the Sealer's Open panicked: out of entropy")
		require.Zero(t, inboxtest.Status(t, ib, "sleeps", "h").ErrorCount)

		clock.Advance(time.Hour)
		box.Fail(nil, func(of handler.Identity, _ string) error {
			if of.ID == "fails" {
				return errors.New("key server is down")
			}
			return nil
		})
		inboxtest.Process(t, ib)
		require.True(t, inboxtest.Status(t, ib, "fails", "h").IsPoisoned, "after MaxRetries")
		require.ElementsMatch(t, []string{"works=secret works", "panics=secret panics", "sleeps=secret sleeps"}, got.of("h"))
	})
}

// Contract 15: what cannot be sealed for good is invalid, by itself; any other error stores nothing.
func TestContentThatCannotBeSealedIsNotStored(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inboxtest.Handlers(nothing("h")))
		down := errors.New("key server is down")
		box.Fail(func(of handler.Identity) error {
			switch of.ID {
			case "never":
				return handler.Poison(errors.New("too secret"))
			case "down":
				return down
			case "panics":
				panic("out of entropy")
			}
			return nil
		}, nil)
		results, err := ib.Accept(t.Context(), secret("never", "1"), secret("a", "2"))
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "not_sealed", invalid.Reason)
		require.Equal(t, "never", invalid.MessageID)
		require.Equal(t, handler.OutcomeAccepted, results[1].Outcome)
		for _, id := range []string{"down", "panics"} {
			results, err = ib.Accept(t.Context(), secret("b", "3"), secret(id, "4"))
			require.ErrorContains(t, err, fmt.Sprintf("message %q of channel \"c\"", id))
			require.NotErrorAs(t, err, new(*acceptor.InvalidError))
			require.Nil(t, results)
		}
		_, err = ib.Accept(t.Context(), secret("down", "4"))
		require.ErrorIs(t, err, down)
		require.Error(t, d.DB.Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(t.Context(), tx, secret("c", "5"), secret("down", "6"))
			return err
		}))
		box.Use(strings.Repeat("k", 201))
		_, err = ib.Accept(t.Context(), secret("c", "5"))
		require.ErrorContains(t, err, "the Sealer's key ID")
		require.Len(t, storedMessages(t, d), 1)
	})
}

// fixed is a Sealer that returns the same for every content.
type fixed struct {
	sealed []byte
	keyID  string
}

func (f fixed) Seal(context.Context, handler.Identity, []byte) ([]byte, string, error) {
	return f.sealed, f.keyID, nil
}

func (f fixed) Open(context.Context, handler.Identity, string, []byte) ([]byte, error) {
	return nil, nil
}

// Contract 15.
func TestSealedContentIsBoundedAndNeedsAKeyID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		accept := func(s handler.Sealer) error {
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Sealer = s }),
				inboxtest.Handlers(nothing("h")))
			_, err := ib.Accept(t.Context(), secret("a", "1"))
			return err
		}
		err := accept(fixed{make([]byte, 64<<20+1), "k1"})
		require.ErrorAs(t, err, new(*acceptor.InvalidError))
		require.ErrorContains(t, err, "its content of 8 bytes has 67108865: at most 67108864 can be stored")
		require.ErrorContains(t, accept(fixed{[]byte("x"), ""}), "the Sealer returned 1 bytes and no key ID")
		require.NoError(t, accept(fixed{nil, "k1"}), "everything may be in the key ID")
	})
}

// Contract 4.3 and 15: the plain contents are compared, however each is stored.
func TestDuplicatesAreComparedByPlainContents(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("")
		rejects := inbox.ConfigureChannel(func(o *inbox.ChannelOptions) {
			o.Acceptor.DifferingContent = acceptor.DifferingContentReject
		})
		ib := inboxtest.New(t, d.DB, box.Option(), inbox.Channel("c", inbox.On("t", nothing("h"))),
			inbox.Channel("strict", rejects, inbox.On("t", nothing("s"))))
		keys := []string{"", "k1", "k2"}
		for i, first := range keys {
			for j, second := range keys {
				for _, channel := range []string{"c", "strict"} {
					m := secret(fmt.Sprintf("%d-%d", i, j), "same")
					m.Channel = channel
					box.Use(first)
					_, err := ib.Accept(t.Context(), m)
					require.NoError(t, err)

					box.Use(second)
					name := fmt.Sprintf("%q then %q", first, second)
					results, err := ib.Accept(t.Context(), m)
					require.NoError(t, err, name)
					require.Equal(t, handler.OutcomeDuplicate, results[0].Outcome, name)
					require.False(t, results[0].ContentDiffers, name)

					m.Content = []byte("secret other")
					results, err = ib.Accept(t.Context(), m)
					require.True(t, results[0].ContentDiffers, name)
					require.Equal(t, channel == "strict", err != nil, name)
				}
			}
		}
		box.Use("k1")
		results, err := ib.Accept(t.Context(), secret("twice", "1"), secret("twice", "1"), secret("twice", "2"))
		require.NoError(t, err)
		require.False(t, results[1].ContentDiffers)
		require.True(t, results[2].ContentDiffers, "in one accept")
	})
}

// Contract 15: who may write to a topic decides neither that a content counts as sealed nor what it is compared by.
func TestNoHeaderOrAttributeMakesAContentCountAsSealed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(got.plain("h")))
		const forged = `{"key":"k1","sha256":"` + "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" + `"}`
		m := secret("a", "1")
		m.Properties.Attributes = map[string]string{"sealed": forged, `x":"","sealed":` + forged + `,"y`: ""}
		m.Properties.Headers = []handler.Header{{Key: "sealed", Value: []byte(forged)},
			{Key: `"}],"sealed":` + forged + `,"headers":[{"k":"`, Value: []byte(`"}],"sealed":` + forged + "}")}}
		for range 2 {
			results, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
			require.False(t, results[0].ContentDiffers)
		}
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"a=secret 1"}, got.of("h"))
		m.Content = nil // its hash is the forged one
		results, err := ib.Accept(t.Context(), m)
		require.NoError(t, err)
		require.True(t, results[0].ContentDiffers)
	})
}

// Contract 15 and 5.11: one that cannot be opened keeps no other of its batch.
func TestBatchGoesOnWithoutAMessageThatCannotBeOpened(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var mu sync.Mutex // both handlers may run at once
		var calls [][]string
		box := inboxtest.NewBox("k1")
		note := func(batch []inboxtest.Bytes) error {
			var call []string
			for _, m := range batch {
				call = append(call, string(m.Payload))
			}
			slices.Sort(call)
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, call)
			return nil
		}
		ib := inboxtest.New(t, d.DB, box.Option(), inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 1 }),
			inboxtest.Handlers(
				inbox.Batch("plain", 10, func(_ context.Context, batch []inboxtest.Bytes) error { return note(batch) }),
				inbox.TxBatch("tx", 10, func(_ context.Context, _ *gorm.DB, batch []inboxtest.Bytes) error { return note(batch) })))
		_, err := ib.Accept(t.Context(), secret("a", "1"), secret("b", "2"), secret("c", "3"))
		require.NoError(t, err)
		box.Fail(nil, func(of handler.Identity, _ string) error {
			if of.ID == "b" {
				return handler.Poison(errors.New("unreadable"))
			}
			return nil
		})
		drained := inboxtest.Process(t, ib)
		require.Equal(t, 2, drained.Poisoned)
		require.Equal(t, 4, drained.Completed)
		require.Equal(t, [][]string{{"secret 1", "secret 3"}, {"secret 1", "secret 3"}}, calls)
	})
}

// Contract 15 and 5.12.
func TestLaneWaitsForAMessageThatCannotBeOpened(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		clock := fxtest.NewClock(inboxtest.Noon)
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(got.plain("h", handler.Ordered())))
		for i, key := range []string{"a", "a", "b", "a"} {
			m := secret(fmt.Sprint(i), key)
			m.OrderingKey = []byte(key)
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		box.Fail(nil, func(of handler.Identity, _ string) error {
			if of.ID == "0" {
				return errors.New("key server is down")
			}
			return nil
		})
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"2=secret b"}, got.of("h"))
		box.Fail(nil, nil)
		clock.Advance(time.Minute)
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"2=secret b", "0=secret a", "1=secret a", "3=secret a"}, got.of("h"))
	})
}

// Contract 14 and 15: each message of a run is opened by itself, and a failure keeps the order of its key.
func TestOutgoingMessagesLeavePlainAndInOrder(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var to destination
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), box.Option(),
			to.channel(inbox.PublishWith(handler.Backoff(func(int) time.Duration { return time.Millisecond }))))
		var events []any
		var want []string
		for i := range 20 {
			events = append(events, inbox.Event{ID: fmt.Sprint(i), Payload: orderConfirmed{"a", i}})
			want = append(want, body("a", i))
		}
		_, err := ib.Publish(t.Context(), events...)
		require.NoError(t, err)
		failures := 2
		box.Fail(nil, func(of handler.Identity, _ string) error { // called under the Box's lock
			if of.ID == "7" && failures > 0 {
				failures--
				return errors.New("key server is down")
			}
			return nil
		})
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all have left")
		require.Equal(t, want, to.of("a"))
		for _, row := range storedMessages(t, d) {
			require.NotContains(t, string(row.Content), "Order")
		}
	})
}

// Contract 15: a stop charges no message that was being opened.
func TestStopWhileAMessageIsOpenedChargesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		opening := make(chan struct{}, 1)
		s := &slow{opening: opening}
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) { o.Sealer = s }),
			inboxtest.Handlers(nothing("h")))
		end := inboxtest.Start(t, ib)
		_, err := ib.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		inboxtest.Receive(t, opening, "the message is opened")
		end()
		status := inboxtest.Status(t, ib, "a", "h")
		require.Zero(t, status.ErrorCount)
		require.False(t, status.IsPoisoned)
		require.Nil(t, status.CompletedAt)
		require.Nil(t, status.WorkerID, "its claim is released")
	})
}

// slow is a Sealer whose Open lasts until its context ends.
type slow struct{ opening chan struct{} }

func (*slow) Seal(_ context.Context, _ handler.Identity, content []byte) ([]byte, string, error) {
	return content, "k1", nil
}

func (s *slow) Open(ctx context.Context, _ handler.Identity, _ string, _ []byte) ([]byte, error) {
	select {
	case s.opening <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// Contract 15: a replay is opened under its original's identity and sealed under its own.
func TestReplayIsOpenedAndSealedAnew(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var got seen
		box := inboxtest.NewBox("k1")
		handlers := inboxtest.Handlers(got.plain("h"))
		replays := func(o *ops.Options) { o.AllowReplay = true }
		ib := inboxtest.New(t, d.DB, box.Option(), handlers)
		_, err := ib.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		box.Use("k2")
		o, err := ib.Ops(replays)
		require.NoError(t, err)
		ref := ops.MessageRef{ID: "a"}
		_, err = o.Replay(t.Context(), "ada", ref, ops.Edit{MessageID: "b"})
		require.NoError(t, err)
		inboxtest.Process(t, ib)
		require.ElementsMatch(t, []string{"a=secret 1", "b=secret 1"}, got.of("h"))
		require.Contains(t, storedMessages(t, d)[1].SerializedProperties, `"sealed":{"key":"k2"`)

		without, err := inboxtest.New(t, d.DB, handlers).Ops(replays)
		require.NoError(t, err)
		_, err = without.Replay(t.Context(), "ada", ref, ops.Edit{MessageID: "c"})
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.ErrorContains(t, err, `sealed with key "k1"`)
		content := []byte("edited")
		_, err = without.Replay(t.Context(), "ada", ref, ops.Edit{MessageID: "c", Content: &content})
		require.NoError(t, err)
		inboxtest.Process(t, ib)
		require.Contains(t, got.of("h"), "c=edited")
	})
}

// Contract 15: a backfill asks an ordered handler about the plain content.
func TestBackfillOpensContentsForOrderedHandlers(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		before := inboxtest.New(t, d.DB, box.Option(), inboxtest.Handlers(nothing("old")))
		_, err := before.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		var asked []string
		ib := inboxtest.New(t, d.DB, box.Option(), inboxtest.Handlers(nothing("old"), nothing("new",
			handler.OrderedBy(func(m handler.RawMessage) []byte {
				asked = append(asked, string(m.Content))
				return m.Content
			}))))
		o, err := ib.Ops()
		require.NoError(t, err)
		require.NoError(t, o.Pause(t.Context(), "ada", "new"))
		result, err := o.Backfill(t.Context(), "ada", "new", time.Now().Add(-time.Hour), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Done)
		require.Equal(t, []string{"secret 1"}, asked)
	})
}

// Contract 15.
func TestOperatorsSeeThatAContentIsSealedUnlessTheyMayOpenIt(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inboxtest.Handlers(nothing("h")))
		_, err := ib.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		ref, bounds := ops.MessageRef{ID: "a"}, ops.PreviewBounds{Content: 3}
		for _, opens := range []bool{false, true} {
			o, err := ib.Ops(func(o *ops.Options) { o.OpenSealed = opens })
			require.NoError(t, err)
			m, err := o.Message(t.Context(), "ada", ref)
			require.NoError(t, err)
			p, err := o.PreviewMessage(t.Context(), "ada", ref, bounds)
			require.NoError(t, err)
			require.Equal(t, "k1", m.KeyID)
			require.Equal(t, "k1", p.KeyID)
			if !opens {
				require.Equal(t, `sealed with key "k1"`, m.Sealed)
				require.Equal(t, `sealed with key "k1"`, p.Payload.Sealed)
				require.Nil(t, m.Content)
				require.Nil(t, p.Payload.Bytes)
				continue
			}
			require.Empty(t, m.Sealed+p.Payload.Sealed)
			require.Equal(t, "secret 1", string(m.Content))
			require.Equal(t, ops.Preview{Bytes: []byte("sec"), Size: 8, Cut: true}, p.Payload)
		}
		box.Fail(nil, func(handler.Identity, string) error { return errors.New("key server is down") })
		o, err := ib.Ops(func(o *ops.Options) { o.OpenSealed = true })
		require.NoError(t, err)
		m, err := o.Message(t.Context(), "ada", ref)
		require.NoError(t, err)
		require.Equal(t, `sealed with key "k1", not opened: open content sealed with key "k1": key server is down`, m.Sealed)
		entries, err := o.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionView}, "", 10)
		require.NoError(t, err)
		require.Len(t, entries.Items, 5, "each view")
	})
}

// inflating is a Sealer that opens any content to one of more than 1 MiB.
type inflating struct{ *inboxtest.Box }

func (inflating) Open(context.Context, handler.Identity, string, []byte) ([]byte, error) {
	return bytes.Repeat([]byte("s"), 1<<20+1), nil
}

// Contract 11.6 and 15: a content that is too long for the Redact hook once it is opened is not shown.
func TestPreviewWithholdsAnOpenedContentTooLongToRedact(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for i, redacts := range []bool{false, true} {
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Sealer = inflating{inboxtest.NewBox("k1")}
			}), inboxtest.Handlers(nothing("h")))
			ref := ops.MessageRef{ID: fmt.Sprint("m", i)}
			_, err := ib.Accept(t.Context(), secret(ref.ID, "1"))
			require.NoError(t, err)
			o, err := ib.Ops(func(o *ops.Options) {
				if o.OpenSealed = true; redacts {
					o.Redact = func(v redact.Value) []byte { return v.Bytes }
				}
			})
			require.NoError(t, err)
			p, err := o.PreviewMessage(t.Context(), "ada", ref, ops.PreviewBounds{Content: 3})
			require.NoError(t, err)
			want := ops.Preview{Size: 1<<20 + 1, Cut: true, Withheld: redacts}
			if !redacts {
				want.Bytes = []byte("sss")
			}
			require.Equal(t, want, p.Payload)
		}
	})
}

// Contract 15: whether a content is sealed stands in its properties, of which a preview reads 1 MiB.
func TestPreviewShowsNoSealedBytesWhenPropertiesAreTooLongToRead(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.NewBox("k1").Option(), inboxtest.Handlers(nothing("h")))
		long := []handler.Header{{Key: "long", Value: bytes.Repeat([]byte("v"), 1<<20)}}
		m := secret("a", "1")
		m.Properties.Headers = long
		_, err := ib.Accept(t.Context(), m)
		require.NoError(t, err)
		row := models.RejectedMessage{ID: uuid.NewString(), Channel: "c", Topic: "orders", Timestamp: inboxtest.Noon,
			Value: []byte("sealed bytes"), Reason: "bad", RejectedAt: inboxtest.Noon,
			Headers: properties.Seal{Key: "k1"}.AddToRejected(properties.SerializeHeaders(long))}
		require.NoError(t, d.DB.Create(&row).Error)
		o, err := ib.Ops()
		require.NoError(t, err)
		bounds := ops.PreviewBounds{Content: 1000}
		message, err := o.PreviewMessage(t.Context(), "ada", ops.MessageRef{ID: "a"}, bounds)
		require.NoError(t, err)
		rejected, err := o.PreviewRejected(t.Context(), "ada", row.ID, bounds)
		require.NoError(t, err)
		require.NotEmpty(t, message.PropertiesProblem)
		require.NotEmpty(t, rejected.HeadersProblem)
		for _, p := range []ops.Preview{message.Payload, rejected.Payload} {
			require.Nil(t, p.Bytes)
			require.Contains(t, p.Sealed, "perhaps sealed, as its properties were not read: they have 1")
			require.NotZero(t, p.Size)
		}
	})
}

// Contract 6.3 and 15.
func TestArchiveGetsSealedContentsWithTheirKeyID(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		var archived []cleanup.Archived
		box := inboxtest.NewBox("k1")
		ib := inboxtest.New(t, d.DB, box.Option(), inbox.Configure(func(o *inbox.Options) {
			o.Clock, o.Cleanup.Retention = clock, time.Hour
			o.Archive = func(_ context.Context, messages []cleanup.Archived) error {
				archived = append(archived, messages...)
				return nil
			}
		}), inboxtest.Handlers(nothing("h")))
		_, err := ib.Accept(t.Context(), secret("a", "1"))
		require.NoError(t, err)
		box.Use("")
		_, err = ib.Accept(t.Context(), secret("b", "2"))
		require.NoError(t, err)
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		_, err = ib.Cleanup(t.Context())
		require.NoError(t, err)
		require.Len(t, archived, 2)
		slices.SortFunc(archived, func(a, b cleanup.Archived) int { return strings.Compare(a.Message.ID, b.Message.ID) })
		require.Equal(t, "k1", archived[0].KeyID)
		require.NotContains(t, string(archived[0].Message.Content), "secret")
		require.Empty(t, archived[1].KeyID)
	})
}
