package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
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
	"github.com/gorm-inbox/inbox/ops"
)

// opened opens the same tables in another process.
func opened(t *testing.T, dsn string) *parted {
	db, st := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
	return &parted{t, db, st.(*postgres.Store)}
}

// await waits until a query of one boolean is true.
func (p *parted) await(query string, args ...any) {
	p.Helper()
	require.Eventually(p, func() (found bool) {
		return p.db.Raw(query, args...).Scan(&found).Error == nil && found
	}, testenv.Patience, 10*time.Millisecond)
}

// awaitLock waits until a statement like this waits for a lock.
func (p *parted) awaitLock(statement string) {
	p.Helper()
	p.await(`SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE ?)`, statement)
}

// awaitIndex waits until Partition builds the first of its indexes, or has built it.
func (p *parted) awaitIndex(valid bool) {
	p.Helper()
	p.await(`SELECT EXISTS (SELECT FROM pg_index
		WHERE indisvalid = ? AND indexrelid = to_regclass('inbox_handler_statuses_open_p0'))`, valid)
}

func (p *parted) acceptTx(id string) error {
	return p.db.Transaction(func(tx *gorm.DB) error {
		_, err := p.store.AcceptTx(p.Context(), tx, store.AcceptBatch{Messages: []store.NewMessage{numbered(id)}, Now: noon})
		return err
	})
}

// TestStatementForAnotherLayoutFailsOnce proves contract 6.8: a program that does not know of a change of the layout
// finds nothing wrong and changes nothing wrong.
func TestStatementForAnotherLayoutFailsOnce(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p := opened(t, dsn)
	var late [5]*parted
	for i := range late {
		late[i] = opened(t, dsn)
		found, err := late[i].store.Partitioned(t.Context())
		require.NoError(t, err)
		require.False(t, found)
	}
	require.True(t, late[0].accept(noon, "first")[0])
	o, err := ops.New(late[4].db)
	require.NoError(t, err)
	list := func() (statuses []string) {
		page, err := o.List(t.Context(), ops.Filter{MessageID: "first"}, "", 10)
		require.NoError(t, err)
		for _, item := range page.Items {
			statuses = append(statuses, item.ID)
		}
		return statuses
	}
	require.Len(t, list(), 1)
	require.NoError(t, p.store.Partition(t.Context()))

	var accepts sync.WaitGroup
	for i := range 12 {
		accepts.Go(func() { late[0].accept(noon, fmt.Sprint("m", i)) })
	}
	accepts.Wait()
	_, err = late[1].store.Claim(t.Context(), store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1}}})
	require.ErrorIs(t, err, store.ErrLayoutChanged)
	require.True(t, store.IsTransient(err))
	late[1].complete(noon, late[1].claim(noon, 20)...)
	require.ErrorIs(t, late[2].acceptTx("tx"), store.ErrLayoutChanged)
	require.NoError(t, late[2].acceptTx("tx"))
	_, err = late[3].store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 100})
	require.ErrorIs(t, err, store.ErrLayoutChanged)
	for _, statement := range []string{`DELETE FROM inbox_messages`, `UPDATE inbox_handler_statuses SET version = version`,
		`SELECT FROM inbox_messages FOR UPDATE`, `SELECT FROM inbox_handler_statuses FOR KEY SHARE SKIP LOCKED`} {
		require.Error(t, p.db.Exec(statement).Error, statement)
	}

	// Of a message that was forgotten and accepted again, operators find the second.
	_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	require.Equal(t, 1, kept.Began)
	before := list()
	_, err = p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 100})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, p.accept(noon.Add(2*time.Hour), "first"))
	after := list()
	require.Len(t, after, 1)
	require.NotEqual(t, before, after)
	var numbers, locked []int64
	require.NoError(t, p.db.Raw("SELECT number FROM inbox_parted_messages WHERE id = 'first' ORDER BY 1").Scan(&numbers).Error)
	require.Len(t, numbers, 2)
	m, err := o.Message(t.Context(), ops.Actor("me"), ops.MessageRef{ID: "first"})
	require.NoError(t, err)
	require.EqualValues(t, numbers[1], m.Number)
	require.NoError(t, o.CheckSchema(t.Context()))
	err = late[4].store.Act(t.Context(), func(tx *gorm.DB) (err error) {
		locked, err = late[4].store.LockMessages(t.Context(), tx.Statement.ConnPool, numbers)
		return err
	})
	require.NoError(t, err)
	require.Equal(t, numbers[1:], locked)
}

// TestProgramsGoOnBesidePartition proves that a call that takes long blocks no statement, needs no more rights of
// programs, runs alone, and can be repeated.
func TestProgramsGoOnBesidePartition(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, reader, app := opened(t, dsn), opened(t, dsn), opened(t, dsn)
	p.accept(noon, "gone", "stays")
	role := fmt.Sprintf("inbox_partition_%d", time.Now().UnixNano())
	script, err := postgres.Grants(models.Naming{}, postgres.Roles{Application: role})
	require.NoError(t, err)
	require.NoError(t, p.db.Exec("CREATE ROLE "+role).Error)
	t.Cleanup(func() { p.db.Exec("DROP OWNED BY " + role); p.db.Exec("DROP ROLE " + role) })
	require.NoError(t, p.db.Exec(script).Error)
	pool, err := app.db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	require.NoError(t, app.db.Exec("SET ROLE "+role).Error)
	partition := func(d time.Duration) <-chan error {
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			done <- p.store.Partition(ctx)
		}()
		return done
	}

	// A reader keeps its first lock away.
	tx := reader.db.Begin()
	require.NoError(t, tx.Exec("SELECT FROM inbox_messages").Error)
	done := partition(5 * time.Second)
	for i := range 5 {
		app.accept(noon, fmt.Sprint("read", i))
	}
	require.ErrorIs(t, <-done, store.ErrPartitionsBusy)
	require.NoError(t, tx.Rollback().Error)

	// An old snapshot keeps its indexes from becoming valid.
	tx = reader.db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, tx.Exec("SELECT FROM pg_class").Error)
	done = partition(20 * time.Second)
	p.awaitIndex(false)
	app.accept(noon, "during")
	require.ErrorContains(t, p.store.Partition(t.Context()), "another call changes the layout")
	require.NoError(t, app.db.Exec("DELETE FROM inbox_messages WHERE id = 'gone'").Error)
	require.Error(t, <-done)
	require.NoError(t, tx.Rollback().Error)

	require.NoError(t, p.db.Exec("CREATE VIEW report AS SELECT id FROM inbox_messages").Error)
	require.Eventually(t, func() bool { // once the server has ended the other call
		err = p.store.Partition(t.Context())
		return err != nil && strings.Contains(err.Error(), "view report")
	}, testenv.Patience, time.Second)
	require.NoError(t, p.db.Exec("DROP VIEW report").Error)
	require.NoError(t, p.store.Unpartition(t.Context()), "takes back what has begun")
	require.Error(t, p.db.Exec("SELECT FROM inbox_message_ids").Error)
	require.NoError(t, p.store.Partition(t.Context()))
	require.Equal(t, []bool{false, true, true}, app.accept(noon, "during", "gone", "new"))
	require.ElementsMatch(t, p.rows("inbox_parted_messages"), p.rows("inbox_message_ids"))
}

// TestLaneHeldByNoRowStopsNoClaim proves that neither the switch nor a mistake leaves a lane blocked.
func TestLaneHeldByNoRowStopsNoClaim(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "a", "b")
	require.NoError(t, p.db.Exec("CREATE SCHEMA other; INSERT INTO inbox_lane_holders VALUES (1, 2)").Error)
	hold := func(db *gorm.DB, id string, holds bool) error {
		return db.Exec("UPDATE public.inbox_parted_handler_statuses SET lane_handler = 1, lane_key = 2, holds_lane = ? WHERE message_id = ?", holds, id).Error
	}
	require.NoError(t, p.db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("SET LOCAL search_path = other").Error)
		return hold(tx, "a", true)
	}))
	require.True(t, store.IsUniqueViolation(hold(p.db, "b", true)))
	require.NoError(t, p.db.Exec("DELETE FROM inbox_lane_holders").Error)
	require.True(t, store.IsSerialization(hold(p.db, "a", false)))
	require.NoError(t, p.db.Exec("INSERT INTO inbox_lane_holders VALUES (1, 2)").Error)
	require.NoError(t, hold(p.db, "a", false))
	require.NoError(t, hold(p.db, "b", true))
}

// TestCleanupReadsAndDeletesInParts proves that a walk reads no more forgotten messages than others, deletes whole
// messages from partitions that have not expired, and that what cannot be dropped stops nothing.
func TestCleanupReadsAndDeletesInParts(t *testing.T) {
	t.Parallel()
	p := newParted(t)
	p.accept(noon, "1", "2", "3", "4")
	p.complete(noon, p.claim(noon, 10)...)
	req := store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 2, Live: true}
	cleaned, err := p.store.Cleanup(t.Context(), req)
	require.NoError(t, err)
	require.EqualValues(t, 2, cleaned.Messages)
	require.Equal(t, []string{"3", "4"}, p.rows("inbox_parted_messages"))
	require.Equal(t, []string{"3", "4"}, p.rows("inbox_parted_handler_statuses"))

	_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	require.Equal(t, 1, kept.Began)
	p.accept(noon.Add(2*time.Hour), "5")
	p.complete(noon.Add(2*time.Hour), p.claim(noon.Add(2*time.Hour), 10)...)
	require.NoError(t, p.db.Exec("DELETE FROM inbox_message_ids WHERE id = '3'").Error)
	req.Live, req.Limit = false, 1
	found, err := p.store.Expired(t.Context(), req)
	require.NoError(t, err)
	require.Empty(t, found.MessageNumbers)
	require.False(t, found.Done)
	req.After = found.Next
	found, err = p.store.Expired(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, found.MessageNumbers, 1)

	_, err = p.store.KeepPartitions(t.Context(), store.PartitionsRequest{Before: noon.Add(time.Hour), Limit: 10})
	require.NoError(t, err)
	require.NoError(t, p.db.Exec("CREATE VIEW v AS SELECT * FROM inbox_parted_messages_p2").Error)
	for began := range 2 {
		at := noon.Add(time.Duration(4+2*began) * time.Hour)
		kept, err = p.store.KeepPartitions(t.Context(),
			store.PartitionsRequest{Before: at.Add(-time.Hour), Every: time.Hour, Now: at, Limit: 10})
		require.ErrorContains(t, err, "drop a detached partition")
		require.Equal(t, store.PartitionsResult{Began: 1, Dropped: 1, Moved: 1}, kept)
		p.accept(at, fmt.Sprint("at", began))
		p.complete(at, p.claim(at, 10)...)
		_, err = p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: at.Add(time.Hour), Limit: 10})
		require.NoError(t, err)
	}
}

// TestDeleteAndRedeliveryDoNotDeadlock proves that an operator's deletion locks the ID first.
func TestDeleteAndRedeliveryDoNotDeadlock(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, q := opened(t, dsn), opened(t, dsn)
	require.NoError(t, p.store.Partition(t.Context()))
	p.accept(noon, "a")
	claims := p.claim(noon, 1)
	p.complete(noon, claims...)
	done := make(chan []bool, 1)
	require.NoError(t, p.store.Act(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("SELECT FROM inbox_message_ids FOR UPDATE").Error)
		go func() { done <- q.accept(noon, "a") }()
		p.awaitLock("%")
		_, _, _, err := p.store.DeleteMessage(t.Context(), tx.Statement.ConnPool, claims[0].MessageNumber)
		return err
	}))
	require.Equal(t, []bool{true}, <-done)
}

// TestUnpartitionRefusesAndLeavesNothing proves that what was forgotten does not come back, and that no accept meets
// what an attempt without its locks has left.
func TestUnpartitionRefusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, reader := opened(t, dsn), opened(t, dsn)
	require.NoError(t, p.store.Partition(t.Context()))
	_, err := p.store.KeepPartitions(t.Context(),
		store.PartitionsRequest{Before: noon, Now: noon, Limit: 10})
	require.NoError(t, err)
	p.accept(noon, "a")
	tx := reader.db.Begin()
	require.NoError(t, tx.Exec("SELECT FROM inbox_parted_messages").Error)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.ErrorIs(t, p.store.Unpartition(ctx), store.ErrPartitionsBusy)
	require.NoError(t, tx.Rollback().Error)
	p.complete(noon, p.claim(noon, 1)...)
	cleaned, err := p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 1, cleaned.Messages)
	require.Equal(t, []bool{true}, p.accept(noon, "a"), "in spite of an index on IDs")
	require.NoError(t, p.store.Partition(t.Context()), "takes it back")
	var left []string
	require.NoError(t, p.db.Raw("SELECT indexname FROM pg_indexes WHERE indexname LIKE '%plain%'").Scan(&left).Error)
	require.Empty(t, left)

	require.NoError(t, p.db.Exec(`INSERT INTO inbox_parted_messages_kept
		SELECT id, namespace, 5, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at FROM inbox_parted_messages WHERE id = 'a'`).Error)
	require.NoError(t, p.db.Exec(`UPDATE inbox_parted_handler_statuses SET message_number = 5`).Error)
	require.ErrorIs(t, p.store.Unpartition(t.Context()), store.ErrPartitionsLeft)
	p.complete(noon, p.claim(noon, 1)...)
	require.NoError(t, p.store.Unpartition(t.Context()))
	require.Equal(t, []string{"a"}, p.rows("inbox_messages"))
	require.NoError(t, reader.acceptTx("b"))
}

// TestPartitionThatLostItsTurnChangesNothing proves that a call fails whose session was lost that keeps others away, if
// another one began meanwhile.
func TestPartitionThatLostItsTurnChangesNothing(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, other := opened(t, dsn), opened(t, dsn)
	p.accept(noon, "a", "b")
	tx := other.db.Begin()
	done := make(chan error, 1)
	held := make(chan struct{})
	go func() { // once the first transaction of Partition has ended, nothing keeps a row from being locked
		for tx.Exec("SELECT FROM inbox_message_ids").Error != nil {
			tx.Rollback()
			tx = other.db.Begin()
		}
		close(held)
	}()
	lock := opened(t, dsn).db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, lock.Exec("SELECT FROM pg_class").Error) // keeps indexes from becoming valid
	go func() { done <- p.store.Partition(context.Background()) }()
	<-held
	require.NoError(t, tx.Rollback().Error)
	require.NoError(t, other.db.Exec("COMMENT ON TABLE inbox_message_ids IS 'being filled by another'").Error)
	require.NoError(t, lock.Rollback().Error)
	require.ErrorContains(t, <-done, "another call has begun anew")
	require.Equal(t, []string{"a", "b"}, p.rows("inbox_messages"))
	require.NoError(t, p.store.Partition(t.Context()))
	require.Equal(t, []string{"a", "b"}, p.rows("inbox_message_ids"))
}

// TestIDOfADeletedMessageIsForgotten proves that a transaction with an old snapshot, which deletes a message and does
// not see its ID, leaves no ID without a message.
func TestIDOfADeletedMessageIsForgotten(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, other := opened(t, dsn), opened(t, dsn)
	p.accept(noon, "gone", "again", "stays")
	tx := other.db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, tx.Exec("SELECT FROM pg_class").Error)
	done := make(chan error, 1)
	go func() { done <- p.store.Partition(context.Background()) }()
	p.awaitIndex(false)
	require.NoError(t, tx.Exec("DELETE FROM inbox_messages WHERE id IN ('gone', 'again')").Error)
	require.NoError(t, tx.Commit().Error)
	opened(t, dsn).accept(noon, "again")
	require.NoError(t, <-done)
	require.Equal(t, []string{"again", "stays"}, p.rows("inbox_message_ids"))
	require.Equal(t, []bool{false, true, false}, p.accept(noon, "again", "gone", "stays"))
}

// TestWhatDoesNotFollowTheTablesIsRefused proves that both changes of the layout name what depends on the tables.
func TestWhatDoesNotFollowTheTablesIsRefused(t *testing.T) {
	t.Parallel()
	p := opened(t, testenv.PostgresDSN(t))
	refuses := func(change func(context.Context) error, create, drop, named string) {
		t.Helper()
		require.NoError(t, p.db.Exec(create).Error)
		require.ErrorContains(t, change(t.Context()), named)
		require.NoError(t, p.db.Exec(drop).Error)
	}
	create := p.store.Partition
	refuses(create, `ALTER TABLE inbox_messages ADD tenant text NOT NULL DEFAULT 'a'`, `ALTER TABLE inbox_messages DROP tenant`,
		"column tenant of inbox_messages")
	refuses(create, `CREATE FUNCTION total() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM inbox_messages; END`, `DROP FUNCTION total`,
		"function total()")
	refuses(create, `CREATE FUNCTION label(m inbox_messages) RETURNS text LANGUAGE sql AS 'SELECT m.id'`, `DROP FUNCTION label`,
		"function label(inbox_messages)")
	refuses(create, `CREATE PUBLICATION p FOR TABLE inbox_handler_statuses`, `DROP PUBLICATION p`, "publication p")
	refuses(create, `ALTER TABLE inbox_messages ENABLE ROW LEVEL SECURITY`, `ALTER TABLE inbox_messages DISABLE ROW LEVEL SECURITY`,
		"row security of inbox_messages")
	refuses(create, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER noted AFTER INSERT ON inbox_messages FOR EACH ROW EXECUTE FUNCTION note()`,
		`DROP TRIGGER noted ON inbox_messages`, "trigger noted")
	require.NoError(t, p.store.Partition(t.Context()))
	_, err := p.store.KeepPartitions(t.Context(), store.PartitionsRequest{Before: noon, Now: noon, Limit: 10})
	require.NoError(t, err)
	refuses(p.store.Unpartition, `CREATE VIEW report AS SELECT id FROM inbox_messages`, `DROP VIEW report`, "view report")
	require.NoError(t, p.store.Unpartition(t.Context()))
}

// TestRightsAreGivenAgainBesideReaders proves that roles get no right on a new table that they did not have on the old
// ones, and that giving rights again waits for no reader.
func TestRightsAreGivenAgainBesideReaders(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, reader := opened(t, dsn), opened(t, dsn)
	role := fmt.Sprintf("inbox_operators_%d", time.Now().UnixNano())
	script, err := postgres.Grants(models.Naming{}, postgres.Roles{Operator: role})
	require.NoError(t, err)
	require.NoError(t, p.db.Exec("CREATE ROLE "+role).Error)
	t.Cleanup(func() { p.db.Exec("DROP OWNED BY " + role); p.db.Exec("DROP ROLE " + role) })
	require.NoError(t, p.db.Exec(script).Error)
	require.NoError(t, p.store.Partition(t.Context()))
	tx := reader.db.Begin()
	require.NoError(t, tx.Exec("SELECT FROM inbox_parted_messages").Error)
	require.NoError(t, p.store.Partition(t.Context()), "beside a reader")
	require.NoError(t, tx.Rollback().Error)
	for privilege, has := range map[string]bool{
		`table_privilege('%s', 'inbox_message_ids', 'INSERT')`:                          false,
		`table_privilege('%s', 'inbox_message_ids', 'UPDATE')`:                          false,
		`table_privilege('%s', 'inbox_message_ids', 'DELETE')`:                          true,
		`column_privilege('%s', 'inbox_message_ids', 'number', 'UPDATE')`:               true,
		`column_privilege('%s', 'inbox_parted_messages_kept', 'content', 'UPDATE')`:     false,
		`table_privilege('%s', 'inbox_parted_messages_kept', 'DELETE')`:                 true,
		`table_privilege('%s', 'inbox_parted_handler_statuses_kept', 'INSERT')`:         false,
		`table_privilege('%s', 'inbox_parted_handler_statuses_kept', 'UPDATE')`:         true,
		`table_privilege('%s', 'inbox_lane_holders', 'SELECT, INSERT, UPDATE, DELETE')`: true,
	} {
		var found bool
		require.NoError(t, p.db.Raw("SELECT has_"+fmt.Sprintf(privilege, role)).Scan(&found).Error)
		require.Equal(t, has, found, privilege)
	}
}

// TestLanesAndReadsFollowTheLayout proves that ordered claims run again for the new layout, and that a program that
// only reads does not go on to read the views.
func TestLanesAndReadsFollowTheLayout(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, claimer, advancer, reader := opened(t, dsn), opened(t, dsn), opened(t, dsn), opened(t, dsn)
	for _, late := range []*parted{claimer, advancer} {
		_, err := late.store.Partitioned(t.Context())
		require.NoError(t, err)
	}
	p.accept(noon, "plain")
	require.NoError(t, p.store.Partition(t.Context()))
	rule := &store.LaneRule{Handlers: []int64{1}}
	claimed, err := claimer.store.Claim(t.Context(),
		store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: rule}}})
	require.NoError(t, err)
	require.Len(t, claimed.Claims, 1)
	_, err = advancer.store.AdvanceLanes(t.Context(),
		[]store.LaneRequest{rule.Request(store.Lane{Handler: 1, Key: 2})}, noon)
	require.NoError(t, err)
	reader.store.Pool(t.Context())
	require.Equal(t, "partitioned", reader.store.Layout())
}

// TestFailureOfAnotherCauseIsNoChangeOfTheLayout proves that a caller's transaction is told to try again once, not
// forever.
func TestFailureOfAnotherCauseIsNoChangeOfTheLayout(t *testing.T) {
	t.Parallel()
	p := opened(t, testenv.PostgresDSN(t))
	require.NoError(t, p.db.Exec("ALTER TABLE inbox_messages RENAME COLUMN source TO origin").Error)
	require.ErrorIs(t, p.acceptTx("a"), store.ErrLayoutChanged)
	require.False(t, store.IsTransient(p.acceptTx("a")))
}

// TestSnapshotOlderThanADropIsToldToTryAgain proves that a caller's transaction that cannot see where a message was
// moved gets an error that says so.
func TestSnapshotOlderThanADropIsToldToTryAgain(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, other := opened(t, dsn), opened(t, dsn)
	require.NoError(t, p.store.Partition(t.Context()))
	p.accept(noon, "open")
	_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
	require.Equal(t, 1, kept.Began)
	p.accept(noon.Add(2*time.Hour), "second")
	_, err := other.store.Partitioned(t.Context())
	require.NoError(t, err)
	err = other.db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("SELECT FROM pg_class").Error)
		_, kept := p.clean(noon.Add(time.Hour), 0, noon.Add(2*time.Hour))
		require.Equal(t, store.PartitionsResult{Dropped: 1, Moved: 1}, kept)
		_, err := other.store.AcceptTx(t.Context(), tx, store.AcceptBatch{Messages: []store.NewMessage{numbered("open")}, Now: noon})
		return err
	}, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.Error(t, err)
	require.True(t, store.IsTransient(err), err)
}

// TestSnapshotOlderThanTheChangeFollowsIt proves that a caller's transaction that began before the change sees the
// change nevertheless, and does not take it back.
func TestSnapshotOlderThanTheChangeFollowsIt(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p, late, reader := opened(t, dsn), opened(t, dsn), opened(t, dsn)
	p.accept(noon, "a")
	_, err := late.store.Partitioned(t.Context())
	require.NoError(t, err)
	old := reader.db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, old.Exec("SELECT FROM pg_class").Error) // keeps indexes from becoming valid
	done := make(chan error, 1)
	go func() { done <- p.store.Partition(context.Background()) }()
	p.awaitIndex(false)
	keeps := opened(t, dsn).db.Begin()
	require.NoError(t, keeps.Exec("SELECT FROM inbox_messages").Error) // keeps the tables from being renamed
	require.NoError(t, old.Rollback().Error)
	p.awaitIndex(true)
	p.awaitLock("LOCK TABLE ONLY%")
	var open [2]*gorm.DB
	for i := range open {
		open[i] = late.db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, open[i].Exec("SELECT FROM pg_class").Error)
	}
	require.NoError(t, keeps.Rollback().Error)
	require.NoError(t, <-done)
	for i, tx := range open {
		_, err := late.store.AcceptTx(t.Context(), tx,
			store.AcceptBatch{Messages: []store.NewMessage{numbered("a")}, Now: noon})
		if i == 0 {
			require.ErrorIs(t, err, store.ErrLayoutChanged)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, tx.Rollback().Error)
	}
	require.Equal(t, "partitioned", late.store.Layout())
}
