package kafka

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestHandlersSeeWhenAMessageOccurred proves contract 4.5 in every delivery mode: of an event alone, of each event of a
// batch, and of a record that is no event.
func TestHandlersSeeWhenAMessageOccurred(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 5, 6, 7, 8, 9, 10e6, time.UTC)
	said := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	records := []kafkatest.Record{
		{Timestamp: made, Headers: headers("ce_specversion", "1.0", "ce_id", "binary", "ce_source", "s", "ce_type", "t",
			"ce_time", "2026-01-02T04:04:05.0000006+01:00"), Value: []byte{}},
		{Timestamp: made, Headers: headers("content-type", "application/cloudevents-batch+json"), Value: []byte(
			`[{"specversion":"1.0","id":"batch-1","source":"s","type":"t","time":"2026-01-02T03:04:05.0000006Z"},` +
				`{"specversion":"1.0","id":"batch-2","source":"s","type":"t"}]`)},
		{Timestamp: made, Value: []byte{}, Headers: headers("MessageId", "plain", "MessageType", "t")},
		{Timestamp: made, Headers: headers("ce_specversion", "1.0", "ce_id", "bad", "ce_source", "s", "ce_type", "t", "ce_time",
			"yesterday"), Value: []byte{}},
	}
	expected := map[string]time.Time{"binary": said, "batch-1": said, "batch-2": made, "plain": made}
	for mode, option := range map[string]inbox.ChannelOption{"inbox": nil, "inline": inbox.Inline(), "direct": inbox.Direct()} {
		t.Run(mode, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				kafka := kafkatest.Start(t, kafkatest.Topic(topic, 1))
				cfg := config(kafka.Brokers(), topic)
				cfg.Decoder = envelope.DecoderConfig{}
				var mu sync.Mutex
				single, batched := map[string]time.Time{}, map[string]time.Time{}
				handlers := []*inbox.HandlerSpec{inboxtest.Do("one", func(_ context.Context, m inboxtest.Bytes) error {
					mu.Lock()
					defer mu.Unlock()
					single[m.ID] = m.OccurredAt
					return nil
				})}
				if mode == "inbox" {
					handlers = append(handlers, inbox.Batch("many", 10,
						func(_ context.Context, messages []inboxtest.Bytes) error {
							mu.Lock()
							defer mu.Unlock()
							for _, m := range messages {
								batched[m.ID] = m.OccurredAt
							}
							return nil
						}))
				}
				options := []inbox.ChannelOption{inbox.Kafka(cfg), inbox.On("t", handlers...)}
				if option != nil {
					options = append(options, option)
				}
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Channel("c", options...))
				inboxtest.Start(t, ib)
				require.NoError(t, kafka.Produce(topic, records...))
				inboxtest.Eventually(t, func() bool {
					mu.Lock()
					defer mu.Unlock()
					return len(single) == len(expected) && (mode != "inbox" || len(batched) == len(expected))
				}, "all are handled")
				inboxtest.Eventually(t, func() bool { return ib.Counters().Rejected == 1 }, "the record with a bad time is kept")
				require.Equal(t, expected, single)
				if mode == "inbox" {
					require.Equal(t, expected, batched)
				}
			})
		})
	}
}
