package storetest

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

var sweepTests = []test{
	{"OpenClaims lists what is claimed, with its worker, and no others", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"), message("m4", "stock"))
		worker := s.worker("mail", "stock")
		mails, stocks := s.claimAs(worker, noon, 1, "mail"), s.claimAs(worker, noon.Add(time.Second), 1, "stock")
		drained := s.claim(noon.Add(time.Minute), 1, "mail")
		find := func(keys ...string) []store.OpenClaims {
			var walks []store.ClaimWalk
			for _, key := range keys {
				walks = append(walks, store.ClaimWalk{HandlerKey: key})
			}
			pages, err := s.store.OpenClaims(s.ctx, walks)
			require.NoError(s, err)
			return pages
		}
		require.Equal(s, []store.OpenClaims{
			{},
			{Claims: []store.OpenClaim{{Ref: stocks[0].Ref, WorkerID: worker, StartedAt: noon.Add(time.Second)}}},
			{Claims: []store.OpenClaim{{Ref: mails[0].Ref, WorkerID: worker, StartedAt: noon},
				{Ref: drained[0].Ref, StartedAt: noon.Add(time.Minute)}}},
		}, find("idle", "stock", "mail"))
		require.Empty(s, find())
		s.complete(noon, stocks...)
		require.Equal(s, []store.OpenClaims{{}}, find("stock"))
	}},
	{"OpenClaims reads a page and continues after it", func(s *suite) {
		s.accept(messages(2*store.ClaimPage+1, "mail")...)
		s.accept(message("due later", "mail"))
		all := s.claim(noon, 2*store.ClaimPage+2, "mail")
		claimedAt := []int{0, store.ClaimPage - 1, store.ClaimPage, 2*store.ClaimPage - 1, 2 * store.ClaimPage}
		var given []store.Settlement
		for i, claim := range all {
			if !slices.Contains(claimedAt, i) {
				given = append(given, settlement(claim))
			}
		}
		s.settle(given...)
		walk := store.ClaimWalk{HandlerKey: "mail"}
		for _, expected := range [][]int{claimedAt[:2], claimedAt[2:4], claimedAt[4:]} {
			pages, err := s.store.OpenClaims(s.ctx, []store.ClaimWalk{walk})
			require.NoError(s, err)
			var found, claims []store.Ref
			for _, claim := range pages[0].Claims {
				found = append(found, claim.Ref)
			}
			for _, i := range expected {
				claims = append(claims, all[i].Ref)
			}
			require.Equal(s, claims, found)
			walk.After = pages[0].Next
		}
		require.Nil(s, walk.After)
	}},
	{"a dead worker's open transaction is ended, others are not", func(s *suite) {
		if !s.isServer() {
			ended, err := s.store.EvictHolders(s.ctx, []store.Ref{{}}, []string{s.worker("mail")})
			require.NoError(s, err)
			require.Zero(s, ended, "a SQLite transaction dies with its process")
			return
		}
		dead, alive := s.worker("mail"), s.worker("stock")
		s.accept(message("m1", "mail", "stock"))
		theirs, ours := s.claimAs(dead, noon, 1, "mail")[0], s.claimAs(alive, noon, 1, "stock")[0]
		left, kept := s.begin(), s.begin()
		for tx, claim := range map[*gorm.DB]store.Claim{left: theirs, kept: ours} {
			require.True(s, s.completeTx(tx, claim))
		}
		require.Equal(s, 1, s.evict([]store.Ref{theirs.Ref}, nil, left))
		require.Error(s, left.Commit().Error)
		require.NoError(s, kept.Commit().Error)
		s.settledOnceUnlocked(theirs)
	}},
	{"a dead worker's transaction is ended in the middle of a statement", func(s *suite) {
		if !s.seesLocks() {
			s.Log("what is sent of a statement is PostgreSQL's protocol, and the native profile finds who has sent it")
			return
		}
		dead := s.worker("mail")
		s.accept(message("m1", "mail"))
		theirs := s.claimAs(dead, noon, 1, "mail")[0]
		pool, err := s.db.DB()
		require.NoError(s, err)
		conn, err := pool.Conn(s.ctx)
		require.NoError(s, err)
		defer conn.Close()
		statuses := "inbox_handler_statuses"
		if s.partitioned() {
			statuses = "inbox_parted_handler_statuses"
		}
		for _, sql := range []string{`BEGIN`,
			fmt.Sprintf(`UPDATE %s SET version = version WHERE id = '%s'`, statuses, theirs.StatusID)} {
			_, err = conn.ExecContext(s.ctx, sql)
			require.NoError(s, err)
		}
		require.NoError(s, conn.Raw(func(session any) error { // all of the statement except its Sync
			frontend := session.(*stdlib.Conn).Conn().PgConn().Frontend()
			frontend.SendParse(&pgproto3.Parse{Query: `SELECT 1`})
			frontend.SendBind(&pgproto3.Bind{})
			frontend.SendExecute(&pgproto3.Execute{})
			frontend.Send(&pgproto3.Flush{})
			if err := frontend.Flush(); err != nil {
				return err
			}
			for {
				switch m, err := frontend.Receive(); m.(type) {
				case *pgproto3.CommandComplete:
					return nil
				default:
					if err != nil {
						return err
					}
				}
			}
		}))
		require.Eventually(s, func() bool { // the server waits for the rest
			ended, err := s.store.EvictHolders(s.ctx, []store.Ref{theirs.Ref}, nil)
			require.NoError(s, err)
			return ended == 1
		}, testenv.Patience, 10*time.Millisecond)
		s.settledOnceUnlocked(theirs)
		require.ErrorIs(s, conn.Raw(func(any) error { return driver.ErrBadConn }), driver.ErrBadConn)
	}},
	{"a dead worker's open accepts are ended, others are not, and it can be marked released", func(s *suite) {
		if s.onSQLite("a SQLite transaction dies with its process") {
			return
		}
		dead, alive := s.worker("mail"), s.worker("mail")
		accept := func(worker string) *gorm.DB { // as its statement does
			tx := s.begin()
			require.NoError(s, s.server.LockWorker(tx, worker, true))
			return tx
		}
		evict := func(left ...*gorm.DB) int { return s.evict(nil, []string{dead}, left...) }
		for _, accepts := range []int{1, 3} {
			var left []*gorm.DB
			for range accepts {
				left = append(left, accept(dead))
			}
			kept := []*gorm.DB{accept(alive), accept(alive)}
			require.ErrorIs(s, s.store.MarkReleased(s.ctx, dead, noon), store.ErrWorkerBusy)
			require.Equal(s, accepts, evict(left...))
			for _, tx := range left {
				require.Error(s, tx.Commit().Error)
			}
			for _, tx := range kept {
				require.NoError(s, tx.Commit().Error)
			}
			// sessions release their locks after they have answered
			require.Eventually(s, func() bool { return evict() == 0 }, testenv.Patience, 10*time.Millisecond)
		}
		require.Eventually(s, func() bool {
			err := s.store.MarkReleased(s.ctx, dead, noon)
			if err != nil {
				require.ErrorIs(s, err, store.ErrWorkerBusy)
			}
			return err == nil
		}, testenv.Patience, 10*time.Millisecond)
	}},
	{"Complete that skips locked rows passes over what another transaction has locked", func(s *suite) {
		if s.onSQLite("SQLite locks no rows") {
			return
		}
		s.accept(message("m1", "mail"), message("m2", "mail"))
		claims := s.claim(noon, 2, "mail")
		tx := s.begin()
		require.True(s, s.completeTx(tx, claims[0]))
		applied := s.tryComplete(store.SkipLocked, completion(claims[0]), completion(claims[1]))
		require.Equal(s, []bool{false, true}, applied)
		require.NoError(s, tx.Rollback().Error)
		applied = s.tryComplete(store.SkipLocked, completion(claims[0]))
		require.Equal(s, []bool{true}, applied)
	}},
	{"PendingKeys lists each pending key once", func(s *suite) {
		keys, err := s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Empty(s, keys)
		s.accept(messages(5, "a", "b", "c", "done", "poisoned", "claimed")...)
		s.complete(noon, s.claim(noon, 10, "done")...)
		for _, claim := range s.claim(noon, 10, "poisoned") {
			s.poison(claim)
		}
		s.claim(noon, 10, "claimed")
		keys, err = s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		slices.Sort(keys)
		require.Equal(s, []string{"a", "b", "c", "claimed"}, keys)
	}},
	{"a paused handler key is listed until it is resumed", func(s *suite) {
		paused := func() []string {
			keys, err := s.store.Paused(s.ctx)
			require.NoError(s, err)
			return keys
		}
		require.Empty(s, paused())
		for _, key := range []string{"b", "a", "b"} {
			require.NoError(s, s.store.SetPaused(s.ctx, key, true, noon))
		}
		require.Equal(s, []string{"a", "b"}, paused())
		require.NoError(s, s.store.SetPaused(s.ctx, "b", false, noon))
		require.NoError(s, s.store.SetPaused(s.ctx, "new", false, noon))
		require.Equal(s, []string{"a"}, paused())
	}},
}

// evict returns how many sessions EvictHolders ends. Where a server shows no holders it ends none, and the suite itself
// ends those that are left, as the server does once it finds out that their clients are gone.
func (s *suite) evict(claims []store.Ref, workers []string, left ...*gorm.DB) int {
	s.Helper()
	ended, err := s.store.EvictHolders(s.ctx, claims, workers)
	require.NoError(s, err)
	if s.server.Evicts() {
		return ended
	}
	require.Zero(s, ended)
	for _, tx := range left {
		require.NoError(s, s.server.Terminate(s.db, tx))
	}
	return len(left)
}

// settledOnceUnlocked settles a claim whose row is locked by a session that is being terminated.
// The server releases the lock shortly after the session has answered.
func (s *suite) settledOnceUnlocked(claim store.Claim) {
	require.Eventually(s, func() bool {
		applied := s.trySettle(store.SkipLocked, settlement(claim))
		return applied[0]
	}, testenv.Patience, 10*time.Millisecond)
}

// backlog counts the work of these keys, without lanes.
func (s *suite) backlog(now time.Time, limit int, keys ...string) []store.Backlog {
	s.Helper()
	var limits []store.KeyLimit
	for _, key := range keys {
		limits = append(limits, store.KeyLimit{HandlerKey: key, Limit: limit})
	}
	return s.backlogOf(now, limits...)
}

func (s *suite) backlogOf(now time.Time, limits ...store.KeyLimit) []store.Backlog {
	s.Helper()
	backlogs, err := s.store.Backlog(s.ctx, limits, now)
	require.NoError(s, err)
	return backlogs
}

var backlogTests = []test{
	{"each key's statuses are counted by state", func(s *suite) {
		for i := range 8 {
			s.acceptAt(noon.Add(time.Duration(i)*time.Second), message(fmt.Sprint("m", i), "mail"))
		}
		s.accept(message("other", "stock"))
		at := noon.Add(time.Minute)
		claims := s.claim(at, 5, "mail")
		s.complete(at, claims[0])
		poisoned, later, again := settlement(claims[1]), settlement(claims[2]), settlement(claims[3])
		poisoned.Poisoned = true
		hour, second := at.Add(time.Hour), at.Add(time.Second)
		later.NextAttemptAt, again.NextAttemptAt = &hour, &second
		s.settle(poisoned, later, again)
		require.Equal(s, []store.Backlog{
			{HandlerKey: "mail", Due: 3, Processing: 1, Poisoned: 1, OldestDue: noon.Add(5 * time.Second)},
			{HandlerKey: "stock", Due: 1, OldestDue: noon},
			{HandlerKey: "idle"},
		}, s.backlog(at, 100, "mail", "stock", "idle"), "four were claimed, of which one is completed and two put off")
		require.Equal(s, 4, s.backlog(second, 100, "mail")[0].Due)
		require.Equal(s, 5, s.backlog(hour, 100, "mail")[0].Due)
		require.Empty(s, s.backlog(at, 100))
	}},
	{"nothing is counted beyond the limit", func(s *suite) {
		for i := range 9 {
			s.acceptAt(noon.Add(time.Duration(i)*time.Second), message(fmt.Sprint("m", i), "mail"))
		}
		at := noon.Add(time.Minute)
		s.claim(at, 2, "mail")
		require.Equal(s, []store.Backlog{{HandlerKey: "mail", Due: 3, Processing: 2, OldestDue: noon.Add(2 * time.Second),
			Capped: true}}, s.backlog(at, 5, "mail"))
		require.False(s, s.backlog(at, 10, "mail")[0].Capped)
	}},
	{"a row that waits for another of its lane is not due", func(s *suite) {
		rule := ruleOf("mail")
		look := func(rule *store.LaneRule) store.Backlog {
			s.Helper()
			return s.backlogOf(noon, store.KeyLimit{HandlerKey: "mail", Limit: 100, Lanes: rule})[0]
		}
		s.accept(ordered("m1", "a", "mail"), ordered("m2", "a", "mail"), ordered("m3", "a", "mail"),
			ordered("m4", "b", "mail"), message("m5", "mail"))
		require.Equal(s, store.Backlog{HandlerKey: "mail", Due: 3, Waiting: 2, OldestDue: noon}, look(&rule))
		require.Equal(s, 5, look(nil).Due, "of a handler that is not ordered")

		head := s.claimUnder(rule, noon, 1, "mail").Claims[0]
		require.Equal(s, "m1", head.MessageID)
		got := look(&rule)
		require.Equal(s, []int{2, 2, 1}, []int{got.Due, got.Waiting, got.Processing})

		s.poison(head)
		s.advance(rule, head)
		got = look(&rule)
		require.Equal(s, []int{2, 2, 0, 1}, []int{got.Due, got.Waiting, got.Processing, got.Poisoned}, "the lane is parked")
		skips := skipping(rule)
		got = look(&skips)
		require.Equal(s, []int{3, 1}, []int{got.Due, got.Waiting}, "unless its handler skips what is poisoned")
	}},
}
