package acceptor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// repairable is an acceptor whose decoder can be repaired: until then every record is bad. It keeps
// the last record that it decoded.
type repairable struct {
	*receiving
	mu     sync.Mutex
	broken error
	id     string
	seen   envelope.Record
}

func newRepairable(t *testing.T, d *inboxtest.Database, change ...func(cfg *acceptor.Config)) *repairable {
	t.Helper()
	m := &repairable{broken: errMangled}
	decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.Plain, Type: "t", Source: "s",
		Tombstones: envelope.TombstoneHandle, ID: envelope.Func(func(in envelope.IDInput) (string, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.seen = in.Record
			return m.id, m.broken
		})}, nil)
	require.NoError(t, err)
	m.receiving = receiveBy(t, d, func(cfg *acceptor.Config) {
		cfg.Decoders = map[string]*envelope.Decoder{"c": decoder}
		for _, each := range change {
			each(cfg)
		}
	})
	return m
}

// reject stores a record as rejected and returns the row's ID.
func (m *repairable) reject(record envelope.Record) string {
	m.t.Helper()
	require.Equal(m.t, "durable bad", dispositions(m.accept(envelope.Received{Record: record, Err: errMangled})))
	rows := m.rejected()
	return rows[len(rows)-1].ID
}

func (m *repairable) repair(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id, m.broken = id, nil
}

// TestRejectedRecordIsUnchangedWhileItsDecoderIsUnavailable proves contract 7.4.
func TestRejectedRecordIsUnchangedWhileItsDecoderIsUnavailable(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var unavailable error
		decoder, err := envelope.NewDecoder(envelope.DecoderConfig{ID: envelope.KafkaCoordinates(),
			TypeOf: func(envelope.Record) (string, error) { return "t", unavailable }}, nil)
		require.NoError(t, err)
		r := receiveBy(t, d, func(cfg *acceptor.Config) { cfg.Decoders = map[string]*envelope.Decoder{"c": decoder} })
		require.Equal(t, "durable bad", dispositions(r.accept(envelope.Received{Record: at(1).Record, Err: errMangled})))
		before := r.rejected()
		unavailable = fmt.Errorf("registry: %w", envelope.ErrUnavailable)
		_, err = r.AcceptRejected(t.Context(), before[0].ID)
		require.ErrorIs(t, err, envelope.ErrUnavailable)
		require.NotErrorAs(t, err, new(*handler.StillBadError))
		require.Equal(t, before, r.rejected())
		unavailable = nil
		_, err = r.AcceptRejected(t.Context(), before[0].ID)
		require.NoError(t, err)
		require.Empty(t, r.rejected())
	})
}

// TestUnreadHeadersAreKeptByteForByte proves contract 7.4: headers are kept byte for byte,
// including those that were too many to be read.
func TestUnreadHeadersAreKeptByteForByte(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		record := at(1).Record
		// "a" is 0xff, and a header without a name is null
		record.Headers, record.RawHeaders = nil, []byte("\x04\x02a\x02\xff\x00\x01")
		id := m.reject(record)
		_, err := properties.ParseHeaders(m.rejected()[0].Headers)
		require.ErrorIs(t, err, properties.ErrRawHeaders)
		m.repair("1")
		_, err = m.AcceptRejected(context.Background(), id)
		require.NoError(t, err)
		require.Equal(t, []handler.Header{{Key: "a", Value: []byte("\xff")}, {}}, m.seen.Headers)
		require.Nil(t, m.seen.RawHeaders)
		require.Empty(t, m.rejected())
	})
}

// TestRejectedRecordIsReAcceptedOnceValid proves contract 7.4.
func TestRejectedRecordIsReAcceptedOnceValid(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		id := m.reject(at(1).Record)
		other := m.reject(at(2).Record)
		m.repair("1")
		m.woken = 0
		results, err := m.AcceptRejected(context.Background(), strings.ToUpper(id))
		require.NoError(t, err)
		require.Equal(t, []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeAccepted, Handlers: 1}}, results)
		require.Equal(t, 1, m.woken)
		require.EqualValues(t, 1, m.counters.Load(telemetry.Accepted))
		require.Equal(t, []string{"1"}, m.messages())
		rows := m.rejected()
		require.Len(t, rows, 1)
		require.Equal(t, other, rows[0].ID)

		results, err = m.AcceptRejected(context.Background(), other) // of the same message ID
		require.NoError(t, err)
		require.Equal(t, handler.OutcomeDuplicate, results[0].Outcome)
		require.Empty(t, m.rejected())
		require.Equal(t, []string{"1"}, m.messages())
	})
}

// TestStillBadRejectedRecordKeepsNewReason proves contract 7.4.
func TestStillBadRejectedRecordKeepsNewReason(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		known := inboxtest.Message("known")
		known.Source = "elsewhere"
		_, err := m.Accept(context.Background(), known)
		require.NoError(t, err)
		record := at(1).Record
		record.Value = []byte("no thanks")
		id := m.reject(record)
		for _, tc := range []struct {
			name, messageID string
			broken          error
			reason          string
			text            string
		}{
			{"undecodable", "", errors.New("worse than before"), "bad_id", "worse than before"},
			{"without ID", "", nil, "missing_id", "message ID is missing"},
			{"known with another source", "known", nil, "id_conflict", `source "elsewhere"`},
			{"refused by the database", "fine", nil, "refused_by_database", "refused_by_database"},
		} {
			if tc.reason == "refused_by_database" {
				refuse(t, d)
			}
			m.mu.Lock()
			m.id, m.broken = tc.messageID, tc.broken
			m.mu.Unlock()
			results, err := m.AcceptRejected(context.Background(), id)
			require.Nil(t, results, tc.name)
			var still *handler.StillBadError
			require.ErrorAs(t, err, &still, tc.name)
			require.Equal(t, id, still.ID, tc.name)
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid, tc.name)
			require.Equal(t, tc.reason, invalid.Reason, tc.name)
			rows := m.rejected()
			require.Len(t, rows, 1, tc.name)
			require.Contains(t, rows[0].Reason, tc.text, tc.name)
			require.Equal(t, []string{"known"}, m.messages(), tc.name)
		}
		require.EqualValues(t, 1, m.counters.Load(telemetry.Rejected), "it was rejected once")
	})
}

func TestRejectedRecordWithUnreadableHeadersStaysBad(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		m.repair("1")
		id := m.reject(at(1).Record)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_rejected_messages SET headers = '['")
		_, err := m.AcceptRejected(context.Background(), id)
		var still *handler.StillBadError
		require.ErrorAs(t, err, &still)
		require.Contains(t, m.rejected()[0].Reason, "headers")
	})
}

// TestRejectedRecordWithoutHandlerOrMessageStays proves contract 4.6, 7.4: under Ignore an unrouted
// record would be lost.
func TestRejectedRecordWithoutHandlerOrMessageStays(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := &repairable{receiving: receive(t, d, nil)} // with the default decoder
		text := func(offset int64, contentType, value string) envelope.Record {
			r := at(offset).Record
			r.Value, r.Headers = []byte(value), []handler.Header{{Key: "content-type", Value: []byte(contentType)}}
			return r
		}
		const event = `{"specversion":"1.0","id":"1","source":"/s","type":"nobody's"}`
		unrouted := m.reject(text(1, "application/cloudevents+json", event))
		_, err := m.AcceptRejected(context.Background(), unrouted)
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "unrouted", invalid.Reason)
		empty := m.reject(text(2, "application/cloudevents-batch+json", "[]"))
		_, err = m.AcceptRejected(context.Background(), empty)
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "no_message", invalid.Reason)
		require.Len(t, m.rejected(), 2)
	})
}

// TestRejectedBatchIsReAcceptedAtomically proves that a record of several messages is accepted
// as a whole: its messages that were stored when it was rejected are duplicates.
func TestRejectedBatchIsReAcceptedAtomically(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := &repairable{receiving: receive(t, d, nil)}
		record := at(1).Record
		event := func(id, typ string) string {
			return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"` + typ + `"}`
		}
		record.Headers = []handler.Header{{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}}
		record.Value = []byte("[" + event("1", "t") + "," + event("2", "t") + "," + event(strings.Repeat("x", 201), "t") +
			"]")
		id := m.reject(record)
		_, err := m.AcceptRejected(context.Background(), id)
		var still *handler.StillBadError
		require.ErrorAs(t, err, &still)
		require.Empty(t, m.messages(), "none of it")

		record.Value, record.Offset = []byte("["+event("1", "t")+","+event("2", "t")+"]"), 2
		known := inboxtest.Message("2")
		known.Source = "/s"
		_, err = m.Accept(context.Background(), known)
		require.NoError(t, err)
		results, err := m.AcceptRejected(context.Background(), m.reject(record))
		require.NoError(t, err)
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeAccepted, handler.OutcomeDuplicate},
			[]handler.AcceptOutcome{results[0].Outcome, results[1].Outcome})
		require.Equal(t, []string{"1", "2"}, m.messages())
	})
}

func TestReAcceptOfUnknownRecordOrChannelIsATypedError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		m.repair("1")
		for _, id := range []string{uuid.NewString(), "no UUID at all", "", "\xff\x00"} {
			_, err := m.AcceptRejected(context.Background(), id)
			require.ErrorIs(t, err, acceptor.ErrRejectedNotFound, id)
		}
		id := m.reject(at(1).Record)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_rejected_messages SET channel = 'gone'")
		_, err := m.AcceptRejected(context.Background(), id)
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "unknown_channel", invalid.Reason)
		require.ErrorContains(t, err, `channel "gone" is not declared`)
		require.Equal(t, "mangled", m.rejected()[0].Reason, "nothing is wrong with the record")
	})
}

// TestReAcceptRunsSynchronousRecordAgain proves contract 7.4, 7.6, 11.3: on an Inline or Direct channel the row
// survives every failure.
func TestReAcceptRunsSynchronousRecordAgain(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		id := m.reject(at(1).Record)
		typ, ran := "t", 0
		var bad, failure error
		acceptors := func(unrouted acceptor.UnroutedPolicy) *receiving {
			decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.Plain, Type: typ, Source: "s",
				ID: envelope.Func(func(envelope.IDInput) (string, error) { return "1", nil })}, nil)
			require.NoError(t, err)
			return receiveBy(t, d, func(cfg *acceptor.Config) {
				cfg.NotStored, cfg.Decoders = []string{"c"}, map[string]*envelope.Decoder{"c": decoder}
				cfg.Options.Unrouted = unrouted
				cfg.RunAgain = func(_ context.Context, channel string, received envelope.Received) (
					[]acceptor.Result, error, error) {
					require.Equal(t, []string{"c", "1"}, []string{channel, received.Messages[0].ID})
					ran++
					return []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeProcessed, Handlers: 1}}, bad, failure
				}
			})
		}
		sync := acceptors(acceptor.UnroutedIgnore)
		_, err := sync.AcceptRejectedBy(t.Context(), id, func(context.Context) error { return errMangled }, nil)
		require.ErrorIs(t, err, errMangled)
		require.Zero(t, ran, "not without the audit")
		failure = context.DeadlineExceeded
		_, err = sync.AcceptRejected(t.Context(), id)
		require.ErrorIs(t, err, failure)
		require.Equal(t, "mangled", m.rejected()[0].Reason)
		bad, failure = errors.New("bank said no"), nil
		_, err = sync.AcceptRejected(t.Context(), id)
		var still *handler.StillBadError
		require.ErrorAs(t, err, &still)
		require.Equal(t, "bank said no", m.rejected()[0].Reason)
		require.Equal(t, 2, ran)

		typ = "unknown"
		for _, policy := range []acceptor.UnroutedPolicy{acceptor.UnroutedIgnore, acceptor.UnroutedReject} {
			_, err = acceptors(policy).AcceptRejected(t.Context(), id)
			require.ErrorAs(t, err, &still)
			require.ErrorContains(t, still, `no handler for type "unknown"`)
		}
		require.Equal(t, 2, ran)

		bad = nil
		results, err := sync.AcceptRejected(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, handler.OutcomeProcessed, results[0].Outcome)
		require.Empty(t, m.rejected())
		require.Empty(t, m.messages())
	})
}

// TestRunKeepsItsResultAfterTheCallerLeaves proves contract 7.6: what has run has run.
func TestRunKeepsItsResultAfterTheCallerLeaves(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		id := m.reject(at(1).Record)
		m.repair("1")
		for _, bad := range []error{errors.New("bank said no"), nil} {
			ctx, leave := context.WithCancel(t.Context())
			direct := receiveBy(t, d, func(cfg *acceptor.Config) {
				cfg.NotStored = []string{"c"}
				cfg.RunAgain = func(context.Context, string, envelope.Received) ([]acceptor.Result, error, error) {
					leave()
					return nil, bad, nil
				}
				decoder, err := envelope.NewDecoder(envelope.DecoderConfig{Mode: envelope.Plain, Type: "t", Source: "s",
					ID: envelope.Func(func(envelope.IDInput) (string, error) { return "1", nil })}, nil)
				require.NoError(t, err)
				cfg.Decoders = map[string]*envelope.Decoder{"c": decoder}
			})
			_, err := direct.AcceptRejected(ctx, id)
			if bad == nil {
				require.NoError(t, err)
				require.Empty(t, m.rejected())
				continue
			}
			require.ErrorIs(t, err, bad)
			require.Equal(t, bad.Error(), m.rejected()[0].Reason)
		}
	})
}

func TestOneOfConcurrentReAcceptsWins(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		id := m.reject(at(1).Record)
		m.repair("1")
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a")))
		inboxtest.OneWins(t, 8, acceptor.ErrRejectedNotFound, func(int) error {
			_, err := m.AcceptRejected(context.Background(), id)
			return err
		})
		require.Equal(t, []string{"1"}, m.messages())
		require.Len(t, inboxtest.Statuses(t, ib), 1)
	})
}

func TestDatabaseOutageLeavesRejectedRecordUnchanged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		id := m.reject(at(1).Record)
		m.repair("1")
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		_, err := m.AcceptRejected(ctx, id)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, "mangled", m.rejected()[0].Reason)
		_, err = m.AcceptRejected(context.Background(), id)
		require.NoError(t, err)
	})
}

var anyBytes = rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.Just([]byte{0}),
	rapid.Just([]byte("\xff\xfe")), rapid.Just([]byte("é")), rapid.SliceOf(rapid.Byte()))

var anyHeader = rapid.Custom(func(t *rapid.T) handler.Header {
	return handler.Header{
		Key: string(rapid.OneOf(rapid.Just([]byte("same")), rapid.Just([]byte("")), rapid.Just([]byte("\xc3\x28")),
			rapid.Just([]byte("a\x00b")), rapid.SliceOf(rapid.Byte())).Draw(t, "name")),
		Value: anyBytes.Draw(t, "value"),
	}
})

var anyRecord = rapid.Custom(func(t *rapid.T) envelope.Record {
	return envelope.Record{
		Topic: "topic", Partition: rapid.IntRange(0, 1<<31-1).Draw(t, "partition"),
		Offset:    rapid.Int64Range(0, 1<<62).Draw(t, "offset"),
		Timestamp: time.UnixMilli(rapid.OneOf(rapid.Int64Range(-1, 1<<42), rapid.Just(int64(0))).Draw(t, "timestamp")).UTC(),
		Key:       anyBytes.Draw(t, "key"), Value: anyBytes.Draw(t, "value"),
		Headers: rapid.OneOf(rapid.Just([]handler.Header(nil)), rapid.SliceOfN(anyHeader, 1, 5)).Draw(t, "headers"),
	}
})

// TestRejectedRecordIsReturnedByteForByte proves contract 7.4: the raw record is kept byte for byte.
func TestRejectedRecordIsReturnedByteForByte(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		m := newRepairable(t, d)
		check := func(t require.TestingT, record envelope.Record) {
			_, err := m.AcceptRecords(context.Background(), "c", []envelope.Received{{Record: record, Err: errMangled}})
			require.NoError(t, err)
			rows := m.rejected()
			require.Len(t, rows, 1)
			m.repair(uuid.NewString())
			_, err = m.AcceptRejected(context.Background(), rows[0].ID)
			require.NoError(t, err)
			require.Equal(t, record, m.seen)
		}
		rapid.Check(t, func(rt *rapid.T) { check(rt, anyRecord.Draw(rt, "record")) })

		large := at(1).Record
		large.Value = make([]byte, 8<<20) // zeros
		for i := range large.Value[:4<<20] {
			large.Value[i] = byte(i * 7)
		}
		large.Headers = append(large.Headers, handler.Header{Key: "large", Value: large.Value[:1<<20]})
		check(t, large)
	})
}
