package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

var sweepTests = []test{
	{"ClaimsOf lists a worker's claims and nobody else's", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"), message("m4", "mail"), message("m5", "mail"))
		mine, other := s.worker("mail"), s.worker("mail")
		claims := s.claimAs(mine, noon, 2, "mail")
		s.claimAs(other, noon, 1, "mail")
		s.claim(noon, 1, "mail")
		refs, err := s.store.ClaimsOf(s.ctx, mine, 10)
		require.NoError(s, err)
		require.ElementsMatch(s, []store.Ref{claims[0].Ref, claims[1].Ref}, refs)
		refs, err = s.store.ClaimsOf(s.ctx, mine, 1)
		require.NoError(s, err)
		require.Len(s, refs, 1)
		s.complete(noon, claims...)
		refs, err = s.store.ClaimsOf(s.ctx, mine, 10)
		require.NoError(s, err)
		require.Empty(s, refs)
	}},
	{"a dead worker's open transaction is ended, others are not", func(s *suite) {
		if !s.postgres() {
			ended, err := s.store.EvictWorker(s.ctx, s.worker("mail"))
			require.NoError(s, err)
			require.Zero(s, ended, "a SQLite transaction dies with its process")
			return
		}
		dead, alive := s.worker("mail"), s.worker("stock")
		s.accept(message("m1", "mail", "stock"))
		theirs, ours := s.claimAs(dead, noon, 1, "mail")[0], s.claimAs(alive, noon, 1, "stock")[0]
		left, kept := s.begin(), s.begin()
		for tx, claim := range map[*gorm.DB]store.Claim{left: theirs, kept: ours} {
			applied, err := completeTx(s, tx, completion(claim))
			require.NoError(s, err)
			require.True(s, applied)
		}
		ended, err := s.store.EvictWorker(s.ctx, dead)
		require.NoError(s, err)
		require.Equal(s, 1, ended)
		require.Error(s, left.Commit().Error)
		require.NoError(s, kept.Commit().Error)
		applied, err := s.store.SettleUnlocked(s.ctx, []store.Settlement{settlement(theirs)})
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
	}},
	{"a dead worker's open accepts are ended, others are not, and it can be marked released", func(s *suite) {
		if !s.postgres() {
			s.Log("a SQLite transaction dies with its process")
			return
		}
		dead, alive := s.worker("mail"), s.worker("mail")
		accept := func(worker string) *gorm.DB { // as its statement does
			tx := s.begin()
			require.NoError(s, tx.Exec(`SELECT 1 FROM inbox_workers WHERE id = ? FOR KEY SHARE`, worker).Error)
			return tx
		}
		beat := func(worker string) {
			require.NoError(s, s.store.Heartbeat(s.ctx, store.Worker{ID: worker, Host: "host", PID: 7, HandlerKeys: []string{"mail"}}, noon))
		}
		for name, c := range map[string]struct {
			accepts int
			beats   bool
		}{"one": {1, false}, "several": {3, false}, "one, before a heartbeat": {1, true}, "several, before a heartbeat": {3, true}} {
			var left []*gorm.DB
			for range c.accepts {
				left = append(left, accept(dead))
			}
			kept := []*gorm.DB{accept(alive), accept(alive)}
			if c.beats {
				beat(dead)
				beat(alive)
			}
			require.ErrorIs(s, s.store.MarkReleased(s.ctx, dead, noon), store.ErrWorkerBusy, name)
			ended, err := s.store.EvictWorker(s.ctx, dead)
			require.NoError(s, err, name)
			require.Equal(s, c.accepts, ended, name)
			for _, tx := range left {
				require.Error(s, tx.Commit().Error, name)
			}
			for _, tx := range kept {
				require.NoError(s, tx.Commit().Error, name)
			}
			ended, err = s.store.EvictWorker(s.ctx, dead)
			require.NoError(s, err, name)
			require.Zero(s, ended, name)
		}
		require.NoError(s, s.store.MarkReleased(s.ctx, dead, noon))
	}},
	{"CompleteUnlocked passes over what another transaction has locked", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite locks no rows")
			return
		}
		s.accept(message("m1", "mail"), message("m2", "mail"))
		claims := s.claim(noon, 2, "mail")
		tx := s.begin()
		_, err := completeTx(s, tx, completion(claims[0]))
		require.NoError(s, err)
		applied, err := s.store.CompleteUnlocked(s.ctx, []store.Completion{completion(claims[0]), completion(claims[1])}, noon)
		require.NoError(s, err)
		require.Equal(s, []bool{false, true}, applied)
		require.NoError(s, tx.Rollback().Error)
		applied, err = s.store.CompleteUnlocked(s.ctx, []store.Completion{completion(claims[0])}, noon)
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
	}},
	{"StuckClaims lists old claims without a worker", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		old := s.claim(noon, 1, "mail")
		s.claimAs(s.worker("mail"), noon, 1, "mail")
		s.claim(noon.Add(time.Minute), 1, "mail")
		refs, err := s.store.StuckClaims(s.ctx, noon, 10)
		require.NoError(s, err)
		require.Equal(s, []store.Ref{old[0].Ref}, refs)
		refs, err = s.store.StuckClaims(s.ctx, noon.Add(-time.Microsecond), 10)
		require.NoError(s, err)
		require.Empty(s, refs)
	}},
	{"PendingKeys lists each pending key once", func(s *suite) {
		keys, err := s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Empty(s, keys)
		for i := range 5 {
			s.accept(message(fmt.Sprintf("m%d", i), "a", "b", "c", "done", "poisoned", "claimed"))
		}
		s.complete(noon, s.claim(noon, 10, "done")...)
		for _, claim := range s.claim(noon, 10, "poisoned") {
			poisoned := settlement(claim)
			poisoned.Poisoned = true
			s.settle(poisoned)
		}
		s.claim(noon, 10, "claimed")
		keys, err = s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		slices.Sort(keys)
		require.Equal(s, []string{"a", "b", "c", "claimed"}, keys)
	}},
	{"PendingOf lists one key's unclaimed rows, due or not", func(s *suite) {
		s.accept(message("m1", "mail", "other"), message("m2", "mail"), message("m3", "mail"))
		next := noon.Add(time.Hour)
		snoozed := settlement(s.claim(noon, 1, "mail")[0])
		snoozed.NextAttemptAt = &next
		s.settle(snoozed)
		s.claim(noon, 1, "mail")
		refs, err := s.store.PendingOf(s.ctx, "mail", 10)
		require.NoError(s, err)
		require.Len(s, refs, 2)
		require.Equal(s, []string{"m3", "m1"}, []string{refs[0].MessageID, refs[1].MessageID})
		require.EqualValues(s, 3, refs[1].Version)
		refs, err = s.store.PendingOf(s.ctx, "mail", 1)
		require.NoError(s, err)
		require.Len(s, refs, 1)
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

var workerTests = []test{
	{"a heartbeat inserts and refreshes what a worker says of itself", func(s *suite) {
		worker := store.Worker{ID: uuid.NewString(), Host: "a", PID: 1, HandlerKeys: []string{"mail", `quo"te`}}
		require.NoError(s, s.store.Heartbeat(s.ctx, worker, noon))
		first := s.workers(noon)
		require.Len(s, first, 1)
		require.Equal(s, worker, first[0].Worker)
		require.False(s, first[0].Stopped)
		require.False(s, first[0].Released)
		worker.HandlerKeys = nil
		require.NoError(s, s.store.Heartbeat(s.ctx, worker, noon.Add(time.Second)))
		second := s.workers(noon.Add(time.Second))
		require.Len(s, second, 1)
		require.Empty(s, second[0].HandlerKeys)
		require.Equal(s, first[0].StartedAt, second[0].StartedAt)
	}},
	{"silence is told by the right clock", func(s *suite) {
		s.worker("mail")
		if !s.postgres() {
			require.Equal(s, time.Minute, s.workers(noon.Add(time.Minute))[0].SilentFor)
			return
		}
		// The database's clock: what the caller thinks is no matter.
		require.NoError(s, s.db.Exec(`UPDATE inbox_workers SET heartbeat_at = clock_timestamp() - interval '1 minute'`).Error)
		require.InDelta(s, time.Minute, s.workers(noon)[0].SilentFor, float64(10*time.Second))
	}},
	{"on PostgreSQL time passes inside a transaction too", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite goes by the caller's clock")
			return
		}
		id := s.worker("mail")
		require.NoError(s, s.db.Exec(`SELECT pg_sleep(0.02)`).Error)
		silent := s.workers(noon)[0].SilentFor
		require.GreaterOrEqual(s, silent, 20*time.Millisecond)
		require.NoError(s, s.store.Heartbeat(s.ctx, store.Worker{ID: id}, noon))
	}},
	{"a released worker's heartbeat is refused", func(s *suite) {
		worker := s.worker("mail")
		require.True(s, s.lives(worker))
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon), "twice is fine")
		require.ErrorIs(s, s.store.Heartbeat(s.ctx, store.Worker{ID: worker}, noon), store.ErrWorkerReleased)
		require.False(s, s.lives(worker))
		require.False(s, s.lives(uuid.NewString()), "nor does one without a row")
		require.True(s, s.workers(noon)[0].Released)
	}},
	{"a stopped worker is told so", func(s *suite) {
		worker := s.worker("mail")
		require.NoError(s, s.store.StopWorker(s.ctx, worker, noon))
		require.NoError(s, s.store.StopWorker(s.ctx, worker, noon))
		require.NoError(s, s.store.StopWorker(s.ctx, uuid.NewString(), noon), "an unknown one is nothing")
		require.True(s, s.workers(noon)[0].Stopped)
	}},
	{"only stopped or released workers without claims are deleted", func(s *suite) {
		s.accept(message("m1", "mail"))
		alive, stopped, released, claiming := s.worker("mail"), s.worker("mail"), s.worker("mail"), s.worker("mail")
		claims := s.claimAs(claiming, noon, 1, "mail")
		require.NoError(s, s.store.StopWorker(s.ctx, stopped, noon))
		require.NoError(s, s.store.MarkReleased(s.ctx, released, noon))
		require.NoError(s, s.store.MarkReleased(s.ctx, claiming, noon))
		all := []string{alive, stopped, released, claiming, uuid.NewString()}
		deleted, err := s.store.DeleteWorkers(s.ctx, all)
		require.NoError(s, err)
		require.EqualValues(s, 2, deleted)
		s.settle(settlement(claims[0]))
		deleted, err = s.store.DeleteWorkers(s.ctx, all)
		require.NoError(s, err)
		require.EqualValues(s, 1, deleted)
		require.Equal(s, alive, s.workers(noon)[0].ID)
	}},
}

func (s *suite) lives(worker string) bool {
	s.Helper()
	lives, err := s.store.WorkerLives(s.ctx, worker)
	require.NoError(s, err)
	return lives
}

func (s *suite) workers(now time.Time) []store.WorkerState {
	s.Helper()
	workers, err := s.store.Workers(s.ctx, now)
	require.NoError(s, err)
	return workers
}

var leaseTests = []test{
	{"one owner holds a lease, renews it and gives it up", func(s *suite) {
		a, b := uuid.NewString(), uuid.NewString()
		require.True(s, s.acquire("p", a, time.Minute, noon))
		require.False(s, s.acquire("p", b, time.Minute, noon))
		require.True(s, s.acquire("p", a, time.Minute, noon))
		require.True(s, s.acquire("other", b, time.Minute, noon))
		require.NoError(s, s.store.ReleaseLease(s.ctx, "p", b), "not its own: nothing")
		require.False(s, s.acquire("p", b, time.Minute, noon))
		require.NoError(s, s.store.ReleaseLease(s.ctx, "p", a))
		require.Empty(s, s.leaseOwner("p"))
		require.True(s, s.acquire("p", b, time.Minute, noon))
		require.Equal(s, b, s.leaseOwner("p"))
	}},
	{"an ended lease goes to the next, who keeps it", func(s *suite) {
		a, b := uuid.NewString(), uuid.NewString()
		require.True(s, s.acquire("p", a, time.Minute, noon))
		later := s.endLeases()
		require.Equal(s, a, s.leaseOwner("p"), "until somebody takes it")
		require.True(s, s.acquire("p", b, time.Minute, later))
		require.Equal(s, b, s.leaseOwner("p"))
		require.False(s, s.acquire("p", a, time.Minute, later))
	}},
	{"of many who want a lease one gets it", func(s *suite) {
		held := make([]bool, 20)
		s.noErrors(together(len(held), func(i int) (err error) {
			held[i], err = s.store.AcquireLease(s.ctx, "p", uuid.NewString(), time.Minute, noon)
			return err
		}))
		require.Equal(s, 1, len(slices.DeleteFunc(held, func(h bool) bool { return !h })))
	}},
	{"leases that ended long ago are pruned, others not", func(s *suite) {
		require.True(s, s.acquire("old", uuid.NewString(), time.Minute, noon))
		later := s.endLeases()
		require.True(s, s.acquire("new", uuid.NewString(), time.Minute, later))
		deleted, err := s.store.DeleteExpiredLeases(s.ctx, 24*time.Hour, later)
		require.NoError(s, err)
		require.Zero(s, deleted)
		deleted, err = s.store.DeleteExpiredLeases(s.ctx, 0, later)
		require.NoError(s, err)
		require.EqualValues(s, 1, deleted)
		require.False(s, s.acquire("new", uuid.NewString(), time.Minute, later))
	}},
	{"while somebody writes, leases and workers can be looked at", func(s *suite) {
		a, worker := uuid.NewString(), s.worker("mail")
		require.True(s, s.acquire("p", a, time.Minute, noon))
		tx := s.begin()
		require.NoError(s, tx.Exec(`UPDATE inbox_locks SET owner_id = ?`, uuid.NewString()).Error)
		require.NoError(s, tx.Exec(`UPDATE inbox_workers SET released_at = heartbeat_at`).Error)
		require.Equal(s, a, s.leaseOwner("p"))
		require.True(s, s.lives(worker))
		require.NoError(s, tx.Commit().Error)
		require.NotEqual(s, a, s.leaseOwner("p"))
		require.False(s, s.lives(worker))
		require.Equal(s, !s.postgres(), s.store.SingleWriter())
	}},
	{"on PostgreSQL a lease is judged by the database's clock", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite goes by the caller's clock")
			return
		}
		require.True(s, s.acquire("p", uuid.NewString(), time.Minute, noon))
		require.False(s, s.acquire("p", uuid.NewString(), time.Minute, noon.Add(1000*time.Hour)), "the caller's clock is no matter")
	}},
}

func (s *suite) acquire(name, owner string, ttl time.Duration, now time.Time) bool {
	s.Helper()
	held, err := s.store.AcquireLease(s.ctx, name, owner, ttl, now)
	require.NoError(s, err)
	return held
}

func (s *suite) leaseOwner(name string) string {
	s.Helper()
	owner, err := s.store.LeaseOwner(s.ctx, name)
	require.NoError(s, err)
	return owner
}

// endLeases lets the leases taken at noon end, and says what time it is then.
func (s *suite) endLeases() time.Time {
	s.Helper()
	if s.postgres() {
		require.NoError(s, s.db.Exec(`UPDATE inbox_locks SET expires_at = clock_timestamp() - interval '1 millisecond'`).Error)
	}
	return noon.Add(time.Minute + time.Millisecond)
}
