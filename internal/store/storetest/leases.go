package storetest

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
)

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
		s.noErrors(racetest.Together(len(held), func(i int) (err error) {
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
	if s.postgres() {
		require.NoError(s,
			s.db.Exec(`UPDATE inbox_locks SET expires_at = clock_timestamp() - interval '1 millisecond'`).Error)
	}
	return noon.Add(time.Minute + time.Millisecond)
}
