package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// parted is an inbox in the partitioned layout.
type parted struct {
	*testing.T
	db    *gorm.DB
	store *postgres.Store
}

func newParted(t *testing.T) *parted {
	db, opened := storetest.Migrated(t, testenv.Postgres(t))
	p := &parted{t, db, opened.(*postgres.Store)}
	require.NoError(t, p.store.Partition(t.Context()))
	return p
}

// accept reports for each ID whether it was new.
func (p *parted) accept(at time.Time, ids ...string) (inserted []bool) {
	p.Helper()
	var batch []store.NewMessage
	for _, id := range ids {
		batch = append(batch, numbered(id))
	}
	accepted, err := p.store.Accept(p.Context(), store.AcceptBatch{Messages: batch, Now: at})
	require.NoError(p, err)
	for _, a := range accepted {
		inserted = append(inserted, a.Inserted)
	}
	return inserted
}

func numbered(id string) store.NewMessage {
	return store.NewMessage{Message: models.Message{ID: id, Namespace: "orders", TransportName: "kafka", Type: "placed",
		Source: "/shop", Content: []byte(id), ContentType: "text/plain", SerializedProperties: "{}"},
		Handlers: []store.NewStatus{{HandlerKey: "mail"}}}
}

func (p *parted) claim(at time.Time, most int) []store.Claim {
	p.Helper()
	req := store.ClaimRequest{Now: at, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: most}}}
	claimed, err := p.store.Claim(p.Context(), req)
	if errors.Is(err, store.ErrLayoutChanged) {
		claimed, err = p.store.Claim(p.Context(), req)
	}
	require.NoError(p, err)
	return claimed.Claims
}

func (p *parted) complete(at time.Time, claims ...store.Claim) {
	p.Helper()
	var done []store.Completion
	for _, c := range claims {
		done = append(done, store.Completion{StatusID: c.StatusID, Version: c.Version,
			Outcome: models.OutcomeProcessed})
	}
	applied, err := p.store.Complete(p.Context(), done, at, store.AwaitLocked)
	if errors.Is(err, store.ErrLayoutChanged) {
		applied, err = p.store.Complete(p.Context(), done, at, store.AwaitLocked)
	}
	require.NoError(p, err)
	require.NotContains(p, applied, false)
}

// clean deletes what was completed before a time, and then does what is to be done about partitions.
func (p *parted) clean(
	before time.Time, every time.Duration, now time.Time,
) (store.CleanupResult, store.PartitionsResult) {
	p.Helper()
	cleaned, err := p.store.Cleanup(p.Context(), store.CleanupRequest{Cutoff: before, Limit: 10_000})
	require.NoError(p, err)
	kept, err := p.store.KeepPartitions(p.Context(),
		store.PartitionsRequest{Before: before, Every: every, Now: now, Limit: 10_000})
	require.NoError(p, err)
	return cleaned, kept
}

func (p *parted) rows(table string) (ids []string) {
	p.Helper()
	column := map[bool]string{true: "message_id", false: "id"}[strings.Contains(table, "statuses")]
	require.NoError(p, p.db.Raw("SELECT "+column+" FROM "+table+" ORDER BY 1").Scan(&ids).Error)
	return ids
}

// TestExpiredPartitionIsDroppedWithoutItsStragglers proves contract 6.8: what is not completed outlives its partition,
// and its ID stays known. What is dropped is forgotten.
func TestExpiredPartitionIsDroppedWithoutItsStragglers(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "done", "late", "open", "poisoned")
	claims := p.claim(noon, 4)
	slices.SortFunc(claims, func(a, b store.Claim) int { return int(a.MessageNumber - b.MessageNumber) })
	p.complete(noon, claims[0])
	p.complete(noon.Add(3*time.Hour), claims[1])
	settled, err := p.store.Settle(t.Context(), []store.Settlement{
		{StatusID: claims[2].StatusID, HandlerKey: "mail", Version: claims[2].Version, NextAttemptAt: &noon},
		{StatusID: claims[3].StatusID, HandlerKey: "mail", Version: claims[3].Version, Poisoned: true},
	}, store.AwaitLocked)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true}, settled)

	_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	require.Equal(t, store.PartitionsResult{Dropped: 1, Began: 1}, kept, "the plain tables' partition is empty")
	require.Equal(t, []bool{false, true}, p.accept(noon.Add(2*time.Hour), "done", "second"))

	cleaned, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
	require.EqualValues(t, 1, cleaned.Messages)
	require.Equal(t, store.PartitionsResult{Dropped: 1, Moved: 3}, kept)
	for _, table := range []string{"inbox_messages", "inbox_handler_statuses"} {
		require.Equal(t, []string{"late", "open", "poisoned", "second"}, p.rows(table))
		require.Equal(t, []string{"late", "open", "poisoned"}, p.rows(strings.Replace(table, "inbox_", "inbox_parted_", 1)+"_kept"))
	}
	require.Equal(t, []string{"late", "open", "poisoned", "second"}, p.rows("inbox_message_ids"))
	require.Equal(t, []bool{false, false, false, true}, p.accept(noon.Add(2*time.Hour), "late", "open", "poisoned", "done"))

	moved := p.claim(noon.Add(2*time.Hour), 1)
	require.Equal(t, "open", moved[0].MessageID)
	require.Equal(t, []byte("open"), moved[0].Message.Content)
	p.complete(noon.Add(3*time.Hour), moved...)
	cleaned, _ = p.clean(noon.Add(4*time.Hour), 0, noon.Add(4*time.Hour))
	require.EqualValues(t, 2, cleaned.Messages)
	require.Equal(t, []string{"poisoned"}, p.rows("inbox_parted_messages_kept"), "what is kept is deleted row by row")
}

// TestStatusRunAgainAfterItsMessageWasForgottenIsNotDropped proves that an open status is never dropped.
func TestStatusRunAgainAfterItsMessageWasForgottenIsNotDropped(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "again", "done")
	p.complete(noon, p.claim(noon, 2)...)
	p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	p.accept(noon.Add(2*time.Hour), "second")
	cleaned, err := p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 2, cleaned.Messages)
	require.NoError(t, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = NULL, outcome = '', version = version + 1 WHERE message_id = 'again'").Error)
	_, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
	require.Equal(t, store.PartitionsResult{Dropped: 1, Moved: 1}, kept)
	require.Equal(t, []string{"again", "second"}, p.rows("inbox_messages"))
	require.Equal(t, []bool{false}, p.accept(noon.Add(2*time.Hour), "again"))
}

// TestLaneHasOneClaimedRowAcrossPartitions proves contract 5.12 where a unique index cannot.
func TestLaneHasOneClaimedRowAcrossPartitions(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "first")
	p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	p.accept(noon.Add(2*time.Hour), "second")
	hold := func(id string, holds bool) error {
		return p.db.Exec("UPDATE inbox_parted_handler_statuses SET lane_handler = 1, lane_key = 2, holds_lane = ? WHERE message_id = ?", holds, id).Error
	}
	require.NoError(t, hold("first", true))
	require.True(t, store.IsUniqueViolation(hold("second", true)))
	require.NoError(t, hold("first", false))
	require.NoError(t, hold("second", true))
	require.NoError(t, p.db.Exec("DELETE FROM inbox_parted_handler_statuses WHERE message_id = 'second'").Error)
	require.NoError(t, hold("first", true))
}

// TestLayoutChangesToAndFroWhileProgramsRun proves contract 6.8: nothing is lost or doubled by programs that accept,
// claim and complete meanwhile.
func TestLayoutChangesToAndFroWhileProgramsRun(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	db, opened := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
	changer := &parted{t, db, opened.(*postgres.Store)}
	var ledger sync.Map
	ctx, stop := context.WithCancel(t.Context())
	var programs sync.WaitGroup
	accepted := make([]int, 2)
	for i := range accepted {
		own, st := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
		p := &parted{t, own, st.(*postgres.Store)}
		programs.Go(func() {
			for n := 0; ; n++ {
				if ctx.Err() == nil {
					id := fmt.Sprintf("%d-%d", i, n)
					require.Equal(t, []bool{true}, p.accept(noon, id))
					require.Equal(t, []bool{false}, p.accept(noon, id))
					accepted[i]++
				}
				claims := p.claim(noon, 10)
				for _, c := range claims {
					_, twice := ledger.LoadOrStore(c.MessageID, true)
					require.False(t, twice, c.MessageID)
				}
				p.complete(noon, claims...)
				if ctx.Err() != nil && len(claims) == 0 {
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
	require.NoError(t, changer.store.Partition(t.Context()))
	await(20)
	_, err := changer.store.KeepPartitions(t.Context(),
		store.PartitionsRequest{Every: time.Hour, Now: noon.Add(2 * time.Hour), Limit: 1})
	require.NoError(t, err)
	require.ErrorIs(t, changer.store.Unpartition(t.Context()), store.ErrPartitionsLeft)
	await(20)
	stop()
	programs.Wait()
	require.Equal(t, accepted[0]+accepted[1], handled())
	all := len(changer.rows("inbox_messages"))
	require.Equal(t, handled(), all)
	changer.accept(noon.Add(time.Hour), "rest")
	_, kept := changer.clean(noon.Add(time.Minute), 0, noon.Add(2*time.Hour))
	require.Equal(t, 2, kept.Dropped)
	require.Equal(t, []string{"rest"}, changer.rows("inbox_parted_messages"), "cleanup does not wait for Unpartition")
	require.NoError(t, changer.store.Unpartition(t.Context()))
	require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "test"))
	require.Equal(t, "plain", changer.store.Layout())
	require.Equal(t, []bool{false}, changer.accept(noon, "rest"))
	require.NoError(t, changer.store.Partition(t.Context()), "and again")
	require.Equal(t, []bool{false, true}, changer.accept(noon, "rest", "new"))
}

// TestMessageOfAWrongClockKeepsNoPartition proves that a message with a time in the future stays, and that its
// partition and later ones are dropped nevertheless.
func TestMessageOfAWrongClockKeepsNoPartition(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	at := noon
	for _, id := range []string{"first", "second", "third"} {
		p.accept(at, id, "done "+id)
		p.complete(at, p.claim(at, 10)...)
		_, kept := p.clean(noon.Add(-time.Hour), time.Hour, at.Add(2*time.Hour))
		require.Equal(t, 1, kept.Began)
		at = at.Add(2 * time.Hour)
	}
	p.accept(at, "last")
	require.NoError(t, p.db.Exec("UPDATE inbox_parted_messages SET received_at = ? WHERE id = 'second'", noon.AddDate(1, 0, 0)).Error)
	require.NoError(t, p.db.Exec("UPDATE inbox_parted_handler_statuses SET completed_at = ? WHERE message_id = 'second'", noon.AddDate(1, 0, 0)).Error)
	_, kept := p.clean(at.Add(-time.Hour), 0, at)
	require.Equal(t, store.PartitionsResult{Dropped: 3, Moved: 1}, kept)
	require.Equal(t, []string{"last", "second"}, p.rows("inbox_messages"))
}

// TestLastPartitionIsCleanedWhereNoOtherMayBegin proves that retention does not end where as many partitions stay as
// may be, such as those with too many messages that are kept.
func TestLastPartitionIsCleanedWhereNoOtherMayBegin(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	at, began := noon, 0
	for i := range 20 {
		p.accept(at, fmt.Sprintf("m%02d", i))
		p.complete(at, p.claim(at, 1)...)
		at = at.Add(2 * time.Hour)
		_, kept := p.clean(noon.Add(-time.Hour), time.Hour, at)
		began += kept.Began
	}
	require.Equal(t, 15, began, "the sixteenth takes what comes")
	cleaned, err := p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: at, Limit: 100})
	require.NoError(t, err)
	require.EqualValues(t, 20, cleaned.Messages)
	require.Len(t, p.rows("inbox_parted_messages"), 15, "those of the other partitions go with them")
	_, kept := p.clean(at, time.Hour, at)
	require.Equal(t, store.PartitionsResult{Dropped: 15}, kept)
	p.accept(at, "next")
	_, kept = p.clean(noon, time.Hour, at.Add(2*time.Hour))
	require.Equal(t, store.PartitionsResult{Began: 1}, kept)
}

// TestUnpartitionGoesOnWhereACleanerDied proves that a partition that no row goes to yet does not stay forever.
func TestUnpartitionGoesOnWhereACleanerDied(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "done")
	p.complete(noon, p.claim(noon, 1)...)
	for _, table := range []string{"inbox_parted_messages", "inbox_parted_handler_statuses"} {
		require.NoError(t, p.db.Exec("CREATE TABLE "+table+"_p2 PARTITION OF "+table+" FOR VALUES FROM (20000000000) TO (30000000000)").Error)
	}
	require.ErrorIs(t, p.store.Unpartition(t.Context()), store.ErrPartitionsLeft)
	p.accept(noon.Add(2*time.Hour), "new")
	_, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
	require.Equal(t, 2, kept.Dropped)
	require.NoError(t, p.store.Unpartition(t.Context()))
	require.Equal(t, []string{"new"}, p.rows("inbox_messages"))
}

// TestMessageThatComesLateOutlivesItsPartition proves that a transaction that took its number before the next partition
// began, and commits while the partition is about to be dropped, loses nothing.
func TestMessageThatComesLateOutlivesItsPartition(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, late := opened(t, dsn), opened(t, dsn)
	require.NoError(t, p.store.Partition(t.Context()))
	p.accept(noon, "old")
	p.complete(noon, p.claim(noon, 1)...)
	p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	number := func(slot int64) {
		require.NoError(t, p.db.Exec("SELECT setval('inbox_message_ids_number_seq', ?)", slot*10_000_000_000+500).Error)
	}
	number(1)
	done := make(chan error, 1)
	var kept store.PartitionsResult
	message := numbered("late")
	message.Handlers = nil
	_, err := late.store.Partitioned(t.Context())
	require.NoError(t, err)
	require.NoError(t, late.db.Transaction(func(tx *gorm.DB) error {
		_, err := late.store.AcceptTx(t.Context(), tx,
			store.AcceptBatch{Messages: []store.NewMessage{message}, Now: noon.Add(2 * time.Hour)})
		require.NoError(t, err)
		number(2)
		_, err = p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 10})
		require.NoError(t, err)
		go func() {
			var err error
			for kept.Dropped == 0 && (err == nil || errors.Is(err, store.ErrPartitionsBusy)) {
				kept, err = p.store.KeepPartitions(context.Background(),
					store.PartitionsRequest{Before: noon.Add(time.Hour), Now: noon.Add(2 * time.Hour), Limit: 10})
			}
			done <- err
		}()
		late.awaitLock("%")
		return nil
	}))
	require.NoError(t, <-done)
	require.Equal(t, store.PartitionsResult{Dropped: 1, Moved: 1}, kept)
	require.Equal(t, []string{"late"}, p.rows("inbox_messages"))
	require.Equal(t, []bool{false}, p.accept(noon.Add(3*time.Hour), "late"))
}
