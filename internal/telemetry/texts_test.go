package telemetry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/redact"
)

// exporting records what an exporter would get.
type exporting struct {
	noop.TracerProvider
	seen *[]string
}

func (e exporting) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return tracer{seen: e.seen}
}

type tracer struct {
	noop.Tracer
	seen *[]string
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(opts...)
	*t.seen = append(*t.seen, name)
	s := span{seen: t.seen}
	s.SetAttributes(cfg.Attributes()...)
	return ctx, s
}

type span struct {
	noop.Span
	seen *[]string
}

func (s span) IsRecording() bool { return true }

func (s span) SetAttributes(attributes ...attribute.KeyValue) {
	for _, a := range attributes {
		*s.seen = append(*s.seen, a.Value.String())
	}
}

func (s span) SetStatus(_ codes.Code, description string) { *s.seen = append(*s.seen, description) }

func (s span) AddEvent(name string, opts ...trace.EventOption) {
	*s.seen = append(*s.seen, name)
	cfg := trace.NewEventConfig(opts...)
	s.SetAttributes(cfg.Attributes()...)
}

func (s span) RecordError(err error, opts ...trace.EventOption) {
	s.AddEvent("exception", append(opts, trace.WithAttributes(attribute.String("exception.message", err.Error())))...)
}

// panicked is an error like that of a handler's panic.
type panicked struct{ value, stack string }

func (e *panicked) Error() string { return "handler panicked: " + e.value + "\n\n" + e.stack }
func (e *panicked) Trace() []byte { return []byte(e.stack) }

// Contract 12: exporters can send whatever messages and handlers bring. One string that is not
// UTF-8 would cost them all spans of a batch.
func TestSpanAttributesAreValidAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hostile := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.Map(rapid.IntRange(1990, 9000), func(n int) string {
				return strings.Repeat("日", n/3) + strings.Repeat("\xff", n%3) + strings.Repeat("é\xc3", n)
			}),
		)
		var seen []string
		i := &Instruments{cfg: Config{Inbox: "test", TracerProvider: exporting{seen: &seen}}}
		message := handler.RawMessage{Channel: hostile.Draw(t, "channel"), ID: hostile.Draw(t, "ID"),
			Type: hostile.Draw(t, "type"), Transport: hostile.Draw(t, "transport")}
		message.Properties.Channel = message.Channel
		if rapid.Bool().Draw(t, "kafka") {
			message.Properties.Kafka = &handler.KafkaCoordinates{Topic: hostile.Draw(t, "topic")}
		}
		err := errors.New(hostile.Draw(t, "error"))
		if rapid.Bool().Draw(t, "panicked") {
			err = fmt.Errorf("wrapped %s: %w", err, &panicked{hostile.Draw(t, "value"), hostile.Draw(t, "stack")})
		}
		count := rapid.IntRange(1, 3).Draw(t, "messages")
		var messages []handler.RawMessage
		var metadata []handler.Metadata
		for range count {
			messages = append(messages, message)
			metadata = append(metadata, handler.Metadata{ID: message.ID, Type: message.Type, Transport: message.Transport,
				Properties: message.Properties})
		}
		_, accept := i.StartAccept(context.Background(), message.Channel, func(yield func(*handler.RawMessage) bool) {
			for n := range messages {
				if !yield(&messages[n]) {
					return
				}
			}
		})
		accept.End(err)
		_, attempt := i.StartAttempt(context.Background(), hostile.Draw(t, "handler key"), metadata...)
		attempt.NoteOutcome("failed", Other, err)
		attempt.End()
		for _, each := range seen {
			if !utf8.ValidString(each) {
				t.Fatalf("%q is no UTF-8", each)
			}
			if n := utf8.RuneCountInString(each); n > maxText+len("process ") {
				t.Fatalf("%d characters", n)
			}
		}
	})
}

type moody struct{ calls int }

func (e *moody) Error() string {
	if e.calls++; e.calls > 1 {
		panic("asked twice")
	}
	return "fine"
}

func TestErrorsAreRecordedOnceInSpans(t *testing.T) {
	recorded := func(err error) []string {
		var seen []string
		(&Instruments{}).fail(span{seen: &seen}, redact.Value{}, err, Other)
		return seen
	}
	require.Equal(t, []string{"_OTHER", "exception", "*telemetry.panicked", "handler panicked: no stock", "goroutine 1",
		"handler panicked: no stock"},
		recorded(&panicked{"no stock", "goroutine 1"}))
	require.Equal(t, "while busy: handler panicked: a\n\nb, at last",
		recorded(fmt.Errorf("while busy: %w, at last", &panicked{"a\n\nb", "goroutine 1"}))[3])
	require.Equal(t, "first\n\nsecond", recorded(errors.New("first\n\nsecond"))[3])
	require.Equal(t, []string{"fine", "fine"}, slices.DeleteFunc(recorded(&moody{}),
		func(s string) bool { return s != "fine" }))
	require.Contains(t, recorded(&moody{calls: 1})[3], "*telemetry.moody, which panics")
}

func TestTextsAreCutAtACharacter(t *testing.T) {
	for given, want := range map[string]string{
		"":                              "",
		"é日😀":                           "é日😀",
		"a\xffb":                        "a\uFFFDb",
		strings.Repeat("é", maxText):    strings.Repeat("é", maxText),
		strings.Repeat("é", maxText+1):  strings.Repeat("é", maxText),
		strings.Repeat("😀", 3*maxText):  strings.Repeat("😀", maxText),
		strings.Repeat("日", 10*maxText): strings.Repeat("日", maxText),
	} {
		require.Equal(t, want, text(given))
	}
}

// This follows OpenTelemetry's conventions.
func TestOriginOfSeveralMessages(t *testing.T) {
	kafka := func(topic string) handler.Properties {
		return handler.Properties{Kafka: &handler.KafkaCoordinates{Topic: topic}}
	}
	of := func(add func(o *origin)) string {
		var o origin
		add(&o)
		var words []string
		for _, a := range o.attributes() {
			words = append(words, a.Value.String())
		}
		return strings.Join(words, " ")
	}
	require.Equal(t, "", of(func(*origin) {}))
	require.Equal(t, "kafka a", of(func(o *origin) { o.add("kafka", "c", kafka("a")) }), "one is no batch")
	require.Equal(t, "kafka a 2", of(func(o *origin) { o.add("kafka", "c", kafka("a")); o.add("kafka", "c", kafka("a")) }))
	require.Equal(t, "kafka 3", of(func(o *origin) {
		o.add("kafka", "c", kafka("a"))
		o.add("kafka", "c", kafka("b"))
		o.add("kafka", "c", kafka("a"))
	}))
	require.Equal(t, "inbox 2", of(func(o *origin) {
		o.add("kafka", "c", kafka("a"))
		o.add("publish", "c", handler.Properties{})
	}))
	require.Equal(t, "inbox c 2", of(func(o *origin) {
		o.add("publish", "c", handler.Properties{})
		o.add("", "c", handler.Properties{})
	}))
}
