package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// TestTombstonesAreTreatedByTheChannelsPolicy proves contract 4.5 in every delivery mode: of a tombstone with ID and
// type, one without headers, and an empty value.
func TestTombstonesAreTreatedByTheChannelsPolicy(t *testing.T) {
	t.Parallel()
	named := func(id string, value []byte) kafkatest.Record {
		return kafkatest.Record{Key: []byte("k"), Value: value, Headers: []kafkatest.Header{
			{Key: "MessageId", Value: []byte(id)}, {Key: "MessageType", Value: []byte("t")}}}
	}
	records := []kafkatest.Record{named("deleted", nil), {Key: []byte("k")}, named("empty", []byte{}),
		named("deleted too", nil)}
	const missing = `message type is missing: no header "MessageType"`
	reject := envelope.ErrTombstone.Error()
	modes := map[string][]inbox.ChannelOption{"Inbox": nil, "Inline": {inbox.Inline()}, "Direct": {inbox.Direct()}}
	for policy, want := range map[envelope.TombstonePolicy]struct {
		handled  []string // with whether it is a tombstone
		rejected []string
		empty    int64
	}{
		"":                       {handled: []string{"empty false"}, empty: 3},
		envelope.TombstoneSkip:   {handled: []string{"empty false"}, empty: 3},
		envelope.TombstoneHandle: {handled: []string{"deleted true", "empty false", "deleted too true"}, rejected: []string{missing}},
		envelope.TombstoneReject: {handled: []string{"empty false"}, rejected: []string{reject, reject, reject}},
	} {
		for mode, of := range modes {
			t.Run(fmt.Sprintf("%s, %s", mode, policy), func(t *testing.T) {
				inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
					k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
					require.NoError(t, k.Produce(topic, records...))
					var mu sync.Mutex
					var handled []string
					observe, logs := inboxtest.Observe()
					cfg := config(k.Brokers(), topic)
					cfg.Decoder = envelope.DecoderConfig{Tombstones: policy}
					ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), observe,
						inbox.Configure(func(o *inbox.Options) { o.Acceptor.HaltAtBadRecords = 2 }),
						inbox.Channel("c", append(of, inbox.Kafka(cfg),
							inbox.On("t", inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
								mu.Lock()
								defer mu.Unlock()
								handled = append(handled, fmt.Sprint(m.ID, " ", m.Properties.Kafka.Tombstone))
								require.Empty(t, m.Payload)
								return nil
							})))...))
					inboxtest.Start(t, ib)
					eventually(t, "all committed and handled", func() bool {
						mu.Lock()
						defer mu.Unlock()
						return k.Committed(group, topic)[0] == int64(len(records)) && len(handled) == len(want.handled)
					})
					require.ElementsMatch(t, want.handled, handled)
					var rejected []models.RejectedMessage
					require.NoError(t, ib.DB().Clauses(ib.Tables()).Order("record_offset").Find(&rejected).Error)
					var reasons []string
					for _, r := range rejected {
						reasons = append(reasons, r.Reason)
						require.Nil(t, r.Value)
					}
					require.Len(t, reasons, len(want.rejected))
					for i, reason := range want.rejected {
						require.Contains(t, reasons[i], reason)
					}
					require.Equal(t, want.empty, ib.Counters().EmptyRecords)
					skipped := logs.FilterMessageSnippet("tombstones").FilterField(zap.String("topic", topic)).Len()
					require.Equal(t, want.empty > 0, skipped == 1, "logged once per topic")
				})
			})
		}
	}
}

// TestRejectedTombstoneIsHandledOnceItsChannelHandlesThem proves contract 7.4: a record is accepted again by today's
// decoder.
func TestRejectedTombstoneIsHandledOnceItsChannelHandlesThem(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, kafkatest.Record{Key: []byte("k"),
			Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("1")}}}))
		with := func(policy envelope.TombstonePolicy) *inbox.Inbox {
			cfg := config(k.Brokers(), topic)
			cfg.Decoder = envelope.DecoderConfig{Type: "t", Tombstones: policy}
			return inboxtest.New(t, d.DB, inbox.Channel("c", inbox.Kafka(cfg),
				inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
		}
		ib := with(envelope.TombstoneReject)
		stop := inboxtest.Start(t, ib)
		var row models.RejectedMessage
		eventually(t, "it is kept", func() bool {
			return ib.DB().Clauses(ib.Tables()).Limit(1).Find(&row).RowsAffected == 1
		})
		stop()
		for _, policy := range []envelope.TombstonePolicy{envelope.TombstoneReject, envelope.TombstoneSkip} {
			_, err := with(policy).AcceptRejected(t.Context(), row.ID)
			require.ErrorContains(t, err, map[envelope.TombstonePolicy]string{envelope.TombstoneReject: "tombstone",
				envelope.TombstoneSkip: "the record holds no message"}[policy])
		}
		results, err := with(envelope.TombstoneHandle).AcceptRejected(t.Context(), row.ID)
		require.NoError(t, err)
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: results[0].Outcome, Handlers: 1}}, results)
	})
}

// TestRejectedEmptyValueIsNoTombstone proves contract 4.5, 7.4: an empty value that was kept is still a value.
func TestRejectedEmptyValueIsNoTombstone(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		k := kafkatest.Start(t, kafkatest.Topic(topic, 1))
		require.NoError(t, k.Produce(topic, kafkatest.Record{Key: []byte("k"), Value: []byte{}}))
		with := func(decoder envelope.DecoderConfig) *inbox.Inbox {
			cfg := config(k.Brokers(), topic)
			cfg.Decoder = decoder
			return inboxtest.New(t, d.DB, inbox.Channel("c", inbox.Kafka(cfg),
				inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
		}
		ib := with(envelope.DecoderConfig{Type: "t"}) // the record has no ID
		stop := inboxtest.Start(t, ib)
		var row models.RejectedMessage
		eventually(t, "it is kept", func() bool {
			return ib.DB().Clauses(ib.Tables()).Limit(1).Find(&row).RowsAffected == 1
		})
		stop()
		results, err := with(envelope.DecoderConfig{Type: "t", AllowMissingID: true}).AcceptRejected(t.Context(), row.ID)
		require.NoError(t, err)
		require.Len(t, results, 1)
	})
}
