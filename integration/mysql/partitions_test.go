package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	mysqlstore "github.com/gorm-inbox/inbox/internal/store/mysql"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// parted is an inbox in the partitioned layout.
type parted struct {
	*testing.T
	db    *gorm.DB
	store *mysqlstore.Store
}

// onPartitions runs a test in parted inboxes on MariaDB and on MySQL.
func onPartitions(t *testing.T, test func(p *parted)) {
	t.Helper()
	onBoth(t, func(t *testing.T, variable string) {
		p := openParted(t, testenv.MySQLDSN(t, variable))
		require.NoError(t, p.store.Partition(t.Context()))
		test(p)
	})
}

func onBoth(t *testing.T, test func(t *testing.T, variable string)) {
	t.Helper()
	for name, variable := range map[string]string{"MariaDB": testenv.MariaDBVariable, "MySQL": testenv.MySQLVariable} {
		t.Run(name, func(t *testing.T) {
			leaveOutWithoutPartitions(t, variable)
			test(t, variable)
		})
	}
}

// leaveOutWithoutPartitions skips a test on servers that cannot have the partitioned layout.
func leaveOutWithoutPartitions(t *testing.T, variable string) {
	t.Helper()
	p := openParted(t, testenv.MySQLDSN(t, variable))
	if err := p.store.Partition(t.Context()); errors.Is(err, mysqlstore.ErrNoPartitions) {
		t.Skipf("LEFT OUT: partitions (%v)", err)
	}
}

func openParted(t *testing.T, dsn string) *parted {
	db, opened := storetest.Migrated(t, testenv.Open(t, mysql.Open(dsn), gorm.Config{}))
	return &parted{t, db, opened.(*mysqlstore.Store)}
}

// accept reports for each ID whether it was new.
func (p *parted) accept(at time.Time, ids ...string) (inserted []bool) {
	p.Helper()
	accepted, err := p.store.Accept(p.Context(), p.batch(at, ids...))
	require.NoError(p, err)
	for _, a := range accepted {
		inserted = append(inserted, a.Inserted)
	}
	return inserted
}

func (p *parted) batch(at time.Time, ids ...string) store.AcceptBatch {
	batch := store.AcceptBatch{Now: at}
	for _, id := range ids {
		batch.Messages = append(batch.Messages, store.NewMessage{Message: models.Message{ID: id, Namespace: "orders", TransportName: "kafka", Type: "placed",
			Source: "/shop", Content: []byte(id), ContentType: "text/plain", SerializedProperties: "{}"},
			Handlers: []store.NewStatus{{HandlerKey: "mail"}}})
	}
	return batch
}

func (p *parted) claim(at time.Time, most int) []store.Claim {
	p.Helper()
	claimed, err := p.store.Claim(p.Context(), store.ClaimRequest{Now: at, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: most}}})
	require.NoError(p, err)
	return claimed.Claims
}

func (p *parted) complete(at time.Time, claims ...store.Claim) {
	p.Helper()
	applied, err := p.store.Complete(p.Context(), completions(claims), at, store.AwaitLocked)
	require.NoError(p, err)
	require.NotContains(p, applied, false)
}

func completions(claims []store.Claim) (done []store.Completion) {
	for _, c := range claims {
		done = append(done, store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: models.OutcomeProcessed})
	}
	return done
}

// clean deletes what was completed before a time, and then does what is to be done about partitions.
func (p *parted) clean(before time.Time, every time.Duration, now time.Time) (
	cleaned store.CleanupResult, kept store.PartitionsResult,
) {
	p.Helper()
	cleaned, err := p.store.Cleanup(p.Context(), store.CleanupRequest{Cutoff: before, Limit: 10_000})
	require.NoError(p, err)
	req := store.PartitionsRequest{Before: before, Every: every, Now: now, Limit: 10_000}
	for {
		r, err := p.store.KeepPartitions(p.Context(), req)
		require.NoError(p, err)
		kept.Dropped, kept.Moved, kept.Began = kept.Dropped+r.Dropped, kept.Moved+r.Moved, kept.Began+r.Began
		kept.Crowded, kept.Deleted = max(kept.Crowded, r.Crowded), kept.Deleted+r.Deleted
		if req.After = r.Next; r.Next == 0 {
			return cleaned, kept
		}
	}
}

func (p *parted) tables() (names []string) {
	p.Helper()
	require.NoError(p, p.db.Raw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1").Scan(&names).Error)
	return names
}

func (p *parted) rows(table string) (ids []string) {
	p.Helper()
	column := map[bool]string{true: "message_id", false: "id"}[strings.Contains(table, "statuses")]
	require.NoError(p, p.db.Raw("SELECT "+column+" FROM "+table+" ORDER BY 1").Scan(&ids).Error)
	return ids
}

// bulk is how many messages make a partition one that is exchanged. From smaller ones rows are deleted.
const bulk = 2000

// fill accepts and completes a bulk of messages.
func (p *parted) fill(at time.Time) {
	p.Helper()
	ids := make([]string, bulk)
	for i := range ids {
		ids[i] = fmt.Sprintf("~%04d", i)
	}
	p.accept(at, ids...)
	require.NoError(p, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = ?, outcome = 'processed' WHERE message_id LIKE '~%'",
		at.UTC().Format(time.DateTime)).Error)
}

// TestExpiredPartitionIsDroppedWithoutItsStragglers proves contract 6.8: what is not completed outlives its partition,
// and its ID stays known. What is dropped is forgotten.
func TestExpiredPartitionIsDroppedWithoutItsStragglers(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.fill(noon)
		p.checkStragglers(bulk, store.PartitionsResult{Dropped: 1, Moved: 3})
	})
}

// TestSmallPartitionIsMergedWithoutWhatWasForgotten proves the same where few rows are deleted instead.
func TestSmallPartitionIsMergedWithoutWhatWasForgotten(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.checkStragglers(0, store.PartitionsResult{Dropped: 1, Deleted: 1})
	})
}

func (p *parted) checkStragglers(others int, dropped store.PartitionsResult) {
	p.Helper()
	p.accept(noon, "done", "late", "open", "poisoned")
	claims := p.claim(noon, 4)
	slices.SortFunc(claims, func(a, b store.Claim) int { return int(a.MessageNumber - b.MessageNumber) })
	p.complete(noon, claims[0])
	p.complete(noon.Add(3*time.Hour), claims[1])
	settled, err := p.store.Settle(p.Context(), []store.Settlement{
		{StatusID: claims[2].StatusID, HandlerKey: "mail", Version: claims[2].Version, NextAttemptAt: &noon},
		{StatusID: claims[3].StatusID, HandlerKey: "mail", Version: claims[3].Version, Poisoned: true},
	}, store.AwaitLocked)
	require.NoError(p, err)
	require.Equal(p, []bool{true, true}, settled)

	_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	require.Equal(p, store.PartitionsResult{Dropped: 1, Began: 1}, kept, "the plain tables' partition is empty")
	require.Equal(p, []bool{false, true}, p.accept(noon.Add(2*time.Hour), "done", "second"))

	cleaned, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
	require.EqualValues(p, 1+others, cleaned.Messages)
	require.Equal(p, dropped, kept)
	for _, table := range []string{"inbox_messages", "inbox_handler_statuses"} {
		require.Equal(p, []string{"late", "open", "poisoned", "second"}, p.rows(table))
		require.Equal(p, []string{"late", "open", "poisoned"}, p.rows(strings.Replace(table, "inbox_", "inbox_parted_", 1)+" PARTITION (kept)"))
	}
	require.Equal(p, []string{"late", "open", "poisoned", "second"}, p.rows("inbox_message_ids"))
	require.Equal(p, []bool{false, false, false, true}, p.accept(noon.Add(2*time.Hour), "late", "open", "poisoned", "done"))

	moved := p.claim(noon.Add(2*time.Hour), 1)
	require.Equal(p, "open", moved[0].MessageID)
	require.Equal(p, []byte("open"), moved[0].Message.Content)
	require.Equal(p, claims[2].MessageNumber, moved[0].MessageNumber)
	p.complete(noon.Add(3*time.Hour), moved...)
	cleaned, _ = p.clean(noon.Add(4*time.Hour), 0, noon.Add(4*time.Hour))
	require.EqualValues(p, 2, cleaned.Messages)
	require.Equal(p, []string{"poisoned"}, p.rows("inbox_parted_messages PARTITION (kept)"), "what is kept is deleted row by row")
}

// TestFormerTablesAreCleanedAsAPartition proves that what was completed before Partition goes in one run, although it
// is little.
func TestFormerTablesAreCleanedAsAPartition(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		p := openParted(t, testenv.MySQLDSN(t, variable))
		p.accept(noon, "open", "done")
		claims := p.claim(noon, 2)
		for _, c := range claims {
			if c.MessageID == "done" {
				p.complete(noon, c)
			}
		}
		require.NoError(t, p.store.Partition(t.Context()))
		p.accept(noon.Add(2*time.Hour), "second")
		_, kept := p.clean(noon.Add(time.Hour), time.Hour, noon.Add(2*time.Hour))
		require.EqualValues(t, 1, kept.Deleted)
		require.Equal(t, []string{"open", "second"}, p.rows("inbox_parted_messages"))
		require.Equal(t, []string{"open", "second"}, p.rows("inbox_parted_handler_statuses"))
	})
}

// TestStatusRunAgainAfterItsMessageWasForgottenIsNotDropped proves that an open status is never dropped.
func TestStatusRunAgainAfterItsMessageWasForgottenIsNotDropped(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.fill(noon)
		p.accept(noon, "again", "done")
		p.complete(noon, p.claim(noon, 2)...)
		p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		p.accept(noon.Add(2*time.Hour), "second")
		cleaned, err := p.store.Cleanup(p.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 10_000})
		require.NoError(p, err)
		require.EqualValues(p, bulk+2, cleaned.Messages)
		require.NoError(p, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = NULL, outcome = '', version = version + 1 WHERE message_id = 'again'").Error)
		_, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
		require.Equal(p, store.PartitionsResult{Dropped: 1, Moved: 1}, kept)
		require.Equal(p, []string{"again", "second"}, p.rows("inbox_messages"))
		require.Equal(p, []bool{false}, p.accept(noon.Add(2*time.Hour), "again"))
	})
}

// TestCrowdedPartitionLosesOnlyWhatWasForgotten proves that a partition in which many messages stay is not dropped.
func TestCrowdedPartitionLosesOnlyWhatWasForgotten(t *testing.T) {
	onPartitions(t, func(p *parted) {
		ids := make([]string, 2103)
		for i := range ids {
			ids[i] = fmt.Sprintf("m%04d", i)
		}
		p.accept(noon, ids...)
		p.complete(noon, p.claim(noon, 101)...)
		p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		p.accept(noon.Add(2*time.Hour), "second")
		require.NoError(p, p.db.Exec("DELETE i FROM inbox_message_ids i JOIN inbox_parted_messages m ON m.number = i.number WHERE m.id = 'm0000'").Error)
		require.NoError(p, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = NULL WHERE message_id = 'm0000'").Error)
		cleaned, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
		require.EqualValues(p, 100, cleaned.Messages)
		require.Equal(p, store.PartitionsResult{Crowded: 1, Deleted: 100}, kept)
		require.Len(p, p.rows("inbox_parted_messages"), 2004)
		require.Contains(p, p.rows("inbox_parted_handler_statuses"), "m0000", "its status is open")
	})
}

// TestMessageOfAWrongClockKeepsNoPartition proves that a message with a time in the future stays, and that its
// partition and later ones are dropped nevertheless.
func TestMessageOfAWrongClockKeepsNoPartition(t *testing.T) {
	onPartitions(t, func(p *parted) {
		at := noon
		for _, id := range []string{"first", "second", "third"} {
			p.accept(at, id, "done "+id)
			p.complete(at, p.claim(at, 10)...)
			_, kept := p.clean(noon.Add(-time.Hour), time.Hour, at.Add(2*time.Hour))
			require.Equal(p, 1, kept.Began)
			at = at.Add(2 * time.Hour)
		}
		p.accept(at, "last")
		ahead := noon.AddDate(1, 0, 0)
		require.NoError(p, p.db.Exec("UPDATE inbox_parted_messages SET received_at = ? WHERE id = 'second'", ahead).Error)
		require.NoError(p, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = ? WHERE message_id = 'second'", ahead).Error)
		_, kept := p.clean(at.Add(-time.Hour), 0, at)
		require.Equal(p, 3, kept.Dropped)
		require.Equal(p, []string{"last", "second"}, p.rows("inbox_messages"))
		require.Equal(p, []string{"last", "second"}, p.rows("inbox_parted_messages"))
	})
}

// TestLastPartitionIsCleanedWhereNoOtherMayBegin proves that retention does not end where as many partitions stay as
// may be, such as those with too many messages that are kept.
func TestLastPartitionIsCleanedWhereNoOtherMayBegin(t *testing.T) {
	onPartitions(t, func(p *parted) {
		at, began := noon, 0
		for i := range 20 {
			p.accept(at, fmt.Sprintf("m%02d", i))
			p.complete(at, p.claim(at, 1)...)
			at = at.Add(2 * time.Hour)
			_, kept := p.clean(noon.Add(-time.Hour), time.Hour, at)
			began += kept.Began
		}
		require.Equal(p, 15, began, "the sixteenth takes what comes")
		cleaned, err := p.store.Cleanup(p.Context(), store.CleanupRequest{Cutoff: at, Limit: 100})
		require.NoError(p, err)
		require.EqualValues(p, 20, cleaned.Messages)
		require.Len(p, p.rows("inbox_parted_messages"), 15, "those of the other partitions go with them")
		_, kept := p.clean(at, time.Hour, at)
		require.Equal(p, 15, kept.Dropped)
		p.accept(at, "next")
		_, kept = p.clean(noon, time.Hour, at.Add(2*time.Hour))
		require.Equal(p, store.PartitionsResult{Began: 1}, kept)
	})
}

// TestMergeThatWasInterruptedIsEnded proves that partitions of which only the statuses were merged are merged, too.
func TestMergeThatWasInterruptedIsEnded(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.accept(noon, "open")
		p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		p.accept(noon.Add(2*time.Hour), "second")
		require.NoError(p, p.db.Exec("ALTER TABLE inbox_parted_handler_statuses REORGANIZE PARTITION kept, p1 INTO "+
			"(PARTITION kept VALUES LESS THAN (20000000000))").Error)
		_, kept := p.clean(noon.Add(-time.Hour), 0, noon.Add(2*time.Hour))
		require.Zero(p, kept)
		require.Equal(p, []string{"kept 20000000000", "p2 30000000000"}, p.partitions("inbox_parted_messages"))
		require.Equal(p, p.partitions("inbox_parted_messages"), p.partitions("inbox_parted_handler_statuses"))
		require.Equal(p, []string{"open", "second"}, p.rows("inbox_messages"))
	})
}

func (p *parted) partitions(table string) (names []string) {
	p.Helper()
	require.NoError(p, p.db.Raw("SELECT CONCAT(partition_name, ' ', partition_description) FROM information_schema.partitions "+
		"WHERE table_schema = DATABASE() AND table_name = ? ORDER BY partition_ordinal_position", table).Scan(&names).Error)
	return names
}

// TestColumnThatWasAddedAtOnceEndsNoRetention proves that rows are deleted where a partition cannot be exchanged.
func TestColumnThatWasAddedAtOnceEndsNoRetention(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.fill(noon)
		p.accept(noon, "open")
		p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		p.accept(noon.Add(2*time.Hour), "second")
		require.NoError(p, p.db.Exec("ALTER TABLE inbox_parted_messages ADD COLUMN mine int, ALGORITHM=INSTANT").Error)
		cleaned, _ := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
		require.EqualValues(p, bulk, cleaned.Messages)
		require.Equal(p, []string{"open", "second"}, p.rows("inbox_parted_messages"))
		require.Equal(p, []string{"open", "second"}, p.rows("inbox_parted_handler_statuses"))
		require.NotContains(p, p.tables(), "inbox_messages_gone")
	})
}

// TestMessageThatCannotBeStoredLeavesNoID proves that a caller who commits in spite of a failure loses nothing.
func TestMessageThatCannotBeStoredLeavesNoID(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		p := openParted(t, testenv.MySQLDSN(t, variable))
		require.NoError(t, p.store.Partition(t.Context()))
		require.NoError(t, p.db.Exec("ALTER TABLE inbox_parted_messages ADD CONSTRAINT mine CHECK (id <> 'refused')").Error)
		require.NoError(t, p.db.Transaction(func(tx *gorm.DB) error {
			_, err := p.store.AcceptTx(t.Context(), tx, p.batch(noon, "stored"))
			require.NoError(t, err)
			_, err = p.store.AcceptTx(t.Context(), tx, p.batch(noon, "refused"))
			require.ErrorContains(t, err, "mine")
			return nil
		}))
		require.Equal(t, []string{"stored"}, p.rows("inbox_message_ids"))
		require.Equal(t, []string{"stored"}, p.rows("inbox_parted_messages"))
		require.NoError(t, p.db.Exec("ALTER TABLE inbox_parted_messages DROP CONSTRAINT mine").Error)
		require.Equal(t, []bool{true, false}, p.accept(noon, "refused", "stored"))
	})
}

// TestTablesOfOthersAreNotDropped proves that a table with a name that we would use stays as it is.
func TestTablesOfOthersAreNotDropped(t *testing.T) {
	onPartitions(t, func(p *parted) {
		require.NoError(p, p.db.Exec("CREATE TABLE inbox_messages_gone (id int)").Error)
		_, err := p.store.KeepPartitions(p.Context(), store.PartitionsRequest{Before: noon, Now: noon, Limit: 1})
		require.ErrorContains(p, err, "inbox_messages_gone")
		require.NoError(p, p.db.Exec("INSERT INTO inbox_messages_gone VALUES (1)").Error)
	})
}

// TestViewsOfPartitionsCannotBeChanged proves that nothing that was made for the plain layout changes a row.
func TestViewsOfPartitionsCannotBeChanged(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.accept(noon, "a")
		require.NoError(p, models.CheckSchema(p.Context(), p.db, models.Naming{}, "test"))
		for _, view := range []string{"inbox_messages", "inbox_handler_statuses"} {
			one := map[bool]string{true: "message_number", false: "number"}[view != "inbox_messages"]
			columns := map[bool]string{true: "id, message_number, created_at, message_id, handler_key",
				false: "number, id, namespace, transport_name, type, source, content, content_type, serialized_properties, received_at"}[view != "inbox_messages"]
			for _, statement := range []string{
				"UPDATE %[1]s SET id = id", "UPDATE (SELECT 1 AS c0) c STRAIGHT_JOIN %[1]s x ON x.%[2]s > c.c0 SET x.id = 'b'",
				"DELETE FROM %[1]s", "DELETE x FROM (SELECT 1 AS c0) c STRAIGHT_JOIN %[1]s x ON x.%[2]s > c.c0",
				"INSERT INTO %[1]s (%[3]s) SELECT %[3]s FROM inbox_parted" + view[len("inbox"):],
				"SELECT * FROM %[1]s FORCE INDEX (PRIMARY) FOR UPDATE",
			} {
				err := p.db.Exec(fmt.Sprintf(statement, view, one, columns)).Error
				require.Error(p, err, statement)
				require.ErrorIs(p, p.store.Follow(p.Context(), "plain", err), store.ErrLayoutChanged, statement)
			}
			require.Equal(p, []string{"a"}, p.rows(view))
		}
	})
}

// TestLaneHasOneClaimedRowAcrossPartitions proves contract 5.12 where a unique key cannot.
func TestLaneHasOneClaimedRowAcrossPartitions(t *testing.T) {
	onPartitions(t, func(p *parted) {
		p.accept(noon, "first")
		p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		p.accept(noon.Add(2*time.Hour), "second")
		hold := func(id string, holds bool) error {
			return p.db.Exec("UPDATE inbox_parted_handler_statuses SET lane_handler = 1, lane_key = 2, holds_lane = ? WHERE message_id = ?", holds, id).Error
		}
		require.NoError(p, hold("first", true))
		require.True(p, store.IsUniqueViolation(hold("second", true)))
		require.NoError(p, hold("first", false))
		require.NoError(p, hold("second", true))
		require.NoError(p, p.db.Exec("DELETE FROM inbox_parted_handler_statuses WHERE message_id = 'second'").Error)
		require.NoError(p, hold("first", true))
	})
}

// TestOneOfTwoCallsChangesTheLayout proves that the other one fails and does no harm.
func TestOneOfTwoCallsChangesTheLayout(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p := openParted(t, dsn)
		p.accept(noon, "a")
		for _, change := range []func(s *mysqlstore.Store) error{
			func(s *mysqlstore.Store) error { return s.Partition(t.Context()) },
			func(s *mysqlstore.Store) error { return s.Unpartition(t.Context()) },
		} {
			errs := make([]error, 2)
			var calls sync.WaitGroup
			for i, st := range []*mysqlstore.Store{p.store, openParted(t, dsn).store} {
				calls.Go(func() { errs[i] = change(st) })
			}
			calls.Wait()
			require.True(t, errs[0] == nil || errs[1] == nil, "%v", errs)
			if err := errors.Join(errs...); err != nil {
				require.ErrorContains(t, err, "another call changes the layout")
			}
			require.Equal(t, []bool{false}, p.accept(noon, "a"))
		}
	})
}

// TestLayoutChangesToAndFroWhileProgramsRun proves contract 6.8: nothing is lost or doubled by programs that accept,
// claim and complete meanwhile. They fail where the tables have no names, and try again.
func TestLayoutChangesToAndFroWhileProgramsRun(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		checkLayoutChanges(t, testenv.MySQLDSN(t, variable), func(change func(context.Context) error, _ func(int)) {
			require.NoError(t, change(t.Context()))
		})
	})
}

// TestInterruptedChangeOfTheLayoutIsFinished does the same where each change is interrupted again and again.
func TestInterruptedChangeOfTheLayoutIsFinished(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		checkLayoutChanges(t, testenv.MySQLDSN(t, variable), func(change func(context.Context) error, await func(int)) {
			interrupted := 0
			within := func(limit time.Duration) (done bool) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				err := change(ctx)
				if err == nil {
					return true
				}
				// The server finishes a statement whose client has gone.
				require.True(t, store.IsTransient(err) || strings.Contains(err.Error(), "another call changes the layout"), "%v", err)
				interrupted++
				await(10) // programs delete and accept again meanwhile
				return false
			}
			// The shorter calls are interrupted while they take back what the longer one has begun.
			for limit := 16 * time.Millisecond; !within(limit) && !within(limit/4) && !within(limit/2); limit = limit * 5 / 4 {
			}
			t.Logf("%d interruptions", interrupted)
		})
	})
}

// checkLayoutChanges has programs run while run changes the layout, to and fro.
func checkLayoutChanges(t *testing.T, dsn string, run func(change func(context.Context) error, await func(int))) {
	changer := openParted(t, dsn)
	tables := changer.tables()
	old := make([]string, 3000)
	for i := range old {
		old[i] = fmt.Sprintf("old-%04d", i)
	}
	changer.accept(noon, old...)
	changer.complete(noon, changer.claim(noon, len(old))...)
	whileProgramsRun(t, dsn, "a", func(await func(int)) { run(changer.store.Partition, await) })
	all := len(changer.rows("inbox_messages"))
	require.Len(t, changer.rows("inbox_message_ids"), all)
	cleaned, kept := changer.clean(noon.Add(time.Minute), 0, noon)
	require.Positive(t, cleaned.Messages)
	require.Equal(t, store.PartitionsResult{Dropped: 1}, kept)
	require.Len(t, changer.rows("inbox_messages"), all-int(cleaned.Messages))

	whileProgramsRun(t, dsn, "b", func(await func(int)) { run(changer.store.Unpartition, await) })
	require.NoError(t, models.CheckSchema(t.Context(), changer.db, models.Naming{}, "test"))
	require.Equal(t, tables, changer.tables(), "nothing is left")
	var table struct {
		Text string `gorm:"column:Create Table"`
	}
	require.NoError(t, changer.db.Raw("SHOW CREATE TABLE inbox_handler_statuses").Scan(&table).Error)
	require.Contains(t, table.Text, "ON DELETE CASCADE")
	require.Contains(t, table.Text, "UNIQUE KEY `lane_holder`")

	whileProgramsRun(t, dsn, "c", func(await func(int)) { run(changer.store.Partition, await) })
	require.Equal(t, []bool{false, true}, changer.accept(noon, "c0-0", "new"))
}

// whileProgramsRun changes something while two programs accept each message twice, claim, complete, delete and accept
// again. change may await that they have handled some more.
func whileProgramsRun(t *testing.T, dsn, name string, change func(await func(more int))) {
	var ledger, lanes sync.Map
	var deletions atomic.Int64
	rule := &store.LaneRule{Handlers: []int64{store.LaneHandler("orderly")}}
	ctx, stop := context.WithCancel(t.Context())
	var programs sync.WaitGroup
	accepted, failures := make([]int, 2), make([]int, 2)
	for i := range accepted {
		p := openParted(t, dsn)
		again := func(call func() error) {
			for began := time.Now(); ; {
				err := call()
				if err == nil {
					return
				}
				failures[i]++
				require.True(t, store.IsTransient(err), "%v", err)
				require.Less(t, time.Since(began), testenv.Patience, "%v", err)
				routine.Sleep(t.Context(), 5*time.Millisecond)
			}
		}
		batch := func(id string) store.AcceptBatch {
			b := p.batch(noon, id)
			b.Messages[0].Handlers = append(b.Messages[0].Handlers,
				store.NewStatus{HandlerKey: "orderly", Lane: store.LaneOf("orderly", []byte(id[:2]))})
			return b
		}
		accept := func(id string, isNew ...bool) {
			again(func() error {
				a, err := p.store.Accept(t.Context(), batch(id))
				if err == nil && len(isNew) > 0 {
					require.Equal(t, isNew[0], a[0].Inserted, id)
				}
				return err
			})
		}
		programs.Go(func() {
			for n := 0; ; n++ {
				if ctx.Err() == nil {
					id := fmt.Sprintf("%s%d-%d", name, i, n)
					accept(id) // one that failed may be stored
					accept(id, false)
					accepted[i]++
				}
				var claims []store.Claim
				var advance []store.LaneRequest
				again(func() error {
					got, err := p.store.Claim(t.Context(), store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{
						{HandlerKey: "mail", Limit: 10}, {HandlerKey: "orderly", Limit: 10, Lanes: rule}}})
					claims = got.Claims
					return err
				})
				for _, c := range claims {
					_, twice := ledger.LoadOrStore(fmt.Sprint(c.HandlerKey, " ", c.MessageID, " ", c.MessageNumber), true)
					require.False(t, twice, c.MessageID)
					require.NotNil(t, c.Message, c.MessageID)
					if c.Lane != nil {
						last, _ := lanes.Swap(*c.Lane, c.MessageNumber)
						require.True(t, last == nil || last.(int64) < c.MessageNumber, "in order")
						advance = append(advance, rule.Request(*c.Lane))
					}
				}
				again(func() error {
					applied, err := p.store.Complete(t.Context(), completions(claims), noon, store.AwaitLocked)
					if err == nil {
						require.NotContains(t, applied, false)
					}
					return err
				})
				again(func() error { _, err := p.store.AdvanceLanes(t.Context(), advance, noon); return err })
				ours := slices.DeleteFunc(slices.Clone(claims), func(c store.Claim) bool { // one accepts at a time in a lane
					return !strings.HasPrefix(c.MessageID, fmt.Sprintf("%s%d-", name, i))
				})
				if ctx.Err() == nil {
					if id, deleted := p.deleteOne(ours, again); deleted {
						accept(id) // not refused, whatever the layout is
						deletions.Add(1)
					}
				} else if len(claims) == 0 {
					return
				}
			}
		})
	}
	handled := func() (n int) {
		ledger.Range(func(any, any) bool { n++; return true })
		return n
	}
	await := func(more int) {
		goal := handled() + more
		require.Eventually(t, func() bool { return handled() >= goal }, testenv.Patience, time.Millisecond)
	}
	await(20)
	change(await)
	await(20)
	stop()
	programs.Wait()
	t.Logf("%d messages, %d deleted, failed calls: %v", handled(), deletions.Load(), failures)
	require.Equal(t, 2*(accepted[0]+accepted[1]+int(deletions.Load())), handled())
}

// deleteOne deletes a message of which all statuses are completed, as an operator does. It returns the message's ID.
func (p *parted) deleteOne(claims []store.Claim, again func(func() error)) (id string, deleted bool) {
	for _, c := range claims {
		again(func() error {
			deleted = false
			return p.store.Transaction(p.Context(), func(pool gorm.ConnPool) error {
				locked, err := p.store.LockMessages(p.Context(), pool, []int64{c.MessageNumber})
				if err != nil || len(locked) == 0 {
					return err
				}
				open, err := store.Query(p.Context(), pool, p.store.Text("SELECT COUNT(*) FROM {statuses} WHERE message_number = ? AND completed_at IS NULL"),
					store.Value[int64], c.MessageNumber)
				if err != nil || open[0] > 0 {
					return err
				}
				_, _, left, err := p.store.DeleteMessage(p.Context(), pool, c.MessageNumber)
				deleted = err == nil && left == 0
				return err
			})
		})
		if deleted {
			return c.MessageID, true
		}
	}
	return "", false
}

// TestAccountOfAnApplicationWorksInThePartitionedLayout proves that Partition grants what is needed, also if its
// account has only the rights that the page names, and that the page names the other rights that a cleaner needs.
func TestAccountOfAnApplicationWorksInThePartitionedLayout(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p := openParted(t, dsn)
		account, as := testenv.MySQLAccount(t, dsn)
		script, err := mysqlstore.Grants(models.Naming{}, mysqlstore.Accounts{Application: account})
		require.NoError(t, err)
		for statement := range strings.SplitSeq(script, ";\n") {
			if at := strings.Index(statement, "GRANT"); at >= 0 {
				require.NoError(t, p.db.Exec(statement[at:]).Error)
			}
		}
		page, err := os.ReadFile("../../docs/partitions.md")
		require.NoError(t, err)
		_, cleaners, _ := strings.Cut(string(page), "```sql\n")
		cleaners, _, _ = strings.Cut(cleaners, "```")
		var database string
		require.NoError(t, p.db.Raw("SELECT DATABASE()").Scan(&database).Error)
		rights := strings.NewReplacer("orders.", database+".", "orders_app@'10.0.%'", "'"+account+"'@'%'").Replace(cleaners)
		for statement := range strings.SplitSeq(strings.TrimSpace(rights), ";") {
			if statement != "" {
				require.NoError(t, p.db.Exec(statement).Error)
			}
		}
		owner, asOwner := testenv.MySQLAccount(t, dsn)
		for _, right := range []string{"ALL ON " + database + ".*", "SELECT ON mysql.tables_priv", "SELECT ON mysql.columns_priv"} {
			require.NoError(t, p.db.Exec("GRANT "+right+" TO '"+owner+"'@'%' WITH GRANT OPTION").Error)
		}
		require.NoError(t, openParted(t, asOwner).store.Partition(t.Context()))
		application := openParted(t, as)
		require.Equal(t, []bool{true}, application.accept(noon, "first"))
		require.Equal(t, []bool{false}, application.accept(noon, "first"))
		require.Equal(t, "partitioned", application.store.Layout())
		application.complete(noon, application.claim(noon, 1)...)
		p.fill(noon)
		application.accept(noon, "open")
		_, kept := application.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		require.Equal(t, store.PartitionsResult{Dropped: 1, Began: 1}, kept)
		application.accept(noon.Add(2*time.Hour), "second")
		cleaned, kept := application.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
		require.EqualValues(t, bulk+1, cleaned.Messages)
		require.Equal(t, store.PartitionsResult{Dropped: 1, Moved: 1}, kept)
		require.Equal(t, []string{"open", "second"}, p.rows("inbox_messages"))
	})
}

// TestPartitionFailsWhereItCannotGrant proves that no account loses its rights silently, and that a call that has
// failed leaves nothing behind.
func TestPartitionFailsWhereItCannotGrant(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p := openParted(t, dsn)
		before := p.tables()
		account, as := testenv.MySQLAccount(t, dsn)
		var database string
		require.NoError(t, p.db.Raw("SELECT DATABASE()").Scan(&database).Error)
		require.NoError(t, p.db.Exec("GRANT ALL ON "+database+".* TO '"+account+"'@'%' WITH GRANT OPTION").Error)
		changer := openParted(t, as)
		require.ErrorContains(t, changer.store.Partition(t.Context()), "SELECT on mysql.tables_priv and mysql.columns_priv")
		require.Equal(t, before, p.tables())
		require.Equal(t, []bool{true}, p.accept(noon, "first"))
	})
}

// TestRoleKeepsItsRights proves that roles of MariaDB, which have no host, get the rights on the new tables.
func TestRoleKeepsItsRights(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		p := openParted(t, testenv.MySQLDSN(t, variable))
		role := fmt.Sprintf("inbox_role_%d", time.Now().UnixNano())
		require.NoError(t, p.db.Exec("CREATE ROLE "+role).Error)
		t.Cleanup(func() { p.db.WithContext(context.Background()).Exec("DROP ROLE " + role) })
		require.NoError(t, p.db.Exec("GRANT SELECT ON inbox_messages TO "+role).Error)
		require.NoError(t, p.store.Partition(t.Context()))
		var grants []string
		require.NoError(t, p.db.Raw("SHOW GRANTS FOR "+role).Scan(&grants).Error)
		require.Contains(t, strings.Join(grants, "\n"), "inbox_parted_messages")
	})
}
