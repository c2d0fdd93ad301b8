package acceptor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// receiving is an acceptor as a consumer has it.
type receiving struct {
	*acceptor.Acceptor
	t        *testing.T
	db       *gorm.DB
	counters *telemetry.Counters
	woken    int
}

func receive(t *testing.T, d *inboxtest.Database, change func(o *acceptor.Options)) *receiving {
	t.Helper()
	return receiveBy(t, d, func(cfg *acceptor.Config) {
		if change != nil {
			change(&cfg.Options)
		}
	})
}

func receiveBy(t *testing.T, d *inboxtest.Database, change func(cfg *acceptor.Config)) *receiving {
	t.Helper()
	inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("a"))) // for its tables
	registry, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t",
		Handler: handler.New("a", inboxtest.Nothing)}})
	require.NoError(t, err)
	r := &receiving{t: t, db: d.DB, counters: &telemetry.Counters{}}
	cfg := acceptor.Config{
		Store: inboxtest.Store(t, d.DB), Registry: registry, Channels: []string{"c"}, Options: acceptor.DefaultOptions(),
		StatementTimeout: inboxtest.Patience, // for many rows in one transaction, on a loaded machine
		Clock:            clock.System{},
		Logger:           zap.NewNop(), Counters: r.counters, Wake: func([]string) { r.woken++ }, WakeAt: func(time.Time) {},
	}
	change(&cfg)
	r.Acceptor, err = acceptor.New(cfg)
	require.NoError(t, err)
	return r
}

// at returns a record on partition 0 with one message for each of these IDs.
func at(offset int64, ids ...string) envelope.Received {
	r := envelope.Received{Record: envelope.Record{Topic: "topic", Offset: offset, Timestamp: inboxtest.Noon,
		Key: []byte{0, 0xff}, Value: []byte("raw"),
		Headers: []handler.Header{{Key: "h", Value: []byte{0xfe}}}}}
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.Channel = "" // filled in by accepting
		r.Messages = append(r.Messages, m)
	}
	return r
}

func bad(offset int64, reason error) envelope.Received {
	r := at(offset)
	r.Err = reason
	return r
}

func (r *receiving) accept(received ...envelope.Received) []envelope.Result {
	r.t.Helper()
	results, err := r.AcceptRecords(context.Background(), "c", received)
	require.NoError(r.t, err)
	require.Len(r.t, results, len(received))
	return results
}

func dispositions(results []envelope.Result) string {
	text := make([]string, len(results))
	for i, r := range results {
		text[i] = map[envelope.Disposition]string{envelope.Durable: "durable", envelope.Halt: "halt",
			envelope.DeadLetter: "letter"}[r.Disposition]
		if r.Err != nil {
			text[i] += " bad"
		}
	}
	return strings.Join(text, ", ")
}

func (r *receiving) messages() []string {
	var ids []string
	require.NoError(r.t, r.db.Model(&models.Message{}).Order("id").Pluck("id", &ids).Error)
	return ids
}

func (r *receiving) rejected() []models.RejectedMessage {
	var rows []models.RejectedMessage
	require.NoError(r.t, r.db.Order("record_offset").Find(&rows).Error)
	return rows
}

var errMangled = errors.New("mangled")

func TestBadRecordsAreStoredWithTheirBatch(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		unroutedRecord := at(4, "4")
		unroutedRecord.Messages[0].Type = "x"
		results := r.accept(at(0, "0a", "0b"), bad(1, errMangled), at(2, strings.Repeat("x", 201)), at(3, "0a"),
			unroutedRecord)
		require.Equal(t, "durable, durable bad, durable bad, durable, durable", dispositions(results))
		require.Equal(t, 2, results[0].Accepted)
		require.Equal(t, 1, results[3].Duplicates)
		require.Equal(t, 1, results[4].Unrouted)
		require.Equal(t, []string{"0a", "0b"}, r.messages())
		require.Equal(t, 1, r.woken)
		require.EqualValues(t, 2, r.counters.Load(telemetry.Rejected))

		rows := r.rejected()
		require.Len(t, rows, 2)
		require.Equal(t, "mangled", rows[0].Reason)
		require.Contains(t, rows[1].Reason, "201 characters")
		row := rows[0]
		headers, err := properties.ParseHeaders(row.Headers)
		require.NoError(t, err)
		require.Equal(t, []handler.Header{{Key: "h", Value: []byte{0xfe}}}, headers)
		require.Equal(t, []any{"c", "topic", int32(0), int64(1), []byte{0, 0xff}, []byte("raw")},
			[]any{row.Channel, row.Topic, row.Partition, row.Offset, row.Key, row.Value})
		require.Equal(t, inboxtest.Noon, row.Timestamp.UTC())

		require.Equal(t, "durable bad", dispositions(r.accept(bad(1, errMangled))))
		require.Len(t, r.rejected(), 2, "a redelivered bad record is kept once")
	})
}

func TestIDConflictKeepsTheRecordAsRejected(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		r.accept(at(0, "1"))
		conflict := at(1, "1")
		conflict.Messages[0].Source = "elsewhere"
		results := r.accept(conflict, at(2, "2"))
		require.Equal(t, "durable bad, durable", dispositions(results))
		rows := r.rejected()
		require.Len(t, rows, 1)
		require.Contains(t, rows[0].Reason, "id_conflict")
		require.Equal(t, []string{"1", "2"}, r.messages())
	})
}

func TestHaltStopsThePartitionBeforeTheBadRecord(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordHalt })
		elsewhere := at(7, "other partition")
		elsewhere.Record.Partition = 1
		results := r.accept(at(0, "0"), bad(1, errMangled), at(2, "2"), elsewhere)
		require.Equal(t, "durable, halt bad, halt bad, durable", dispositions(results))
		require.ErrorIs(t, results[1].Err, errMangled)
		require.ErrorContains(t, results[2].Err, "after the halted record at offset 1")
		require.Equal(t, []string{"0", "other partition"}, r.messages(), "what lies behind waits with it")
		require.Empty(t, r.rejected())
	})
}

func TestUnroutedRecordsByPolicy(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for policy, want := range map[acceptor.UnroutedPolicy]string{
			acceptor.UnroutedIgnore: "durable", acceptor.UnroutedReject: "durable bad", acceptor.UnroutedHalt: "halt bad",
		} {
			r := receive(t, d, func(o *acceptor.Options) { o.Unrouted = policy })
			require.NoError(t, d.DB.Exec("DELETE FROM inbox_rejected_messages").Error)
			record := at(1, "") // without an ID: routing comes first
			record.Messages[0].Type = "x"
			require.Equal(t, want, dispositions(r.accept(record)), policy)
			kept := 0
			if policy == acceptor.UnroutedReject {
				kept = 1
			}
			require.Len(t, r.rejected(), kept, policy)
		}
	})
}

// refuse makes the database refuse messages whose content begins with "no".
func refuse(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	if d.Dialect == "sqlite" {
		inboxtest.Exec(t, d.DB,
			`CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages WHEN CAST(NEW.content AS TEXT) LIKE 'no%' BEGIN SELECT RAISE(ABORT, 'refused'); END`)
		return
	}
	inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_messages ADD CHECK (NOT content LIKE 'no%')`)
}

func batch(ids ...string) (records []envelope.Received) {
	for i, id := range ids {
		records = append(records, at(int64(i), id))
	}
	return records
}

func TestRefusedRecordIsIsolatedAndOthersAreStored(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		refuse(t, d)
		results := r.accept(batch("0", "1", "no-2", "3", "4", "no-5", "6", "7")...)
		require.Equal(t, "durable, durable, durable bad, durable, durable, durable bad, durable, durable",
			dispositions(results))
		var invalid *acceptor.InvalidError
		require.ErrorAs(t, results[2].Err, &invalid)
		require.Equal(t, "refused_by_database", invalid.Reason)
		require.Equal(t, []string{"0", "1", "3", "4", "6", "7"}, r.messages())
		rows := r.rejected()
		require.Equal(t, []int64{2, 5}, []int64{rows[0].Offset, rows[1].Offset})

		require.Equal(t, "durable bad", dispositions(r.accept(at(100, "no-alone"))))
	})
}

func TestRefusedRecordHaltsUnderHalt(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordHalt })
		refuse(t, d)
		require.Equal(t, "durable, halt bad, halt bad, halt bad", dispositions(r.accept(batch("0", "no-1", "2", "3")...)))
		require.Empty(t, r.rejected())
		require.Equal(t, []string{"0"}, r.messages(), "what lies behind waits with it")
	})
}

func TestBatchWithMostRecordsRefusedHalts(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		refuse(t, d)
		results := r.accept(batch("no-0", "no-1", "2", "no-3", "4")...)
		for i, result := range results {
			require.Equal(t, envelope.Halt, result.Disposition, i)
			require.Error(t, result.Err, i)
		}
		require.Empty(t, r.rejected(), "the schema is wrong, not the data")
	})
}

func TestDatabaseOutageMakesNoRecordBad(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		results, err := r.AcceptRecords(ctx, "c", batch("0", "1"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Nil(t, results)
		require.Empty(t, r.rejected())
		require.Equal(t, "durable, durable", dispositions(r.accept(batch("0", "1")...)))
	})
}

func TestBatchLargerThanAnyParameterLimit(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		records := 8000 // nine columns each: more than PostgreSQL's 65,535 parameters
		if d.Dialect == "sqlite" {
			records = 1000 // the pure Go driver is slow under the race detector
		}
		ids := make([]string, records)
		for i := range ids {
			ids[i] = fmt.Sprintf("%05d", i)
		}
		for i, result := range r.accept(batch(ids...)...) {
			require.Equal(t, 1, result.Accepted, i)
		}
		require.Len(t, r.messages(), records)
	})
}

func TestMassRefusalIsDetectedBeforeAllRecordsAreTried(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		refuse(t, d)
		ids := make([]string, 100)
		for i := range ids {
			ids[i] = fmt.Sprintf("no-%02d", i)
		}
		ids[99] = "fine"
		for i, result := range r.accept(batch(ids...)...) {
			require.Equal(t, envelope.Halt, result.Disposition, i)
		}
		require.Empty(t, r.messages(), "the last was not even tried")
	})
}

func TestUnstorableRejectedRecordHalts(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		refuse(t, d)
		if d.Dialect == "sqlite" {
			inboxtest.Exec(t, d.DB,
				`CREATE TRIGGER none BEFORE INSERT ON inbox_rejected_messages BEGIN SELECT RAISE(ABORT, 'none'); END`)
		} else {
			inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_rejected_messages ADD CHECK (record_offset < 0)`)
		}
		require.Equal(t, "durable, halt bad, halt bad", dispositions(r.accept(batch("0", "no-1", "2")...)))
		require.Empty(t, r.rejected())
	})
}

func TestEveryRecordOfARepeatedConflictIsKept(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		r.accept(at(0, "1"))
		first, second := at(1, "1"), at(2, "1")
		first.Messages[0].Source, second.Messages[0].Source = "elsewhere", "elsewhere"
		require.Equal(t, "durable bad, durable bad", dispositions(r.accept(first, second)))
		rows := r.rejected()
		require.Len(t, rows, 2)
		require.Equal(t, []int64{1, 2}, []int64{rows[0].Offset, rows[1].Offset})
	})
}

func TestRecordsWithoutMessageAreLoggedOncePerChannel(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.WarnLevel)
		r := receiveBy(t, d, func(cfg *acceptor.Config) { cfg.Logger = zap.New(core) })
		for range 3 {
			require.Equal(t, "durable, durable, durable", dispositions(r.accept(at(0), at(1, "1"), at(2))))
		}
		require.EqualValues(t, 6, r.counters.Snapshot().EmptyRecords)
		require.Equal(t, []string{"1"}, r.messages())
		found := logs.FilterMessageSnippet("empty batch of events").All()
		require.Len(t, found, 1)
		require.Equal(t, map[string]any{"channel": "c", "topic": "topic", "partition": int64(0), "offset": int64(0)},
			found[0].ContextMap())
	})
}

// TestWrongClockDoesNotChangeRequestLifetime proves contract 3.5 and 7.10.
func TestWrongClockDoesNotChangeRequestLifetime(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"behind": -2 * time.Hour, "ahead": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // a SQLite file is on one machine
				st, err := stores.New(d.DB, models.Naming{}, store.Options{})
				require.NoError(t, err)
				r := receiveBy(t, d, func(cfg *acceptor.Config) { cfg.Store, cfg.Clock = st, clock.Offset(wrong) })
				r.requestSkip(envelope.Record{Topic: "topic"})
				found, err := r.PartitionRequests(t.Context(), "c")
				require.NoError(t, err)
				require.Len(t, found, 1)
				inboxtest.Exec(t, d.DB, `UPDATE inbox_partition_requests SET requested_at = ?`, time.Now().Add(-90*time.Minute))
				found, err = r.PartitionRequests(t.Context(), "c")
				require.NoError(t, err)
				require.Empty(t, found, "it has expired")
			})
		})
	}
}
