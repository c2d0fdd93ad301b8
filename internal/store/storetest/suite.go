// Package storetest is the conformance suite of internal/store: what every dialect must do, with
// one caller and with racing callers.
package storetest

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// patience bounds every wait of the suite.
const patience = testenv.Patience

// noon is when most of the suite takes place.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456000, time.UTC)

// Run runs the suite. open returns a fresh, migrated inbox with the default names, and its pool,
// which must allow several connections.
func Run(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store)) {
	RunOn(t, open, onPostgres)
}

// RunOn is Run for another database server, whose own means serverOf returns.
func RunOn(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store), serverOf func(*gorm.DB) Server) {
	run(t, open, serverOf, statementGroups)
	run(t, open, serverOf, []group{
		{"Concurrent accepts", acceptRaceTests},
		{"Concurrent accepts of rejected messages", rejectedRaceTests},
		{"Concurrent lanes", laneRaceTests},
		{"Cleanup against accept", cleanupRaceTests},
		{"Size", sizeTests},
		{"Model", modelTests},
		{"Everything concurrently", modelRaceTests},
	})
}

// RunPartitioned is Run for the partitioned layout. What deletes rows runs where these are those that were kept,
// because all others go with their partition. Everything else runs on many partitions.
//
// A run executes a third of it, see testenv.Rotation.
func RunPartitioned(t *testing.T, spread, kept func(t *testing.T) (*gorm.DB, store.Store)) {
	RunPartitionedOn(t, spread, kept, onPostgres)
}

// RunPartitionedOn is RunPartitioned for another database server.
func RunPartitionedOn(
	t *testing.T, spread, kept func(t *testing.T) (*gorm.DB, store.Store), serverOf func(*gorm.DB) Server,
) {
	const parts = 3
	part := testenv.Rotation(t, parts)
	t.Logf("part %d of %d (%s=all runs all)", part, parts, testenv.RotationVariable)
	deletes := func(g group) bool { return g.name == "Cleanup" || g.name == "Archive" }
	elsewhere := func(g group) bool { // neither messages nor statuses
		return slices.Contains([]string{"Leases", "Markers", "Gaps", "Requests"}, g.name)
	}
	groups := slices.DeleteFunc(slices.Clone(statementGroups), elsewhere)
	groups = append(groups, group{"Concurrent accepts", acceptRaceTests}, group{"Concurrent lanes", laneRaceTests})
	deleting := append(slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return !deletes(g) }),
		group{"Cleanup against accept", cleanupRaceTests}, group{"Model", modelTests},
		group{"Everything concurrently", modelRaceTests})
	others := slices.DeleteFunc(groups, deletes)
	n := 0
	notNow := func(group) bool {
		n++
		return part != testenv.All && n%parts != part
	}
	run(t, spread, serverOf, slices.DeleteFunc(others, notNow))
	run(t, kept, serverOf, slices.DeleteFunc(deleting, notNow))
}

// RunPortable is Run for a store on PostgreSQL with the portable profile.
func RunPortable(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store)) {
	RunOn(t, open, func(*gorm.DB) Server { return postgres{portable: true} })
}

// RunStatements runs every statement. It leaves out what depends on the database alone: races,
// sizes and the model. It is for a second way to use a database with which Run has run everything.
func RunStatements(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store)) {
	run(t, open, onPostgres, statementGroups)
}

var statementGroups = []group{
	{"Accept", acceptTests},
	{"AcceptTx", acceptTxTests},
	{"Local dispatch", dispatchTests},
	{"Not before", notBeforeTests},
	{"Rejected", rejectedTests},
	{"Claim", claimTests},
	{"Lanes", slices.Concat(laneTests, laneOrderTests, laneNextTests, laneRunTests, laneWaitingTests, laneNameTests)},
	{"Complete", completeTests},
	{"Settle", settleTests},
	{"Sweeps", sweepTests},
	{"Backlog", backlogTests},
	{"Workers", workerTests},
	{"Leases", leaseTests},
	{"Cleanup", cleanupTests},
	{"Archive", archiveTests},
	{"Markers", markerTests},
	{"Prune", pruneTests},
	{"Progress", progressTests},
	{"Publish", publishTests},
	{"Gaps", gapTests},
	{"Requests", requestTests},
	{"Actions", actionTests},
	{"Requests to workers", workerRequestTests},
	{"Handlers as operators see them", handlerViewTests},
	{"Errors", errorTests},
}

// RunAccepts runs everything that accepts, for a second way to do that.
func RunAccepts(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store)) {
	run(t, open, onPostgres, []group{
		{"Accept", acceptTests},
		{"AcceptTx", acceptTxTests},
		{"Local dispatch", dispatchTests},
		{"Not before", notBeforeTests},
		{"Rejected", rejectedTests},
		{"Gaps", gapTests},
		{"Concurrent accepts", acceptRaceTests},
		{"Concurrent accepts of rejected messages", rejectedRaceTests},
		{"Cleanup against accept", cleanupRaceTests},
	})
}

type group struct {
	name  string
	tests []test
}

func run(t *testing.T, open func(t *testing.T) (*gorm.DB, store.Store), serverOf func(*gorm.DB) Server,
	groups []group,
) {
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.promise, func(t *testing.T) {
					db, opened := open(t)
					ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
					t.Cleanup(cancel)
					test.run(&suite{T: t, ctx: ctx, db: db, store: opened, server: serverOf(db)})
				})
			}
		})
	}
}

type test struct {
	promise string
	run     func(s *suite)
}

// suite is one test's inbox.
type suite struct {
	*testing.T
	ctx   context.Context
	db    *gorm.DB
	store store.Store
	// server is not used where there is a single writer.
	server Server
}

// message returns a message for the given handlers.
func message(id string, handlers ...string) store.NewMessage {
	m := store.NewMessage{Message: models.Message{
		ID: id, Namespace: "orders", TransportName: "kafka", Type: "order.placed", Source: "/shop",
		Content:     []byte(`{"id":"` + id + `"}`),
		ContentType: "application/json", SerializedProperties: `{"k":"v"}`,
	}}
	for _, handler := range handlers {
		m.Handlers = append(m.Handlers, store.NewStatus{HandlerKey: handler})
	}
	return m
}

// isServer reports whether the database is like a server, with concurrent writers and a clock for all.
func (s *suite) isServer() bool { return !s.store.SingleWriter() }

// onSQLite reports whether the database is SQLite, and logs why a promise does not apply there.
func (s *suite) onSQLite(why string) bool {
	if !s.isServer() {
		s.Log(why)
	}
	return !s.isServer()
}

// isPostgres reports whether the database is PostgreSQL, with typed columns, settings and means of its own.
func (s *suite) isPostgres() bool {
	_, is := s.server.(postgres)
	return is && s.isServer()
}

// seesLocks reports whether the store reads in rows by whom they are or were locked.
func (s *suite) seesLocks() bool { return s.isPostgres() && s.server.Evicts() }

// accept accepts at noon.
func (s *suite) accept(messages ...store.NewMessage) []store.Accepted {
	s.Helper()
	return s.acceptAt(noon, messages...)
}

// messages returns n messages with the IDs m000, m001 and so on.
func messages(n int, handlers ...string) (batch []store.NewMessage) {
	for i := range n {
		batch = append(batch, message(fmt.Sprintf("m%03d", i), handlers...))
	}
	return batch
}

// acceptTx accepts in a transaction.
func (s *suite) acceptTx(tx *gorm.DB, now time.Time, messages ...store.NewMessage) []store.Accepted {
	s.Helper()
	accepted, err := s.store.AcceptTx(s.ctx, tx, store.AcceptBatch{Messages: messages, Now: now})
	require.NoError(s, err)
	return accepted
}

func (s *suite) acceptAt(now time.Time, messages ...store.NewMessage) []store.Accepted {
	s.Helper()
	accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: messages, Now: now})
	require.NoError(s, err)
	require.Len(s, accepted, len(messages))
	return accepted
}

// claim claims without a worker.
func (s *suite) claim(now time.Time, limit int, keys ...string) []store.Claim {
	s.Helper()
	return s.claimAs("", now, limit, keys...)
}

func (s *suite) claimAs(worker string, now time.Time, limit int, keys ...string) []store.Claim {
	s.Helper()
	request := store.ClaimRequest{WorkerID: worker, Now: now}
	for _, key := range keys {
		request.Limits = append(request.Limits, store.KeyLimit{HandlerKey: key, Limit: limit})
	}
	claimed, err := s.store.Claim(s.ctx, request)
	require.NoError(s, err)
	return claimed.Claims
}

func (s *suite) worker(keys ...string) string {
	s.Helper()
	id := uuid.NewString()
	require.NoError(s, s.store.Heartbeat(s.ctx, store.Worker{ID: id, Host: "host", PID: 7, HandlerKeys: keys}, noon))
	return id
}

func completion(c store.Claim) store.Completion {
	return store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: models.OutcomeProcessed}
}

// completeTx completes one claim in a transaction, and reports whether that was applied.
func (s *suite) completeTx(tx *gorm.DB, c store.Claim) bool {
	s.Helper()
	applied, err := s.store.CompleteTx(s.ctx, tx, []store.Completion{completion(c)}, noon)
	require.NoError(s, err)
	return applied[0]
}

// tryComplete completes at noon, and reports which completions were applied.
func (s *suite) tryComplete(mode store.Locked, completions ...store.Completion) []bool {
	s.Helper()
	applied, err := s.store.Complete(s.ctx, completions, noon, mode)
	require.NoError(s, err)
	return applied
}

// end ends a status that is not claimed, as an operator or a worker that finds it superseded does.
func (s *suite) end(row models.HandlerStatus, outcome models.Outcome, at time.Time) {
	s.Helper()
	applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: int64(row.Version),
		Outcome: outcome}}, at, store.AwaitLocked)
	require.NoError(s, err)
	require.Equal(s, []bool{true}, applied)
}

func settlement(c store.Claim) store.Settlement {
	return store.Settlement{StatusID: c.StatusID, HandlerKey: c.HandlerKey, Version: c.Version,
		ErrorCount:     c.ErrorCount,
		AbandonedCount: c.AbandonedCount}
}

// complete completes claims and expects every row to be applied.
func (s *suite) complete(at time.Time, claims ...store.Claim) {
	s.Helper()
	var completions []store.Completion
	for _, claim := range claims {
		completions = append(completions, completion(claim))
	}
	applied, err := s.store.Complete(s.ctx, completions, at, store.AwaitLocked)
	require.NoError(s, err)
	require.NotContains(s, applied, false)
}

func (s *suite) settle(settlements ...store.Settlement) {
	s.Helper()
	applied, err := s.store.Settle(s.ctx, settlements, store.AwaitLocked)
	require.NoError(s, err)
	require.NotContains(s, applied, false)
}

// trySettle reports which settlements were applied.
func (s *suite) trySettle(mode store.Locked, settlements ...store.Settlement) []bool {
	s.Helper()
	applied, err := s.store.Settle(s.ctx, settlements, mode)
	require.NoError(s, err)
	return applied
}

// retryAt makes a claimed status pending until its next attempt.
func (s *suite) retryAt(claim store.Claim, next time.Time) {
	s.Helper()
	failed := settlement(claim)
	failed.NextAttemptAt = &next
	s.settle(failed)
}

func (s *suite) poison(claim store.Claim) {
	s.Helper()
	poisoned := settlement(claim)
	poisoned.Poisoned = true
	s.settle(poisoned)
}

// claimsOf returns a worker's claims; those without a worker for "".
func (s *suite) claimsOf(worker string) (refs []store.Ref) {
	s.Helper()
	claims, err := openClaims(s.ctx, s.store)
	require.NoError(s, err)
	for _, claim := range claims {
		if claim.WorkerID == worker {
			refs = append(refs, claim.Ref)
		}
	}
	return refs
}

// openClaims walks over all claims.
func openClaims(ctx context.Context, st store.Store) (claims []store.OpenClaim, err error) {
	keys, err := st.PendingKeys(ctx)
	if err != nil {
		return nil, err
	}
	var walks []store.ClaimWalk
	for _, key := range keys {
		walks = append(walks, store.ClaimWalk{HandlerKey: key})
	}
	for len(walks) > 0 {
		pages, err := st.OpenClaims(ctx, walks)
		if err != nil {
			return nil, err
		}
		var on []store.ClaimWalk
		for i, page := range pages {
			claims = append(claims, page.Claims...)
			if page.Next != nil {
				on = append(on, store.ClaimWalk{HandlerKey: walks[i].HandlerKey, After: page.Next})
			}
		}
		walks = on
	}
	return claims, nil
}

// statuses reads every status in the order of acceptance.
func (s *suite) statuses() []models.HandlerStatus {
	s.Helper()
	var rows []models.HandlerStatus
	require.NoError(s, s.db.WithContext(s.ctx).Order("sequence").Find(&rows).Error)
	return rows
}

// status reads one row.
func (s *suite) status(messageID, handlerKey string) models.HandlerStatus {
	s.Helper()
	var row models.HandlerStatus
	require.NoError(s, s.db.WithContext(s.ctx).Where("message_id = ? AND handler_key = ?", messageID,
		handlerKey).Take(&row).Error)
	return row
}

// pairs formats statuses as "message/handler".
func pairs(rows []models.HandlerStatus) []string {
	found := make([]string, len(rows))
	for i, row := range rows {
		found[i] = row.MessageID + "/" + row.HandlerKey
	}
	return found
}

func claimed(claims []store.Claim) []string {
	found := make([]string, len(claims))
	for i, claim := range claims {
		found[i] = claim.MessageID + "/" + claim.HandlerKey
	}
	return found
}

// messageIDs returns the IDs of the stored messages.
func (s *suite) messageIDs() []string {
	s.Helper()
	ids := []string{}
	require.NoError(s, s.db.WithContext(s.ctx).Model(&models.Message{}).Order("id").Pluck("id", &ids).Error)
	return ids
}

// numbers returns the numbers of stored messages, in the order of the IDs.
func (s *suite) numbers(ids ...string) []int64 {
	s.Helper()
	return s.numbersIn("orders", ids...)
}

func (s *suite) numbersIn(namespace string, ids ...string) []int64 {
	s.Helper()
	numbers := make([]int64, len(ids))
	for i, id := range ids {
		require.NoError(s, s.db.WithContext(s.ctx).Model(&models.Message{}).Where("id = ? AND namespace = ?", id,
			namespace).Select("number").
			Take(&numbers[i]).Error, id)
	}
	return numbers
}

// waitForLock returns once some connection waits for a lock. SQLite shows no locks, and lets no
// other writer past an open write transaction.
func (s *suite) waitForLock() {
	s.Helper()
	if s.isServer() {
		s.waitForLocks(1)
	}
}

// waitForLocks returns once this many connections wait for a lock.
func (s *suite) waitForLocks(count int) {
	s.Helper()
	require.Eventually(s, func() bool {
		waiting, err := s.server.Waiting(s.db.WithContext(s.ctx))
		return err == nil && waiting >= count
	}, patience, 2*time.Millisecond)
}

// releaseWorkerDuring marks a worker as released while one of its statements is held before its
// commit, and checks that the statement's claims are not missed.
func (s *suite) releaseWorkerDuring(worker string, release func() error, statement func() (claims int, err error)) {
	s.Helper()
	type outcome struct {
		claims int
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		claims, err := statement()
		done <- outcome{claims, err}
	}()
	s.waitForLock()
	soon, cancel := context.WithTimeout(s.ctx, patience/2)
	defer cancel()
	require.NoError(s, s.store.Heartbeat(soon, store.Worker{ID: worker, Host: "host", PID: 7,
		HandlerKeys: []string{"mail"}}, noon), "a heartbeat does not wait for the statement")
	require.ErrorIs(s, s.store.MarkReleased(s.ctx, worker, noon), store.ErrWorkerBusy)
	require.Empty(s, done)
	require.NoError(s, release())
	require.Equal(s, outcome{claims: 1}, <-done)
	require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
	require.Len(s, s.claimsOf(worker), 1)
}

// hold stops each of these statements, after it has written and before its commit, until release is called.
func (s *suite) hold(event Event) (release func() error) {
	s.Helper()
	release, err := s.server.Hold(s.db, event)
	require.NoError(s, err)
	s.Cleanup(func() { _ = release() })
	return release
}

// lock locks rows for a transaction, for each of its statements.
func (s *suite) lock(tx *gorm.DB, table, where string) {
	s.Helper()
	require.NoError(s, s.server.Lock(tx, table, where))
}

// begin opens a transaction that is rolled back when the test ends, unless it ended before.
func (s *suite) begin() *gorm.DB {
	s.Helper()
	of, err := dialects.Of(s.db)
	require.NoError(s, err)
	tx := s.db.WithContext(s.ctx).Begin(&sql.TxOptions{Isolation: of.Stated})
	require.NoError(s, tx.Error)
	s.Cleanup(func() { tx.Rollback() })
	return tx
}

// poolOf returns the pool of a session as the store gives it to operators.
func (s *suite) poolOf(db *gorm.DB) gorm.ConnPool {
	s.Helper()
	of, err := dialects.Of(db)
	require.NoError(s, err)
	return of.Session(db).Statement.ConnPool
}

// byTheMachinesClock makes the times that the suite passes those of a machine, which the database's
// clock bounds. Otherwise they are a test's.
func (s *suite) byTheMachinesClock() {
	s.Helper()
	own, _ := s.server.(postgres)
	s.store = opened(s, s.db, store.Options{Portable: own.portable})
}

// Migrated creates the tables and a store on a fresh database.
func Migrated(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	return db, opened(t, db, store.Options{TestClock: true})
}

// MigratedPortable is Migrated with the portable profile. The store is on a pool of its own.
func MigratedPortable(t testing.TB, db, own *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	return db, opened(t, own, store.Options{TestClock: true, Portable: true})
}

// MigratedKept is Migrated with the partitioned layout. All rows are in the partitions of what is kept, from which
// cleanup deletes rows.
func MigratedKept(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	db, st := partitioned(t, db)
	require.NoError(t, db.Exec(`DROP TABLE inbox_parted_messages_p0, inbox_parted_messages_p1,
		inbox_parted_handler_statuses_p0, inbox_parted_handler_statuses_p1`).Error)
	return db, st
}

// MigratedSpread is Migrated with the partitioned layout, of which every fourth message begins a partition. After ten
// partitions rows are kept in the last.
func MigratedSpread(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	db, st := partitioned(t, db)
	for slot := int64(2); slot <= 10; slot++ {
		for table := range strings.FieldsSeq("inbox_parted_messages inbox_parted_handler_statuses") {
			require.NoError(t, db.Exec(fmt.Sprintf("CREATE TABLE %[1]s_p%[2]d PARTITION OF %[1]s FOR VALUES FROM (%[2]d0000000000) TO (%[3]d0000000000)",
				table, slot, slot+1)).Error)
		}
	}
	require.NoError(t, db.Exec("ALTER SEQUENCE inbox_message_ids_number_seq INCREMENT BY 2500000007").Error)
	return db, st
}

// MigratedMySQLKept and MigratedMySQLSpread are MigratedKept and MigratedSpread on MySQL and MariaDB.
func MigratedMySQLKept(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	return repartitioned(t, db, "PARTITION kept VALUES LESS THAN (9000000000000000)")
}

func MigratedMySQLSpread(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	parts := "PARTITION kept VALUES LESS THAN (10000000001)"
	for i := range 9 {
		parts += fmt.Sprintf(", PARTITION q%d VALUES LESS THAN (%d)", i, 10_000_000_004+3*i)
	}
	return repartitioned(t, db, parts+", PARTITION p1 VALUES LESS THAN (20000000000)")
}

func repartitioned(t testing.TB, db *gorm.DB, parts string) (*gorm.DB, store.Store) {
	t.Helper()
	db, st := partitioned(t, db)
	for table := range strings.FieldsSeq("inbox_parted_messages inbox_parted_handler_statuses") {
		require.NoError(t, db.Exec("ALTER TABLE "+table+" REORGANIZE PARTITION kept, p0, p1 INTO ("+parts+")").Error)
	}
	return db, st
}

func partitioned(t testing.TB, db *gorm.DB) (*gorm.DB, store.Store) {
	t.Helper()
	db, st := Migrated(t, db)
	require.NoError(t, st.(interface{ Partition(context.Context) error }).Partition(t.Context()))
	found, err := st.Partitioned(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	// The tests name the plain tables in their statements.
	plain := regexp.MustCompile(`\binbox_(messages|handler_statuses)\b`)
	rename := func(db *gorm.DB) {
		db.Statement.Table = plain.ReplaceAllString(db.Statement.Table, "inbox_parted_$1")
		text := plain.ReplaceAllString(db.Statement.SQL.String(), "inbox_parted_$1")
		db.Statement.SQL.Reset()
		db.Statement.SQL.WriteString(text)
	}
	require.NoError(t, db.Callback().Raw().Before("gorm:raw").Register("parted", rename))
	require.NoError(t, db.Callback().Query().Before("gorm:query").Register("parted", rename))
	require.NoError(t, db.Callback().Row().Before("gorm:row").Register("parted", rename))
	require.NoError(t, db.Callback().Create().Before("gorm:create").Register("parted", rename))
	require.NoError(t, db.Callback().Update().Before("gorm:update").Register("parted", rename))
	require.NoError(t, db.Callback().Delete().Before("gorm:delete").Register("parted", rename))
	return db, st
}

func (s *suite) partitioned() bool {
	found, err := s.store.Partitioned(s.ctx)
	require.NoError(s, err)
	return found
}

func opened(t testing.TB, db *gorm.DB, options store.Options) store.Store {
	t.Helper()
	st, err := stores.New(db, models.Naming{}, options)
	require.NoError(t, err)
	return st
}

var sizeTests = []test{
	{"20,000 statuses are accepted, claimed, completed and cleaned in one call each", func(s *suite) {
		messages := 5000
		if raceDetector && !s.isPostgres() {
			messages = 500
			s.Log("a tenth of it: with the race detector SQLite in pure Go takes a minute")
		}
		handlers := []string{"a", "b", "c", "d"}
		batch := make([]store.NewMessage, messages)
		for i := range batch {
			batch[i] = message(fmt.Sprintf("m%05d", (i*7919)%messages), handlers...)
		}
		for i, accepted := range s.accept(batch...) {
			require.Equal(s, store.Accepted{Inserted: true, StatusesAdded: 4}, accepted, i)
		}
		require.NotContains(s, s.accept(batch...), store.Accepted{Inserted: true, StatusesAdded: 4})
		order := pairs(s.statuses())
		for i, handler := range handlers {
			require.Equal(s, batch[messages-1].ID+"/"+handler, order[len(order)-4+i])
		}
		claims := s.claim(noon, messages, handlers...)
		require.Len(s, claims, len(handlers)*messages)
		settlements := make([]store.Settlement, len(claims))
		for i := range claims {
			settlements[i] = settlement(claims[i])
		}
		s.settle(settlements...)
		claims = s.claim(noon, messages, handlers...)
		require.Len(s, claims, len(handlers)*messages)
		s.complete(noon, claims...)
		require.Equal(s, store.CleanupResult{Messages: int64(messages), Statuses: int64(len(claims)), Done: true},
			s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 2 * messages}))
	}},
}
