package acceptor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/redact"
)

func deadLetter(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordDeadLetter }

func unroutedAt(offset int64) envelope.Received {
	r := at(offset, fmt.Sprint("unrouted ", offset))
	r.Messages[0].Type = "x"
	return r
}

// TestDeadLetterPublishesBadRecordsAndStoresOthers proves contract 7.4.
func TestDeadLetterPublishesBadRecordsAndStoresOthers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, deadLetter)
		refuse(t, d)
		r.accept(at(0, "1"))
		conflict, repeated := at(4, "1"), at(5, "1")
		conflict.Messages[0].Source, repeated.Messages[0].Source = "elsewhere", "elsewhere"
		results := r.accept(at(1, "2"), bad(2, errMangled), at(3, strings.Repeat("x", 201)), conflict, repeated,
			at(6, "no-6"), at(7, "3"), at(8, "4"), at(9, "5"))
		require.Equal(t, "durable, letter bad, letter bad, letter bad, letter bad, letter bad, durable, durable, durable",
			dispositions(results))
		require.ErrorIs(t, results[1].Err, errMangled)
		require.ErrorContains(t, results[5].Err, "refused_by_database")
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, r.messages())
		require.Empty(t, r.rejected())
		require.Zero(t, r.counters.Load(telemetry.Rejected), "they are counted once they are acknowledged")
	})
}

// TestUnroutedPolicyAppliesUnderDeadLetter proves contract 4.6: unrouted messages
// have their own policy.
func TestUnroutedPolicyAppliesUnderDeadLetter(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { deadLetter(o); o.Unrouted = acceptor.UnroutedReject })
		require.Equal(t, "durable bad, letter bad, durable",
			dispositions(r.accept(unroutedAt(0), bad(1, errMangled), at(2, "1"))))
		require.Len(t, r.rejected(), 1)
		require.EqualValues(t, 1, r.counters.Load(telemetry.Rejected))
		r = receive(t, d, func(o *acceptor.Options) { deadLetter(o); o.Unrouted = acceptor.UnroutedHalt })
		require.Equal(t, "letter bad, halt bad, halt bad",
			dispositions(r.accept(bad(3, errMangled), unroutedAt(4), at(5, "2"))))
		require.Len(t, r.rejected(), 1)
		require.Equal(t, []string{"1"}, r.messages())
	})
}

// TestChannelPoliciesAreIndependent proves contract 9, 7.4, 7.5.
func TestChannelPoliciesAreIndependent(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Channels = append(cfg.Channels, "own")
			cfg.Own = map[string]acceptor.Options{"own": {Unrouted: acceptor.UnroutedHalt,
				BadRecords: acceptor.BadRecordDeadLetter, HaltAtBadRecords: 2, OnGap: acceptor.GapContinue}}
		})
		for channel, want := range map[string]string{"c": "durable bad, durable bad, durable", "own": "halt bad, halt bad, halt bad"} {
			results, err := r.AcceptRecords(t.Context(), channel, []envelope.Received{bad(0, errMangled), bad(1, errMangled),
				unroutedAt(2)})
			require.NoError(t, err)
			require.Equal(t, want, dispositions(results))
		}
		results, err := r.AcceptRecords(t.Context(), "own", []envelope.Received{bad(3, errMangled), unroutedAt(4)})
		require.NoError(t, err)
		require.Equal(t, "letter bad, halt bad", dispositions(results))
		require.Len(t, r.rejected(), 2)
		for channel, want := range map[string]envelope.Disposition{"c": envelope.Halt, "own": envelope.Durable} {
			disposition, err := r.AcceptGap(t.Context(), channel, envelope.Gap{Topic: "topic", From: 1, To: 2})
			require.NoError(t, err)
			require.Equal(t, want, disposition, channel)
		}
	})
}

// mangled returns a batch of n records of which some are bad.
func mangled(n int, isBad func(i int) bool) (records []envelope.Received) {
	for i := range n {
		if isBad(i) {
			records = append(records, bad(int64(i), errMangled))
		} else {
			records = append(records, at(int64(i), fmt.Sprint(i)))
		}
	}
	return records
}

// TestBatchWithMostRecordsBadHalts proves contract 7.1.
func TestBatchWithMostRecordsBadHalts(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for _, policy := range []acceptor.BadRecordPolicy{acceptor.BadRecordStore, acceptor.BadRecordDeadLetter} {
			r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = policy })
			inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses")
			inboxtest.Exec(t, d.DB, "DELETE FROM inbox_messages")
			elsewhere := at(7, "other partition")
			elsewhere.Record.Partition = 1
			results := r.accept(append(mangled(39, func(i int) bool { return i >= 2 && i < 23 }), elsewhere)...)
			for i, result := range results {
				require.Equal(t, i >= 2 && i < 39, result.Disposition == envelope.Halt, "%s: %d", policy, i)
			}
			require.ErrorIs(t, results[2].Err, errMangled)
			require.ErrorContains(t, results[2].Err, "21 of 39 records of the partition in one batch are bad")
			require.Equal(t, []string{"0", "1", "other partition"}, r.messages(), "what lies behind waits with it")
			require.Empty(t, r.rejected(), "the schema is wrong, not the data")
		}
	})
}

// TestFewBadRecordsOrHalfABatchDoNotHalt proves contract 7.1: a stream of bad records must not
// halt because its batches are small.
func TestFewBadRecordsOrHalfABatchDoNotHalt(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		all := func(int) bool { return true }
		for name, records := range map[string][]envelope.Received{
			"one":            mangled(1, all),
			"two":            mangled(2, all),
			"less than 20":   mangled(19, all),
			"half of 40":     mangled(40, func(i int) bool { return i%2 == 0 }),
			"half unrouted":  append(mangled(19, all), unroutedAt(100), unroutedAt(101), unroutedAt(102)),
			"20 among 1,000": mangled(1000, func(i int) bool { return i < 20 }),
		} {
			for _, result := range r.accept(records...) {
				require.Equal(t, envelope.Durable, result.Disposition, name)
			}
		}
		unlimited := receive(t, d, func(o *acceptor.Options) { o.HaltAtBadRecords = 0 })
		for _, result := range unlimited.accept(mangled(100, all)...) {
			require.Equal(t, envelope.Durable, result.Disposition, "0 never halts")
		}
		require.Len(t, r.rejected(), 100)
	})
}

// TestMostlyGoodPartitionDoesNotHaltWithAnother proves contract 7.1: partitions share
// an accept by chance.
func TestMostlyGoodPartitionDoesNotHaltWithAnother(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for _, policy := range []acceptor.BadRecordPolicy{acceptor.BadRecordStore, acceptor.BadRecordDeadLetter} {
			r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = policy })
			innocent := mangled(20, func(i int) bool { return i == 3 })
			for i := range innocent {
				innocent[i].Record.Partition = 1
			}
			results := r.accept(append(mangled(30, func(int) bool { return true }), innocent...)...)
			for i, result := range results {
				require.Equal(t, i < 30, result.Disposition == envelope.Halt, "%s: %d", policy, i)
			}
			require.ErrorContains(t, results[0].Err, "30 of 30 records")
			require.Equal(t, errMangled, results[33].Err)
		}
		require.Len(t, receive(t, d, nil).rejected(), 1, "the policy holds for the one")
	})
}

// TestRejectedTombstonesDoNotHalt proves contract 7.1: a compacted topic may be full of deletions.
func TestRejectedTombstonesDoNotHalt(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		tombstones := func(why error) (records []envelope.Received) {
			for i := range 25 {
				x := bad(int64(1000+i), why)
				x.Record.Value = nil
				records = append(records, x)
			}
			return records
		}
		for _, result := range r.accept(append(batch("0", "1", "2"), tombstones(envelope.ErrTombstone)...)...) {
			require.Equal(t, envelope.Durable, result.Disposition)
		}
		require.Len(t, r.rejected(), 25, "they are bad all the same")
		wrong := mangled(25, func(int) bool { return true })
		require.Equal(t, envelope.Halt, r.accept(append(wrong, tombstones(envelope.ErrTombstone)...)...)[0].Disposition,
			"nor do they hide a wrong schema")
		require.Equal(t, envelope.Halt, r.accept(tombstones(errMangled)...)[0].Disposition,
			"one that should be handled and cannot be counts")
	})
}

// TestRetriedAcceptLogsAndCountsBadRecordsOnce proves contract 7.8: an accept
// is retried for as long as an outage lasts.
func TestRetriedAcceptLogsAndCountsBadRecordsOnce(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.WarnLevel)
		r := receiveBy(t, d, func(c *acceptor.Config) { c.Logger = zap.New(core) })
		records := append(mangled(39, func(i int) bool { return i >= 2 && i < 30 }), bad(40, errMangled))
		records[39].Record.Partition = 1
		outage, cancel := context.WithCancel(t.Context())
		cancel()
		for range 5 {
			_, err := r.AcceptRecords(outage, "c", records)
			require.Error(t, err)
		}
		require.Zero(t, logs.Len())
		require.Zero(t, r.counters.Load(telemetry.Rejected))
		r.accept(records...)
		require.Equal(t, 1, logs.FilterMessageSnippet("most records of a partition are bad").Len())
		require.Equal(t, 1, logs.FilterMessageSnippet("partition halts before a bad record").Len())
		require.Equal(t, 1, logs.FilterMessageSnippet("bad record kept as rejected").Len())
		require.EqualValues(t, 2, r.counters.Load(telemetry.Rejected))
	})
}

// TestInterruptedBisectionLogsAndCountsBadRecordsOnce proves contract 7.8. It
// runs only on PostgreSQL, see TestMessagesAndRejectedRowsAreStoredAtomically.
func TestInterruptedBisectionLogsAndCountsBadRecordsOnce(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.ErrorLevel)
		r := receiveBy(t, d, func(c *acceptor.Config) { c.Logger = zap.New(core) })
		refuse(t, d)
		inboxtest.Exec(t, d.DB,
			`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$`)
		inboxtest.Exec(t, d.DB,
			`CREATE TRIGGER full_disk BEFORE INSERT ON inbox_messages FOR EACH ROW WHEN (NEW.id = 'z') EXECUTE FUNCTION full_disk()`)
		records := []envelope.Received{bad(0, errMangled), at(1, "no-1"), at(2, "2"), at(3, "z")}
		for range 3 {
			_, err := r.AcceptRecords(t.Context(), "c", records)
			require.ErrorContains(t, err, "disk full")
		}
		require.Len(t, r.rejected(), 1, "it has come to that")
		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_messages`)
		require.Equal(t, "durable bad, durable bad, durable, durable", dispositions(r.accept(records...)))
		require.Equal(t, 2, logs.Len())
		require.EqualValues(t, 2, r.counters.Load(telemetry.Rejected))
	})
}

func TestManyUnroutedRecordsDoNotHaltUnderReject(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.Unrouted = acceptor.UnroutedReject })
		var records []envelope.Received
		for i := range 50 {
			records = append(records, unroutedAt(int64(i)))
		}
		for _, result := range r.accept(records...) {
			require.Equal(t, envelope.Durable, result.Disposition)
		}
		require.Len(t, r.rejected(), 50)
	})
}

// TestBisectionStoresNothingAfterAHaltingRecord proves contract 7.4: what comes
// after a record that halts is not stored, even if the database refuses another record of the same
// batch.
func TestBisectionStoresNothingAfterAHaltingRecord(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.Unrouted = acceptor.UnroutedHalt })
		refuse(t, d)
		refused := at(0, "no-0")
		refused.Record.Partition = 1
		results := r.accept(refused, at(0, "0"), unroutedAt(1), at(2, "2"), at(3, "3"), at(4, "4"), at(5, "5"))
		require.Equal(t, "durable bad, durable, halt bad, halt bad, halt bad, halt bad, halt bad", dispositions(results))
		require.Equal(t, []string{"0"}, r.messages())
		require.Equal(t, []int64{0}, slices.Collect(func(yield func(int64) bool) {
			for _, row := range r.rejected() {
				yield(row.Offset)
			}
		}))
	})
}

// TestMessagesAndRejectedRowsAreStoredAtomically proves contract 7.4. It runs only on
// PostgreSQL: SQLite's triggers can only fail as if the data were at fault.
func TestMessagesAndRejectedRowsAreStoredAtomically(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		inboxtest.Exec(t, d.DB,
			`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$`)
		inboxtest.Exec(t, d.DB,
			`CREATE TRIGGER full_disk BEFORE INSERT ON inbox_rejected_messages FOR EACH ROW EXECUTE FUNCTION full_disk()`)
		_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, "0"), bad(1, errMangled)})
		require.ErrorContains(t, err, "disk full")
		require.Empty(t, r.messages())
		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_rejected_messages`)
		require.Equal(t, "durable, durable bad", dispositions(r.accept(at(0, "0"), bad(1, errMangled))))
		require.Len(t, r.rejected(), 1)
	})
}

// TestBadRecordReasonIsRedactedBeforeTruncation proves contract 3.6, 11.6: no part of a secret is left.
func TestBadRecordReasonIsRedactedBeforeTruncation(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		begins := strings.Repeat("é", columns.MaxLastError-9)
		reason := fmt.Errorf("%s 4111111111111111 refused", begins)
		for _, policy := range []acceptor.BadRecordPolicy{acceptor.BadRecordDeadLetter, acceptor.BadRecordStore} {
			r := receiveBy(t, d, func(cfg *acceptor.Config) {
				cfg.Options.BadRecords, cfg.Redactor = policy, redaction.New(redact.Common)
			})
			results := r.accept(bad(1, reason), at(2, "good"))
			require.Equal(t, reason, results[0].Err)
			require.Empty(t, results[1].Reason)
			if policy == acceptor.BadRecordDeadLetter {
				require.Equal(t, begins+" [redacte", results[0].Reason)
				continue
			}
			require.Equal(t, begins+" [redacte", r.rejected()[0].Reason)
		}
	})
}
