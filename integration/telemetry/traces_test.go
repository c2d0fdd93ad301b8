package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// producer returns the IDs of a producer's span n, and the header that carries it.
func producer(n int) (traceID, spanID, header string) {
	traceID, spanID = fmt.Sprintf("%032x", 0xabc000+n), fmt.Sprintf("%016x", 0xdef000+n)
	return traceID, spanID, "00-" + traceID + "-" + spanID + "-01"
}

func carrying(id, traceparent string) handler.RawMessage {
	m := inboxtest.Message(id)
	m.Properties.Headers = []handler.Header{{Key: "Traceparent", Value: []byte(traceparent)},
		{Key: "baggage", Value: []byte("tenant=acme")}}
	return m
}

func linked(span trace.ReadOnlySpan) (ids []string) {
	for _, link := range span.Links() {
		ids = append(ids, link.SpanContext.SpanID().String())
	}
	return ids
}

func id(span trace.ReadOnlySpan) string      { return span.SpanContext().SpanID().String() }
func traceOf(span trace.ReadOnlySpan) string { return span.SpanContext().TraceID().String() }

func acceptAll(t *testing.T, ib *inbox.Inbox, messages ...handler.RawMessage) {
	t.Helper()
	_, err := ib.Accept(context.Background(), messages...)
	require.NoError(t, err)
}

func TestTraceReachesFromProducerToHandlerSpans(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		seen, provider, option := newSpans(t)
		own := func(ctx context.Context, name string) {
			require.Equal(t, "acme", baggage.FromContext(ctx).Member("tenant").Value(), "the producer's baggage")
			_, span := provider.Tracer("application").Start(ctx, name)
			span.End()
		}
		ib := inboxtest.New(t, d.DB, option, w3c, inboxtest.Handlers(
			inboxtest.Do("plain", func(ctx context.Context, _ inboxtest.Bytes) error { own(ctx, "in plain"); return nil }),
			inboxtest.Tx("tx", func(ctx context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				own(ctx, "in tx")
				own(tx.Statement.Context, "by its session")
				return nil
			}),
			inboxtest.Tx("group", func(ctx context.Context, _ *gorm.DB, _ inboxtest.Bytes) error {
				own(ctx, "in group")
				return nil
			}, handler.TxGroup(5)),
		))
		traceID, spanID, header := producer(1)
		acceptAll(t, ib, carrying("m1", header))
		inboxtest.Process(t, ib)

		accept := seen.named("accept c")[0]
		require.Equal(t, telemetry.Version(), accept.InstrumentationScope().Version)
		require.Equal(t, traceID, traceOf(accept))
		require.Equal(t, spanID, accept.Parent().SpanID().String())
		require.Equal(t, []string{spanID}, linked(accept))
		require.Equal(t, api.SpanKindConsumer, accept.SpanKind())
		require.Equal(t, map[string]string{"inbox.name": "test", "inbox.channel": "c", "messaging.operation.name": "accept",
			"messaging.operation.type": "receive", "messaging.system": "inbox", "messaging.message.id": "m1",
			"inbox.message.type": "t", "messaging.destination.name": "c"},
			attributesOf(accept))
		for key, inner := range map[string][]string{"plain": {"in plain"}, "tx": {"in tx", "by its session"},
			"group": {"in group"}} {
			attempts := seen.named("process " + key)
			require.Len(t, attempts, 1)
			attempt := attempts[0]
			require.Equal(t, traceID, traceOf(attempt))
			require.Equal(t, spanID, attempt.Parent().SpanID().String())
			require.Equal(t, []string{id(accept)}, linked(attempt), "to its accept")
			require.Equal(t, codes.Unset, attempt.Status().Code)
			attributes := attributesOf(attempt)
			require.Equal(t, []string{key, "m1", "1", "completed", "c"},
				[]string{attributes["inbox.handler.key"], attributes["messaging.message.id"],
					attributes["inbox.attempt"], attributes["inbox.outcome"], attributes["messaging.destination.name"]})
			for _, name := range inner {
				require.Equal(t, id(attempt), seen.named(name)[0].Parent().SpanID().String(), name)
			}
		}
		require.Equal(t, len(seen.Started()), len(seen.Ended()))
	})
}

// TestProducerBaggageDoesNotReachHandlersByDefault proves contract 12: what a producer puts into
// its baggage does not reach handlers, unless the application asks for it.
func TestProducerBaggageDoesNotReachHandlersByDefault(t *testing.T) {
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		seen, _, option := newSpans(t)
		ib := inboxtest.New(t, d.DB, option, inboxtest.Handlers(inboxtest.Do("h",
			func(ctx context.Context, _ inboxtest.Bytes) error {
				require.Empty(t, baggage.FromContext(ctx).Members())
				return nil
			})))
		traceID, spanID, header := producer(1)
		acceptAll(t, ib, carrying("m1", header))
		inboxtest.Process(t, ib)
		attempts := seen.named("process h")
		require.Len(t, attempts, 1)
		require.Equal(t, traceID, traceOf(attempts[0]))
		require.Equal(t, spanID, attempts[0].Parent().SpanID().String())
		require.Equal(t, codes.Unset, attempts[0].Status().Code)
	})
}

func TestMalformedContextBeginsANewTrace(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		seen, _, option := newSpans(t)
		ib := inboxtest.New(t, d.DB, option, w3c, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		for i, header := range []string{"", "nonsense", "00-00000000000000000000000000000000-0000000000000000-01",
			"\xff\x00"} {
			acceptAll(t, ib, carrying(fmt.Sprint("m", i), header))
		}
		inboxtest.Process(t, ib)
		accepts, traces := seen.named("accept c"), map[string]bool{}
		require.Len(t, accepts, 4)
		for _, accept := range accepts {
			require.False(t, accept.Parent().IsValid())
			require.Empty(t, accept.Links())
			traces[traceOf(accept)] = true
		}
		require.Len(t, traces, 4)
		attempts := seen.named("process h")
		require.Len(t, attempts, 4)
		for _, attempt := range attempts {
			require.True(t, traces[traceOf(attempt)], "the accept's, in want of the producer's")
			require.Equal(t, attempt.Parent().SpanID().String(), linked(attempt)[0])
		}
	})
}

func TestBatchIsOneSpanLinkedToItsProducers(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		seen, _, option := newSpans(t)
		ib := inboxtest.New(t, d.DB, option, w3c, inboxtest.Handlers(
			inboxtest.Do("each", inboxtest.Nothing),
			inbox.Batch("batch", 10, func(context.Context, []inboxtest.Bytes) error { return nil })))
		var messages []handler.RawMessage
		var producers []string
		for i := range 3 {
			_, spanID, header := producer(i)
			messages, producers = append(messages, carrying(fmt.Sprint("m", i), header)), append(producers, spanID)
		}
		acceptAll(t, ib, messages...)
		inboxtest.Process(t, ib)

		accept := seen.named("accept c")
		require.Len(t, accept, 1)
		require.False(t, accept[0].Parent().IsValid())
		require.Equal(t, producers, linked(accept[0]))
		require.Equal(t, map[string]string{"inbox.name": "test", "inbox.channel": "c", "messaging.batch.message_count": "3",
			"messaging.operation.name": "accept",
			"messaging.operation.type": "receive", "messaging.system": "inbox", "messaging.destination.name": "c"},
			attributesOf(accept[0]))
		each := seen.named("process each")
		require.Len(t, each, 3)
		for _, attempt := range each {
			require.Contains(t, producers, attempt.Parent().SpanID().String())
			require.Equal(t, []string{id(accept[0])}, linked(attempt))
		}
		batch := seen.named("process batch")
		require.Len(t, batch, 1, "one call")
		require.False(t, batch[0].Parent().IsValid())
		require.Equal(t, []string{id(accept[0])}, linked(batch[0]))
		attributes := attributesOf(batch[0])
		require.Equal(t, []string{"3", "inbox", "c"}, []string{attributes["messaging.batch.message_count"],
			attributes["messaging.system"], attributes["messaging.destination.name"]})
	})
}

func TestSpansOfFailedAttemptsHaveAnErrorStatus(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		seen, _, option := newSpans(t)
		inboxtest.Exec(t, d.DB, `CREATE TABLE parents (id integer PRIMARY KEY)`)
		if d.Dialect == "postgres" {
			inboxtest.Exec(t, d.DB, `CREATE TABLE children (parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`)
		}
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, option, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				switch m.ID {
				case "fail":
					return errors.New("no stock")
				case "panic":
					panic("no stock")
				case "slow":
					<-ctx.Done()
					return ctx.Err()
				case "snooze":
					return handler.Snooze(time.Hour)
				case "commit":
					if d.Dialect == "postgres" {
						return tx.Exec(`INSERT INTO children VALUES (1)`).Error
					}
					return errors.New("foreign key")
				}
				return nil
			}, handler.Timeout(time.Second))))
		want := map[string][2]string{"fail": {"failed", "_OTHER"}, "panic": {"failed", "panic"},
			"slow": {"failed", "timeout"}, "snooze": {"snoozed", ""}, "commit": {"failed", "_OTHER"}, "good": {"completed", ""}}
		for name := range want {
			inboxtest.Accept(t, ib, name)
		}
		inboxtest.Process(t, ib)
		attempts := seen.named("process h")
		require.Len(t, attempts, len(want))
		for _, attempt := range attempts {
			attributes := attributesOf(attempt)
			name := attributes["messaging.message.id"]
			require.Equal(t, want[name], [2]string{attributes["inbox.outcome"], attributes["error.type"]}, name)
			if want[name][0] != "failed" {
				require.Equal(t, codes.Unset, attempt.Status().Code, name)
				continue
			}
			require.Equal(t, codes.Error, attempt.Status().Code, "%s: also if only the commit failed", name)
			require.NotEmpty(t, attempt.Status().Description)
			require.Len(t, attempt.Events(), 1, "the error")
			require.Equal(t, "exception", attempt.Events()[0].Name)
			recorded := map[string]string{}
			for _, a := range attempt.Events()[0].Attributes {
				recorded[string(a.Key)] = a.Value.String()
			}
			require.Equal(t, attempt.Status().Description, recorded["exception.message"])
			require.NotContains(t, attempt.Status().Description, "goroutine ", "a stack is recorded once")
			if name == "panic" {
				require.Equal(t, "handler panicked: no stock", recorded["exception.message"])
				require.Contains(t, recorded["exception.stacktrace"], "TestSpansOfFailedAttemptsHaveAnErrorStatus")
			} else {
				require.NotContains(t, recorded, "exception.stacktrace")
			}
		}
		clock.Advance(time.Minute)
		inboxtest.Process(t, ib)
		require.Len(t, seen.named("process h"), len(want)+4, "a span per attempt")

		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_messages RENAME TO away`)
		_, err := ib.Accept(t.Context(), inboxtest.Message("m"))
		require.Error(t, err)
		accepts := seen.named("accept c")
		require.Equal(t, codes.Error, accepts[len(accepts)-1].Status().Code)
		require.Equal(t, len(seen.Started()), len(seen.Ended()))
	})
}

func TestAcceptIsAChildOfItsCallersSpan(t *testing.T) {
	seen, provider, option := newSpans(t)
	db := fxtest.OpenDB(t)
	ib := inboxtest.New(t, db, option, w3c, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
	ctx, request := provider.Tracer("application").Start(t.Context(), "request")
	_, err := ib.Accept(ctx, inboxtest.Message("m1"))
	require.NoError(t, err)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		_, err := ib.AcceptTx(ctx, tx, inboxtest.Message("m2"))
		return err
	}))
	request.End()
	for _, accept := range seen.named("accept c") {
		require.Equal(t, request.SpanContext().SpanID(), accept.Parent().SpanID())
	}
	inboxtest.Process(t, ib)
	attempts := seen.named("process h")
	require.Len(t, attempts, 2)
	for _, attempt := range attempts {
		require.Equal(t, request.SpanContext().TraceID(), attempt.SpanContext().TraceID(),
			"what the application publishes goes on in its trace")
	}
}

func TestPropertiesAreStoredUnchangedWithoutTracing(t *testing.T) {
	_, _, header := producer(1)
	stored := func(opts ...inbox.Option) string {
		ib := inboxtest.New(t, fxtest.OpenDB(t), append(opts, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))...)
		m := carrying("m1", header)
		m.Properties.Traceparent = "the application's"
		acceptAll(t, ib, m)
		var text string
		require.NoError(t, ib.DB().Table(ib.Tables().Messages()).Select("serialized_properties").Scan(&text).Error)
		return text
	}
	plain := stored()
	require.NotContains(t, plain, "accept_traceparent")
	require.Equal(t, 1, strings.Count(plain, "00-"))
	_, _, option := newSpans(t)
	require.Contains(t, stored(option, w3c), `"accept_traceparent":"00-`)
	never := trace.NewTracerProvider(trace.WithSampler(trace.NeverSample()))
	require.Equal(t, plain, stored(inbox.Configure(func(o *inbox.Options) {
		o.TracerProvider = never
	}), w3c), "no one searches for an unsampled trace")
}
