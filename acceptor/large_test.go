package acceptor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/models"
)

// request stores an operator's request to skip a record.
func (r *receiving) requestSkip(of envelope.Record) models.PartitionRequest {
	r.t.Helper()
	request := models.PartitionRequest{Channel: "c", Topic: of.Topic, Partition: int32(of.Partition), ID: uuid.NewString(),
		Offset: of.Offset, Decision: "skip", Actor: "ada", RequestedAt: time.Now()}
	require.NoError(r.t, r.db.Create(&request).Error)
	return request
}

// TestOversizedBadRecordHaltsOnlyItsPartition proves contract 7.4: a record that cannot be kept whole is not
// passed unless an operator decides it, and then its row says what the record was.
func TestOversizedBadRecordHaltsOnlyItsPartition(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for i, policy := range []acceptor.BadRecordPolicy{acceptor.BadRecordStore, acceptor.BadRecordDeadLetter,
			acceptor.BadRecordHalt} {
			r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = policy })
			large := bad(int64(10*i+1), errMangled)
			large.Record.Value = bytes.Repeat([]byte{0, 0xff, 'x'}, 16<<20/3+1)
			elsewhere := at(0, fmt.Sprint("elsewhere-", i))
			elsewhere.Record.Partition = 7
			results := r.accept(at(int64(10*i), fmt.Sprint("before-", i)), large, at(int64(10*i+2), fmt.Sprint("after-", i)),
				elsewhere)
			require.Equal(t, "durable, halt bad, halt bad, durable", dispositions(results), policy)
			require.True(t, results[1].Skippable)
			require.ErrorIs(t, results[1].Err, errMangled)
			require.ErrorContains(t, results[1].Err, "too large to be kept")
			require.Empty(t, r.rejected())

			request := r.requestSkip(large.Record)
			large.Err = results[1].Err
			disposition, err := r.CarryOut(context.Background(), request, &large, nil)
			require.NoError(t, err)
			require.Equal(t, envelope.Durable, disposition)
			row := r.rejected()[0]
			require.Equal(t, large.Record.Value[:64<<10], row.Value)
			require.Equal(t, large.Record.Key, row.Key)
			_, err = properties.ParseHeaders(row.Headers)
			require.Equal(t, &properties.CutError{KeyBytes: 2, ValueBytes: len(large.Record.Value), HeadersBytes: 2,
				SHA256: fmt.Sprintf("%x", sha256.Sum256(large.Record.Value))}, err)
			audit := &models.Audit{ID: uuid.NewString(), OccurredAt: time.Now(), Actor: "ada", Action: "re-accept",
				Target: "rejected message " + row.ID}
			_, err = r.AcceptRejectedBy(context.Background(), row.ID, nil, audit)
			require.ErrorContains(t, err, "cannot be accepted again")
			require.Equal(t, row.Reason, r.rejected()[0].Reason, "it stays, with the reason for which it was rejected")
			require.NoError(t, r.db.First(&models.Audit{}, "id = ?", audit.ID).Error)
			require.NoError(t, r.db.Delete(&row).Error)
		}
	})
}

func TestLargestBadRecordIsKeptInFull(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		large := bad(1, errMangled)
		large.Record.Value = make([]byte, 16<<20-1000)
		require.Equal(t, "durable bad", dispositions(r.accept(large)))
		require.Equal(t, large.Record.Value, r.rejected()[0].Value)
	})
}

// slowly makes the database take too long for rows of more than 128 KiB.
func slowly(t *testing.T, d *inboxtest.Database, table, column string) {
	t.Helper()
	inboxtest.Exec(t, d.DB, fmt.Sprintf(`CREATE FUNCTION slow_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF octet_length(NEW.%[2]s) > 131072 THEN RAISE EXCEPTION 'too slow' USING ERRCODE = '57014'; END IF; RETURN NEW; END $$`,
		table, column))
	inboxtest.Exec(t, d.DB, fmt.Sprintf(
		`CREATE TRIGGER slow BEFORE INSERT ON %[1]s FOR EACH ROW EXECUTE FUNCTION slow_%[1]s()`, table))
}

// TestUnstorableRecordHaltsOnlyItsPartition proves contract 7.4 and 7.2: one record that no
// transaction stores in time, good or bad, does not stop the partitions that share its accepts.
func TestUnstorableRecordHaltsOnlyItsPartition(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		slowly(t, d, "inbox_messages", "content")
		slowly(t, d, "inbox_rejected_messages", `"value"`)
		badOne, goodOne := bad(1, errMangled), at(1, "large")
		badOne.Record.Value = make([]byte, 1<<20)
		goodOne.Record.Partition = 1
		goodOne.Messages[0].Content = make([]byte, 1<<20)
		elsewhere, after := at(5, "elsewhere"), at(2, "after")
		elsewhere.Record.Partition, after.Record.Partition = 2, 1
		batch := []envelope.Received{at(0, "before"), badOne, bad(2, errMangled), goodOne, after, elsewhere}
		var results []envelope.Result
		for try := 1; ; try++ {
			var err error
			if results, err = r.AcceptRecords(t.Context(), "c", batch); err == nil {
				break
			}
			require.ErrorContains(t, err, "too slow")
			require.Less(t, try, 12, "it is given up")
		}
		require.Equal(t, "durable, halt bad, halt bad, halt bad, halt bad, durable", dispositions(results))
		for _, i := range []int{1, 3} {
			require.True(t, results[i].Skippable)
			require.ErrorContains(t, results[i].Err, "StatementTimeout")
		}
		require.Equal(t, []string{"before", "elsewhere"}, r.inOrder())

		request := r.requestSkip(badOne.Record)
		for range 2 {
			_, err := r.CarryOut(context.Background(), request, &badOne, nil)
			require.ErrorContains(t, err, "too slow")
			require.Empty(t, r.rejected())
		}
		disposition, err := r.CarryOut(context.Background(), request, &badOne, nil)
		require.NoError(t, err)
		require.Equal(t, envelope.Durable, disposition)
		require.Len(t, r.rejected()[0].Value, 64<<10, "its beginning, since the database does not manage the whole")
		require.Error(t, properties.Cut(r.rejected()[0].Headers))
	})
}

// TestConflictThatCannotBeStoredHaltsOnlyItsPartition proves contract 7.4 and 15: also a record that the database finds
// to be a conflict, and that is sealed before it is kept.
func TestConflictThatCannotBeStoredHaltsOnlyItsPartition(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receiveBy(t, d, sealBy(inboxtest.NewBox("k1")))
		slowly(t, d, "inbox_rejected_messages", `"value"`)
		r.accept(at(0, "known"))
		conflict, elsewhere := at(1, "known"), at(0, "elsewhere")
		conflict.Record.Value, conflict.Messages[0].Source = make([]byte, 1<<20), "/elsewhere"
		elsewhere.Record.Partition = 2
		var results []envelope.Result
		for try := 1; ; try++ {
			var err error
			if results, err = r.AcceptRecords(t.Context(), "c", []envelope.Received{conflict, elsewhere}); err == nil {
				break
			}
			require.ErrorContains(t, err, "too slow")
			require.Less(t, try, 6, "it is given up")
		}
		require.Equal(t, "halt bad, durable", dispositions(results))
		require.True(t, results[0].Skippable)
		require.ErrorContains(t, results[0].Err, "StatementTimeout")
		require.Empty(t, r.rejected())
	})
}

// healing ends the partition of a database once so many tries have failed in it. So the last of them fails as well, and
// what follows it at once succeeds.
type healing struct {
	store.Acceptor
	proxy *pgproxy.Proxy
	tries int
}

func (h *healing) tried() {
	if h.tries--; h.tries == 0 {
		h.proxy.Heal()
	}
}

func (h *healing) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	defer h.tried()
	return h.Acceptor.Accept(ctx, batch)
}

func (h *healing) CarryOut(ctx context.Context, request models.PartitionRequest, rejected *models.RejectedMessage,
	gap *models.Gap,
) (bool, error) {
	defer h.tried()
	return h.Acceptor.CarryOut(ctx, request, rejected, gap)
}

// TestLargeRecordIsStoredInFullAfterAnOutage proves contract 7.4: tries without a database are not the record's fault,
// not even the one during which the database comes back. SQLite has no connection to lose.
func TestLargeRecordIsStoredInFullAfterAnOutage(t *testing.T) {
	const tries, size = 4, 300 << 10
	good, mangled := at(1, "large"), bad(1, errMangled)
	good.Messages[0].Content, mangled.Record.Value = make([]byte, size), make([]byte, size)
	accepting := func(record envelope.Received) func(*receiving, models.PartitionRequest) (envelope.Disposition, error) {
		return func(r *receiving, _ models.PartitionRequest) (envelope.Disposition, error) {
			results, err := r.AcceptRecords(context.Background(), "c", []envelope.Received{record})
			if err != nil {
				return envelope.Halt, err
			}
			return results[0].Disposition, nil
		}
	}
	for name, try := range map[string]func(*receiving, models.PartitionRequest) (envelope.Disposition, error){
		"good": accepting(good),
		"bad":  accepting(mangled),
		"skipped": func(r *receiving, request models.PartitionRequest) (envelope.Disposition, error) {
			return r.CarryOut(context.Background(), request, &mangled, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				proxy := pgproxy.New(t, d.DSN())
				proxied := inboxtest.Store(t, testenv.OpenPostgres(t, proxy.DSN()))
				r := receiveBy(t, d, func(cfg *acceptor.Config) {
					cfg.StatementTimeout = time.Second
					cfg.Store = &healing{proxied, proxy, tries}
				})
				request := r.requestSkip(mangled.Record)
				proxy.Partition()
				for range tries {
					_, err := try(r, request)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				disposition, err := try(r, request)
				require.NoError(t, err)
				require.Equal(t, envelope.Durable, disposition)
				var stored int
				require.NoError(t, d.DB.Raw(`SELECT max(size) FROM (SELECT octet_length(content) FROM inbox_messages
					UNION ALL SELECT octet_length("value") FROM inbox_rejected_messages) AS each(size)`).Scan(&stored).Error)
				require.Equal(t, size, stored)
			})
		})
	}
}

// TestSkippedRecordIsKeptInFullUntilThreeFailures proves contract 2 and 7.4: a database that was slow for
// a while costs a skipped record no byte.
func TestSkippedRecordIsKeptInFullUntilThreeFailures(t *testing.T) {
	for _, c := range []struct {
		name        string
		bytes, slow int
	}{
		{"fewer than 256 KiB, however often", 200 << 10, 6},
		{"1 MiB, twice", 1 << 20, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				r := receive(t, d, func(o *acceptor.Options) { o.BadRecords = acceptor.BadRecordHalt })
				slowly(t, d, "inbox_rejected_messages", `"value"`)
				record := bad(1, errMangled)
				record.Record.Value = bytes.Repeat([]byte{0xff}, c.bytes)
				request := r.requestSkip(record.Record)
				for range c.slow {
					_, err := r.CarryOut(context.Background(), request, &record, nil)
					require.ErrorContains(t, err, "too slow")
				}
				inboxtest.Exec(t, d.DB, `DROP TRIGGER slow ON inbox_rejected_messages`)
				r.requireKeptWhole(request, record)
			})
		})
	}
}

// A wait for something else in the database, a lock or a connection, is not a record's fault either.
func TestSkippedRecordIsKeptInFullAfterLockWaits(t *testing.T) {
	for _, lock := range []string{`LOCK TABLE inbox_partition_requests IN ACCESS EXCLUSIVE MODE`,
		`SELECT 1 FROM inbox_partition_requests FOR UPDATE`} {
		t.Run(lock, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				r := receiveBy(t, d, func(cfg *acceptor.Config) { cfg.StatementTimeout = time.Second })
				record := bad(1, errMangled)
				record.Record.Value = bytes.Repeat([]byte{0xff}, 1<<20)
				request := r.requestSkip(record.Record)
				blocking := d.DB.Begin()
				require.NoError(t, blocking.Error)
				require.NoError(t, blocking.Exec(lock).Error)
				for range 4 {
					_, err := r.CarryOut(context.Background(), request, &record, nil)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.NoError(t, blocking.Rollback().Error)
				r.requireKeptWhole(request, record)
			})
		})
	}
}

// requireKeptWhole requires that carrying out the request now keeps every byte of the record.
func (r *receiving) requireKeptWhole(request models.PartitionRequest, record envelope.Received) {
	r.t.Helper()
	disposition, err := r.CarryOut(context.Background(), request, &record, nil)
	require.NoError(r.t, err)
	require.Equal(r.t, envelope.Durable, disposition)
	row := r.rejected()[0]
	require.Equal(r.t, record.Record.Value, row.Value)
	require.NoError(r.t, properties.Cut(row.Headers))
}
