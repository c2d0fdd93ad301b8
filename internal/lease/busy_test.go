package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// file is a SQLite file whose driver waits for a given time for the lock.
type file struct{ dsn string }

func newFile(t *testing.T, busyTimeout time.Duration) file {
	t.Helper()
	f := file{testenv.BusyTimeout(testenv.SQLiteDSN(t), busyTimeout)}
	tables(t, &inboxtest.Database{Dialect: "sqlite", DB: f.open(t)})
	return f
}

func (f file) open(t *testing.T) *gorm.DB { return testenv.OpenSQLite(t, f.dsn) }

// hold returns a hold that works as if in a process of its own.
func (f file) hold(t *testing.T, ttl time.Duration) (*lease.Hold, chan change) {
	t.Helper()
	h, changes := newHold(lease.New(inboxtest.Store(t, f.open(t)), "l", uuid.NewString(), ttl, ttl/3, clock.System{}.Now))
	t.Cleanup(h.End)
	return h, changes
}

// write takes the only write lock.
func (f file) write(t *testing.T) (free func()) {
	t.Helper()
	tx := f.open(t).Begin()
	require.NoError(t, tx.Error)
	return func() { require.NoError(t, tx.Rollback().Error) }
}

func until(t *testing.T, d time.Duration, do func()) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		do()
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
}

func TestBusyFileDoesNotEndTheLease(t *testing.T) {
	testenv.Long(t)
	for name, busyTimeout := range map[string]time.Duration{
		"the driver gives up first":            50 * time.Millisecond,
		"the statement's deadline comes first": testenv.Patience,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 4 * time.Second
			f := newFile(t, busyTimeout)
			h, changes := f.hold(t, ttl)
			require.NoError(t, h.Try(t.Context()))
			require.True(t, (<-changes).held)
			term := h.Term()
			free := f.write(t)
			until(t, ttl+ttl/2, func() {
				require.True(t, store.IsWaiting(h.Try(t.Context())))
				require.True(t, h.Held(), "no one else can have taken it")
			})

			// A hold that does not hold the lease gains nothing from this.
			other, others := f.hold(t, ttl)
			require.True(t, store.IsWaiting(other.Try(t.Context())))
			require.False(t, other.Held())
			require.Empty(t, others)
			free()
			require.NoError(t, h.Try(t.Context()))
			require.NoError(t, term.Err())
			require.True(t, h.Held() && h.Fresh())
			require.Empty(t, changes)
		})
	}
}

// TestTakenLeaseHasOneHolderAtATime lets another writer hold the lock
// each time the holder wants to write, until the lease runs out in the database.
func TestTakenLeaseHasOneHolderAtATime(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const ttl = 3 * time.Second
	f := newFile(t, 50*time.Millisecond)
	a, ofA := f.hold(t, ttl)
	b, ofB := f.hold(t, ttl)
	require.NoError(t, a.Try(t.Context()))
	require.True(t, (<-ofA).held)
	busy := func() {
		free := f.write(t)
		require.True(t, store.IsBusy(a.Try(t.Context())))
		free()
	}
	until(t, ttl+200*time.Millisecond, busy)
	require.True(t, a.Held())
	require.NoError(t, b.Try(t.Context()), "its turn to write comes before a's")
	require.False(t, a.Held() && b.Held(), "a has not noticed yet")

	watching, end := context.WithCancel(t.Context())
	both, watched := 0, make(chan struct{})
	go func() {
		defer close(watched)
		for watching.Err() == nil {
			// In this order, because b begins after a has ended.
			if begun := b.Held(); begun && a.Held() {
				both++
			}
		}
	}()
	lost := inboxtest.Receive(t, ofA, "the loss, although a does nothing more")
	require.False(t, lost.held)
	require.ErrorContains(t, lost.why, "another worker")
	require.True(t, inboxtest.Receive(t, ofB, "b's term").held)
	free := f.write(t)
	require.True(t, store.IsBusy(a.Try(t.Context())))
	free()
	until(t, ttl/2, func() { require.NoError(t, b.Try(t.Context())) })
	require.NoError(t, a.Try(t.Context()))
	require.False(t, a.Held())
	require.True(t, b.Held())
	end()
	<-watched
	require.Zero(t, both)
}

func TestTakenLeaseWaitsUntilItsOldHolderCanKnow(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const ttl = 2 * time.Second
	f := newFile(t, testenv.Patience)
	begin := func(h *lease.Hold, changes chan change) time.Duration {
		at := time.Now()
		require.NoError(t, h.Try(t.Context()))
		require.True(t, inboxtest.Receive(t, changes, "the term").held)
		return time.Since(at)
	}
	a, ofA := f.hold(t, ttl)
	require.NoError(t, a.Try(t.Context()))
	require.Len(t, ofA, 1, "no one held it")
	a.End() // and its process vanishes
	inboxtest.Exec(t, f.open(t), "UPDATE inbox_locks SET expires_at = '2000-01-01 00:00:00.000000+00:00'")
	b, ofB := f.hold(t, ttl)
	require.Greater(t, begin(b, ofB), ttl/4-ttl/40, "it was another's")

	// The grace also applies if the response was lost. It does not apply to a hold that has lost
	// the lease meanwhile.
	inboxtest.Exec(t, f.open(t), "UPDATE inbox_locks SET expires_at = '2000-01-01 00:00:00.000000+00:00'")
	st := &lostAnswers{Store: inboxtest.Store(t, f.open(t))}
	c, ofC := newHold(newLease(st, ttl))
	defer c.End()
	require.ErrorIs(t, c.Try(t.Context()), context.DeadlineExceeded)
	require.Greater(t, begin(c, ofC), ttl/4-ttl/40, "it was another's")
	inboxtest.Exec(t, f.open(t), "UPDATE inbox_locks SET expires_at = '2000-01-01 00:00:00.000000+00:00'")
	d, ofD := f.hold(t, 4*ttl) // leaves time to take it away
	require.NoError(t, d.Try(t.Context()))
	inboxtest.Exec(t, f.open(t), "UPDATE inbox_locks SET owner_id = ?", uuid.NewString())
	require.NoError(t, d.Try(t.Context()))
	until(t, ttl+ttl/4, func() { require.Empty(t, ofD) })
}

// lostAnswers loses the response of its first acquire.
type lostAnswers struct {
	store.Store
	lost bool
}

func (s *lostAnswers) AcquireLease(
	ctx context.Context, name, owner string, ttl time.Duration, now time.Time,
) (bool, error) {
	held, err := s.Store.AcquireLease(ctx, name, owner, ttl, now)
	if !s.lost && err == nil {
		s.lost = true
		return false, context.DeadlineExceeded
	}
	return held, err
}
