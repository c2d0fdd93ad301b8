package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var workerTests = []test{
	{"a heartbeat inserts and updates the worker's row", func(s *suite) {
		worker := store.Worker{ID: uuid.NewString(), Host: "a", PID: 1, HandlerKeys: []string{"mail", `quo"te`},
			Namespaces: map[string]string{"mail": "orders", `quo"te`: `quo"ted`}, Health: "[]"}
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
		worker.Consumers = `[{"channel":"c"}]`
		require.NoError(s, s.store.Heartbeat(s.ctx, worker, noon))
		var stored models.Worker
		require.NoError(s, s.db.Take(&stored).Error)
		require.Equal(s, worker.Consumers, stored.Consumers)
	}},
	{"silence is measured by the right clock", func(s *suite) {
		s.worker("mail")
		if !s.isServer() {
			require.Equal(s, time.Minute, s.workers(noon.Add(time.Minute))[0].SilentFor)
			return
		}
		// The database's clock counts, and the caller's does not matter.
		require.NoError(s, s.db.Model(&models.Worker{}).Where("true").Update("heartbeat_at", time.Now().Add(-time.Hour)).Error)
		require.InDelta(s, time.Hour, s.workers(noon)[0].SilentFor, float64(10*time.Minute))
	}},
	{"on PostgreSQL time passes inside a transaction too", func(s *suite) {
		if s.onSQLite("SQLite goes by the caller's clock") {
			return
		}
		id := s.worker("mail")
		<-time.After(20 * time.Millisecond)
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
	{"the heartbeat of a stopped worker reports that it has stopped", func(s *suite) {
		worker := s.worker("mail")
		require.NoError(s, s.store.StopWorker(s.ctx, worker, noon))
		require.NoError(s, s.store.StopWorker(s.ctx, worker, noon))
		require.NoError(s, s.store.StopWorker(s.ctx, uuid.NewString(), noon), "an unknown one is nothing")
		require.True(s, s.workers(noon)[0].Stopped)
	}},
	{"a drain's row differs from a worker's, and comes back", func(s *suite) {
		drain := store.Worker{ID: uuid.NewString(), Host: "a", PID: 1, HandlerKeys: []string{"mail"},
			Namespaces: map[string]string{"mail": "orders"}, Health: "[]"}
		require.NoError(s, s.store.RecordDrain(s.ctx, drain, noon))
		first := s.workers(noon)
		require.Len(s, first, 1)
		require.Equal(s, drain, first[0].Worker)
		require.True(s, first[0].Drains)
		require.True(s, first[0].Stopped)
		require.NoError(s, s.store.MarkReleased(s.ctx, drain.ID, noon))
		drain.PID = 2
		require.NoError(s, s.store.RecordDrain(s.ctx, drain, noon.Add(time.Second)))
		again := s.workers(noon.Add(time.Second))
		require.Len(s, again, 1)
		require.Equal(s, drain, again[0].Worker)
		require.False(s, again[0].Released)
		require.Less(s, again[0].SilentFor, time.Minute)
		require.NoError(s, s.store.StopWorker(s.ctx, s.worker("mail"), noon.Add(time.Second)))
		require.False(s, s.workers(noon.Add(time.Minute))[0].Drains && s.workers(noon.Add(time.Minute))[1].Drains,
			"a worker that has stopped is none")
		deleted, err := s.store.DeleteWorkers(s.ctx, []string{drain.ID})
		require.NoError(s, err)
		require.EqualValues(s, 1, deleted)
	}},
	{"only stopped or released workers are deleted, and their claims stay", func(s *suite) {
		s.accept(message("m1", "mail"))
		alive, stopped, released := s.worker("mail"), s.worker("mail"), s.worker("mail")
		claims := s.claimAs(released, noon, 1, "mail")
		require.NoError(s, s.store.StopWorker(s.ctx, stopped, noon))
		require.NoError(s, s.store.MarkReleased(s.ctx, released, noon))
		deleted, err := s.store.DeleteWorkers(s.ctx, []string{alive, stopped, released, uuid.NewString()})
		require.NoError(s, err)
		require.EqualValues(s, 2, deleted)
		require.Equal(s, alive, s.workers(noon)[0].ID)
		require.Equal(s, []store.Ref{claims[0].Ref}, s.claimsOf(released))
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
	{"an expired lease goes to the next caller, who keeps it", func(s *suite) {
		a, b := uuid.NewString(), uuid.NewString()
		require.True(s, s.acquire("p", a, time.Minute, noon))
		later := s.endLeases()
		require.Equal(s, a, s.leaseOwner("p"), "until another worker takes it")
		require.True(s, s.acquire("p", b, time.Minute, later))
		require.Equal(s, b, s.leaseOwner("p"))
		require.False(s, s.acquire("p", a, time.Minute, later))
	}},
	{"one of many concurrent callers gets a lease", func(s *suite) {
		held := make([]bool, 20)
		s.noErrors(racetest.Together(len(held), func(i int) (err error) {
			held[i], err = s.store.AcquireLease(s.ctx, "p", uuid.NewString(), time.Minute, noon)
			return err
		}))
		require.Equal(s, 1, len(slices.DeleteFunc(held, func(h bool) bool { return !h })))
	}},
	{"several leases are taken, renewed and released together", func(s *suite) {
		a, b := uuid.NewString(), uuid.NewString()
		acquire := func(owner string, now time.Time, names ...string) []string {
			held, err := s.store.AcquireLeases(s.ctx, names, owner, time.Minute, now)
			require.NoError(s, err)
			return slices.Sorted(slices.Values(held))
		}
		require.Equal(s, []string{"p", "q"}, acquire(a, noon, "q", "p"))
		require.Equal(s, []string{"r"}, acquire(b, noon, "p", "r", "q"))
		require.Equal(s, []string{"p", "q"}, acquire(a, noon, "r", "q", "p"), "its own are renewed")
		owners, err := s.store.LeaseOwners(s.ctx, []string{"r", "p", "none"})
		require.NoError(s, err)
		require.Equal(s, map[string]string{"p": a, "r": b}, owners)
		require.NoError(s, s.store.ReleaseLeases(s.ctx, []string{"q", "r"}, a))
		require.Empty(s, s.leaseOwner("q"))
		require.Equal(s, b, s.leaseOwner("r"), "not its own")
		later := s.endLeases()
		require.Equal(s, []string{"p", "q", "r"}, acquire(b, later, "p", "q", "r"), "expired, free and its own")
		many := make([]string, 1200)
		for i := range many {
			many[i] = fmt.Sprintf("many:%04d", i)
		}
		require.Equal(s, many, acquire(a, later, many...))
		require.Equal(s, many, acquire(a, later, many...))
		require.NoError(s, s.store.ReleaseLeases(s.ctx, many, a))
		owners, err = s.store.LeaseOwners(s.ctx, many)
		require.NoError(s, err)
		require.Empty(s, owners)
	}},
	{"concurrent callers share several leases, each has one owner", func(s *suite) {
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		held := make([][]string, 20)
		s.noErrors(racetest.Together(len(held), func(i int) (err error) {
			mixed := slices.Clone(names)
			rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			owner := uuid.NewString()
			held[i], err = s.store.AcquireLeases(s.ctx, mixed, owner, time.Minute, noon)
			if err == nil && i%2 == 0 {
				err = s.store.ReleaseLeases(s.ctx, mixed, owner)
				held[i] = nil
			}
			return err
		}))
		all := slices.Concat(held...)
		require.Len(s, slices.Compact(slices.Sorted(slices.Values(all))), len(all))
	}},
	{"leases that expired long ago are pruned, others stay", func(s *suite) {
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
	{"leases and workers can be read during a write", func(s *suite) {
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
		require.Equal(s, !s.isServer(), s.store.SingleWriter())
	}},
	{"on PostgreSQL a lease is judged by the database's clock", func(s *suite) {
		if s.onSQLite("SQLite goes by the caller's clock") {
			return
		}
		require.True(s, s.acquire("p", uuid.NewString(), time.Minute, noon))
		require.False(s, s.acquire("p", uuid.NewString(), time.Minute, noon.Add(1000*time.Hour)),
			"the caller's clock is no matter")
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

// endLeases lets the leases taken at noon expire, and returns the time after that.
func (s *suite) endLeases() time.Time {
	s.Helper()
	if s.isServer() {
		require.NoError(s, s.db.Model(&models.Lock{}).Where("true").Update("expires_at", time.Now().Add(-time.Second)).Error)
	}
	return noon.Add(time.Minute + time.Millisecond)
}
