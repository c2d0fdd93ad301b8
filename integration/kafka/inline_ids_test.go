package kafka

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// sendBodies produces records without an ID, or with this ID in a header.
func (r *directRig) sendBodies(t *testing.T, id string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		rec := record(0, id)
		rec.Value = []byte(body)
		require.NoError(t, r.kafka.Produce(topic, rec))
		r.next[place{topic, 0}]++
	}
}

// payments declares a handler of JSON bodies that counts its calls by payment.
func payments(calls map[string]int, opts ...func(handler.Message[payment]) (string, error)) *inbox.HandlerSpec {
	do := func(_ context.Context, m handler.Message[payment]) error {
		calls[m.Payload.Payment]++
		return nil
	}
	if len(opts) == 0 {
		return inbox.Func("h", do)
	}
	return inbox.Func("h", do, handler.IdempotencyKey(opts[0]))
}

type payment struct{ Payment string }

// TestInlineMessageWithoutIDIsRejected proves contract 4.4, 8.3 and 8.6: by default a message
// without ID is bad before any handler runs, as in Inbox mode.
func TestInlineMessageWithoutIDIsRejected(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "", "good", strings.Repeat("é", 201))
		ib, _ := r.run(t, settings{inline: inlined}, r.tx("h", inboxtest.Nothing))
		r.awaitCommitted(t)
		require.Equal(t, oneEach("h good"), r.effects(t))
		rows := r.rejected(t, ib)
		require.Len(t, rows, 2)
		require.Contains(t, rows[0].Reason, `message ID is missing: no header ["MessageId" "id"]`)
		require.Contains(t, rows[1].Reason, "message ID has 201 characters")
		counted := ib.Counters()
		require.EqualValues(t, []int64{1, 1, 0}, []int64{counted.Processed, counted.MissingKey, counted.Failed})
	})
}

// TestInlineMessageWithoutIDRunsEachTimeIfAllowed proves contract 4.4: if allowed, by whichever
// option, a message without ID runs without deduplication. An unusable ID is still bad.
func TestInlineMessageWithoutIDRunsEachTimeIfAllowed(t *testing.T) {
	t.Parallel()
	decoder := func(c *kafkaconsumer.Config) { c.Decoder.AllowMissingID = true }
	for name, s := range map[string]settings{
		"by the decoder": {inline: inlined, config: []func(*kafkaconsumer.Config){decoder}},
		"by the defaults": {inline: []inbox.InlineOption{inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
			o.AllowMissingID = true
		}))}},
		"by the handler": {inline: []inbox.InlineOption{inbox.InlineHandler("h", nil,
			idempotent.Configure(func(o *idempotent.Options) {
				o.AllowMissingID = true
			}))}},
	} {
		t.Run(name, func(t *testing.T) {
			onInline(t, 1, func(t *testing.T, r *directRig) {
				r.send(t, 0, "", "", "same", "same", strings.Repeat("é", 201))
				observe, logs := inboxtest.Observe()
				observed := s // s is shared by the databases' runs
				observed.options = []inbox.Option{observe}
				ib, _ := r.run(t, observed, r.tx("h", inboxtest.Nothing))
				r.awaitCommitted(t)
				require.Equal(t, map[string]int{"h ": 2, "h same": 1}, r.effects(t))
				require.Equal(t, []string{"h same"}, r.markers(t))
				require.Len(t, r.rejected(t, ib), 1)
				require.EqualValues(t, []int64{2, 1}, []int64{ib.Counters().MissingKey, ib.Counters().DuplicateSkipped})
				require.Equal(t, 1, logs.FilterMessageSnippet("message without ID").Len())
			})
		})
	}
}

// TestInlineHandlersDecideAboutMissingIDs proves contract 4.4: each handler decides for
// itself about a missing ID.
func TestInlineHandlersDecideAboutMissingIDs(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "")
		ib, _ := r.run(t, settings{inline: []inbox.InlineOption{inbox.InlineHandler("lax", nil,
			idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))}},
			r.tx("strict", inboxtest.Nothing), r.tx("lax", inboxtest.Nothing))
		r.awaitCommitted(t)
		require.Equal(t, oneEach("lax "), r.effects(t))
		rows := r.rejected(t, ib)
		require.Len(t, rows, 1)
		require.Contains(t, rows[0].Reason, `handler "strict": message ID is missing`)
		require.EqualValues(t, 2, ib.Counters().MissingKey)
	})
}

// TestInlineIdempotencyKeyIsTakenFromThePayload proves contract 4.4: the ID comes from the payload.
// If it is empty there, the channel's strategy decides.
func TestInlineIdempotencyKeyIsTakenFromThePayload(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.sendBodies(t, "", `{"payment":"a"}`, `{"payment":"a"}`)
		r.sendBodies(t, "header", `{"payment":"b"}`, `{}`, `{}`)
		r.sendBodies(t, "other header", `{"payment":"b"}`)
		r.sendBodies(t, "", `{}`, `{`, `{"payment":"refused"}`, `{"payment":"c"}`)
		calls := map[string]int{}
		ib, _ := r.run(t, settings{inline: inlined, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 3
		})}},
			payments(calls, func(m handler.Message[payment]) (string, error) {
				if m.Payload.Payment == "refused" {
					return "", errBoom
				}
				return m.Payload.Payment, nil
			}))
		r.awaitCommitted(t)
		require.Equal(t, map[string]int{"a": 1, "b": 1, "": 1, "c": 1}, calls)
		require.Equal(t, []string{"h a", "h b", "h c", "h header"}, r.markers(t))
		rows := r.rejected(t, ib)
		require.Len(t, rows, 3)
		require.Contains(t, rows[0].Reason, "message ID is missing")
		require.Contains(t, rows[1].Reason, "after 1 attempts: ")
		require.Contains(t, rows[1].Reason, "decode body", "no other attempt can decode it")
		require.Contains(t, rows[2].Reason, `after 1 attempts: poison: handler "h": option KeyBy: boom`)
	})
}

// TestInlineCompositeIDJoinsHandlerAndCorrelationID proves contract 4.4 for IDs of the form
// "{handler key}:{correlation ID}".
func TestInlineCompositeIDJoinsHandlerAndCorrelationID(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		rec := kafkatest.Record{Value: []byte("x"), Headers: []kafkatest.Header{{Key: "CorrelationId", Value: []byte("7")}}}
		require.NoError(t, r.kafka.Produce(topic, rec, rec))
		r.next[place{topic, 0}] = 2
		r.run(t, settings{inline: []inbox.InlineOption{inbox.InlineDefaults(idempotent.CompositeID(""))}},
			r.tx("a", inboxtest.Nothing), r.tx("b", inboxtest.Nothing))
		r.awaitCommitted(t)
		require.Equal(t, oneEach("a a:7", "b b:7"), r.effects(t))
		require.Equal(t, []string{"a a:7", "b b:7"}, r.markers(t))
	})
}
