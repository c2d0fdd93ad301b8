package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// canary is a card number as errors may quote it. No ID or time contains its digits.
const canary = "4111 1111 1111 1111"

func requireNoCanary(t *testing.T, text, where string) {
	t.Helper()
	for _, part := range []string{"1111 1111", "1111-1111", "11111111"} {
		require.NotContains(t, text, part, where)
	}
}

// lines is a log in the application's format.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

// faces are the places where an error may become visible.
type faces struct {
	log   *lines
	spans spans
	meter meter
	db    *gorm.DB
}

func newFaces(t *testing.T, db *gorm.DB) (*faces, []inbox.Option) {
	t.Helper()
	f := &faces{log: &lines{}, db: db}
	var traces, metrics inbox.Option
	f.spans, _, traces = newSpans(t)
	f.meter, metrics = newMeter(t)
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	log := zap.New(zapcore.NewCore(encoder, zapcore.AddSync(f.log), zap.DebugLevel))
	return f, []inbox.Option{inboxtest.Brisk(), traces, metrics,
		inbox.Configure(func(o *inbox.Options) { o.Logger = log })}
}

// tables returns everything that is stored, as text.
func (f *faces) tables(t *testing.T) string {
	t.Helper()
	n := models.Naming{Prefix: columns.DefaultPrefix}
	var all strings.Builder
	for _, table := range []string{n.Messages(), n.HandlerStatuses(), n.RejectedMessages(), n.Gaps(), n.Locks(),
		n.Workers(),
		n.Handlers(), n.Markers(), n.Audit(), n.Meta()} {
		var rows []map[string]any
		require.NoError(t, f.db.Session(&gorm.Session{NewDB: true}).Table(table).Find(&rows).Error)
		for _, row := range rows {
			for column, value := range row {
				if raw, ok := value.([]byte); ok {
					value = string(raw)
				}
				fmt.Fprintf(&all, "%s.%s = %v\n", table, column, value)
			}
		}
	}
	return all.String()
}

// seen returns everything that is visible outside the database, by place.
func (f *faces) seen(t *testing.T, ib *inbox.Inbox) map[string]string {
	t.Helper()
	all := map[string]string{"log": f.log.text(), "tables": f.tables(t)}
	for _, span := range f.spans.Ended() {
		all["spans"] += fmt.Sprintln(span.Name(), span.Attributes(), span.Events(), span.Status())
	}
	for name, points := range f.meter.collect(t) {
		all["metrics"] += fmt.Sprintln(name, points)
	}
	answer := httptest.NewRecorder()
	ib.ReadyHandler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/ready", nil))
	reasons, err := json.Marshal(ib.Health().Reasons)
	require.NoError(t, err)
	all["health"] = answer.Body.String() + string(reasons)
	o, err := ib.Ops()
	require.NoError(t, err)
	failures, err := o.Failures(t.Context(), ops.Filter{})
	require.NoError(t, err)
	all["failure groups"] = fmt.Sprintf("%+v", failures)
	d, err := dashboard.New(o, func(o *dashboard.Options) { o.Insecure = true })
	require.NoError(t, err)
	pages := []string{"", "messages", "failures", "rejected", "handlers", "workers", "gaps", "audit"}
	statuses, err := o.List(t.Context(), ops.Filter{}, "", ops.MaxLimit)
	require.NoError(t, err)
	for _, s := range statuses.Items {
		pages = append(pages, "message?id="+s.MessageID)
	}
	rejected, err := o.ListRejected(t.Context(), ops.RejectedFilter{}, "", ops.MaxLimit)
	require.NoError(t, err)
	for _, r := range rejected.Items {
		pages = append(pages, "rejected-message?id="+r.ID)
	}
	for _, page := range pages {
		answer := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, "http://localhost/"+page, nil)
		d.ServeHTTP(answer, request)
		require.Equal(t, http.StatusOK, answer.Code, page)
		all["dashboard"] += answer.Body.String()
	}
	return all
}

// failing is a handler that fails in every possible way, selected by the message ID.
func failing(_ context.Context, m inboxtest.Bytes) error {
	err := fmt.Errorf("card %s was declined", canary)
	switch m.ID {
	case "poison":
		return handler.Poison(err)
	case "panic":
		panic(err)
	case "late":
		if m.Attempt == 1 {
			return handler.RetryAfter(time.Millisecond, err)
		}
	case "long": // the text is cut inside the card number
		return handler.Poison(errors.New(strings.Repeat("x", columns.MaxLastError-24) + " " + canary))
	case "fails":
		return err
	}
	return nil
}

var failingIDs = []string{"poison", "panic", "late", "long", "fails"}

// badID is an ID strategy that fails for one record.
func badID(in envelope.IDInput) (string, error) {
	if id := string(in.Data); id != "bad" {
		return id, nil
	}
	return "", fmt.Errorf("the customer of card %s is unknown", strings.ReplaceAll(canary, " ", "-"))
}

// TestNoErrorShowsTextHiddenByTheHook proves contract 11.6 for all delivery modes and all policies for
// bad records.
func TestNoErrorShowsTextHiddenByTheHook(t *testing.T) {
	const declined, unknown = "card [redacted] was declined", "the customer of card [redacted] is unknown"
	for name, mode := range map[string]struct {
		channel []inbox.ChannelOption
		policy  acceptor.BadRecordPolicy
		stored  []string // what is stored of the error
		letters int
	}{
		"inbox": {nil, acceptor.BadRecordStore, []string{declined, unknown}, 0},
		"inline": {[]inbox.ChannelOption{inbox.Inline()}, acceptor.BadRecordStore, []string{declined, unknown},
			0},
		"direct": {[]inbox.ChannelOption{inbox.Direct()}, acceptor.BadRecordStore, []string{declined, unknown},
			0},
		"inbox, dead letter": {nil, acceptor.BadRecordDeadLetter, []string{declined}, 1},
		"dead letter":        {[]inbox.ChannelOption{inbox.Direct()}, acceptor.BadRecordDeadLetter, nil, 5},
		"halt":               {[]inbox.ChannelOption{inbox.Direct()}, acceptor.BadRecordHalt, []string{declined}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				broker := kafkatest.Start(t, kafkatest.Topic("orders", 1), kafkatest.Topic("letters", 1))
				f, options := newFaces(t, d.DB)
				cfg := kafkaconsumer.Config{Brokers: broker.Brokers(), Topics: []string{"orders"}, GroupID: "g",
					Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.Func(badID)}}
				if mode.policy == acceptor.BadRecordDeadLetter {
					cfg.DeadLetterTopic = "letters"
				}
				channel := append(mode.channel, inbox.Kafka(cfg), inbox.On("t", inboxtest.Do("h", failing)))
				ib := inboxtest.New(t, d.DB, append(options, inbox.Configure(func(o *inbox.Options) {
					o.Redact = redact.Common
					o.Acceptor.BadRecords = mode.policy
					o.Processor.MaxRetries = 2
					o.Processor.MaxRetries = 2
					o.Processor.MaxRetryDelay = time.Millisecond
				}), inbox.Channel("c", channel...))...)
				inboxtest.Start(t, ib)
				for _, id := range append(failingIDs, "bad", "good") {
					require.NoError(t, broker.Produce("orders", kafkatest.Record{Value: []byte(id)}))
				}
				inboxtest.Eventually(t, func() bool {
					if mode.policy == acceptor.BadRecordHalt {
						return len(ib.Health().Reasons) > 0 && strings.Contains(f.tables(t), "halted_partition")
					}
					counted := ib.Counters()
					return counted.Processed == 2 && counted.Poisoned == 4 && (name != "inbox" || counted.Rejected == 1)
				}, "all are at their end")
				for _, letter := range lettersOn(t, broker, mode.letters) {
					said := ""
					for _, h := range letter.Headers {
						requireNoCanary(t, h.Key+string(h.Value), "dead letter")
						if h.Key == kafkaconsumer.HeaderReason {
							said = string(h.Value)
						}
					}
					require.NotEmpty(t, said)
				}
				seen := f.seen(t, ib)
				for _, text := range mode.stored {
					require.Contains(t, seen["tables"], text)
				}
				require.Contains(t, seen["log"], declined)
				require.Contains(t, seen["spans"], declined)
				for where, text := range seen {
					requireNoCanary(t, text, where)
				}
			})
		})
	}
}

// lettersOn reads the first n dead letters.
func lettersOn(t *testing.T, broker *kafkatest.Kafka, n int) (letters []kafka.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: broker.Brokers(), Topic: "letters",
		MaxWait: 100 * time.Millisecond})
	defer func() { require.NoError(t, reader.Close()) }()
	for range n {
		letter, err := reader.ReadMessage(ctx)
		require.NoError(t, err)
		letters = append(letters, letter)
	}
	return letters
}

// TestPanickingHookReplacesOnlyTheText proves contract 11.6: a defect of the hook causes no
// loss, charge or repetition.
func TestPanickingHookReplacesOnlyTheText(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		f, options := newFaces(t, d.DB)
		var mu sync.Mutex
		var calls []string
		h := inboxtest.Do("h", func(ctx context.Context, m inboxtest.Bytes) error {
			mu.Lock()
			calls = append(calls, fmt.Sprint(m.ID, m.Attempt))
			mu.Unlock()
			return failing(ctx, m)
		})
		hook := inbox.Configure(func(o *inbox.Options) { o.Redact = func(redact.Value) []byte { panic(canary) } })
		ib := inboxtest.New(t, d.DB, append(options, hook, inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
		}), inboxtest.Handlers(h))...)
		inboxtest.Accept(t, ib, "good", "fails")
		inboxtest.Process(t, ib)
		require.ElementsMatch(t, []string{"good1", "fails1"}, calls)
		status := inboxtest.Status(t, ib, "fails", "h")
		require.True(t, status.IsPoisoned)
		require.Equal(t, 1, int(status.ErrorCount))
		require.Equal(t, "[not shown: the redaction hook panicked]", *status.LastError)
		require.NotNil(t, inboxtest.Status(t, ib, "good", "h").CompletedAt)
		for where, text := range f.seen(t, ib) {
			requireNoCanary(t, text, where)
		}
	})
}
