package acceptor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// longTopic is as long as Kafka allows.
var longTopic = strings.Repeat("t", 249)

func TestGapIsStoredOnlyUnderContinue(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		gap := envelope.Gap{Topic: longTopic, Partition: 2, From: 20, To: 35, Reason: "removed"}
		kept := func() (rows []models.Gap) {
			require.NoError(t, d.DB.Find(&rows).Error)
			return rows
		}
		halting := receive(t, d, nil)
		disposition, err := halting.AcceptGap(t.Context(), "c", gap)
		require.NoError(t, err)
		require.Equal(t, envelope.Halt, disposition, "the default")
		require.Empty(t, kept())
		require.Zero(t, halting.counters.Load(telemetry.Gaps))

		continuing := receive(t, d, func(o *acceptor.Options) { o.OnGap = acceptor.GapContinue })
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = continuing.AcceptGap(cancelled, "c", gap)
		require.Error(t, err, "nothing may go on before it is kept")
		for range 2 {
			disposition, err = continuing.AcceptGap(t.Context(), "c", gap)
			require.NoError(t, err)
			require.Equal(t, envelope.Durable, disposition)
		}
		rows := kept()
		require.Len(t, rows, 1)
		require.Equal(t, []any{"c", longTopic, int32(2), int64(20), int64(35), "removed"},
			[]any{rows[0].Channel, rows[0].Topic, rows[0].Partition, rows[0].FromOffset, rows[0].ToOffset, rows[0].Reason})
		require.EqualValues(t, 1, continuing.counters.Load(telemetry.Gaps), "it is one gap")
	})
}

// TestLongTopicCoordinatesMakeABadID proves that coordinates in a topic with a long name make no
// ID of at most 200 characters (contract 4.4). The record is reported as bad, and the database is
// never asked to store the message. The rejected row has room for the name.
func TestLongTopicCoordinatesMakeABadID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Type: "t", ID: envelope.KafkaCoordinates()}, nil)
		require.NoError(t, err)
		record := at(7).Record
		record.Topic = longTopic
		results := r.accept(decoder.Decode("c", record))
		var tooLong *envelope.IDTooLongError
		require.ErrorAs(t, results[0].Err, &tooLong)
		require.Equal(t, len(longTopic)+len("/0/7@")+13, tooLong.Length)
		rows := r.rejected()
		require.Len(t, rows, 1)
		require.Equal(t, longTopic, rows[0].Topic)
		require.Contains(t, rows[0].Reason, "message ID has 267 characters")

		decoder, err = envelope.NewDecoder(envelope.DecoderConfig{Type: "t", ID: envelope.HeaderID("h")}, nil)
		require.NoError(t, err)
		record.Offset, record.Headers[0].Value = 8, []byte("short")
		require.Equal(t, 1, r.accept(decoder.Decode("c", record))[0].Accepted, "with another ID the topic is no trouble")
		require.Equal(t, []string{"short"}, r.messages())
	})
}
