package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/lease"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errLost = errors.New("lost")

// tables creates the inbox's tables.
func tables(t *testing.T, d *inboxtest.Database) store.Store {
	t.Helper()
	inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
	return inboxtest.Store(t, d.DB)
}

func newLease(st store.Store, ttl time.Duration) *lease.Lease {
	return lease.New(st, "l", uuid.NewString(), ttl, inboxtest.Patience, clock.System{}.Now)
}

// change is what a hold reports.
type change struct {
	held bool
	why  error
}

func newHold(l *lease.Lease) (*lease.Hold, chan change) {
	changes := make(chan change, 10)
	return lease.NewHold(context.Background(), l, errLost, func(held bool, why error) {
		changes <- change{held, why}
	}), changes
}

func acquire(t *testing.T, l *lease.Lease) bool {
	t.Helper()
	held, err := l.Acquire(t.Context())
	require.NoError(t, err)
	return held
}

func TestLeaseHasOneOwnerUntilItIsReleased(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		st := tables(t, d)
		a, b := newLease(st, time.Hour), newLease(st, time.Hour)
		require.True(t, acquire(t, a))
		require.False(t, acquire(t, b))
		require.NoError(t, b.Release(t.Context()), "without it, nothing")
		require.True(t, acquire(t, a), "renewed")
		require.NoError(t, a.Release(t.Context()))
		require.False(t, acquire(t, a), "given up for good")
		c := newLease(st, time.Hour)
		require.True(t, acquire(t, c))
		require.NoError(t, a.Release(t.Context()), "twice, nothing")
		require.False(t, acquire(t, newLease(st, time.Hour)))
		require.True(t, acquire(t, c))
	})
}

func TestReleaseWaitsForARunningAcquire(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		st := &slowStore{Store: tables(t, d), entered: make(chan struct{}), goOn: make(chan struct{})}
		l := newLease(st, time.Hour)
		acquired, released := make(chan bool, 1), make(chan error, 1)
		go func() {
			held, err := l.Acquire(context.Background())
			acquired <- held && err == nil
		}()
		inboxtest.Receive(t, st.entered, "the statement")
		go func() { released <- l.Release(context.Background()) }()
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Release(short), context.DeadlineExceeded)
		require.Empty(t, released)
		close(st.goOn)
		require.True(t, inboxtest.Receive(t, acquired, "the acquire"))
		require.NoError(t, inboxtest.Receive(t, released, "the release"))
		require.True(t, acquire(t, newLease(st.Store, time.Hour)), "the row did not come back")
	})
}

// slowStore delays its first acquire, as a network does.
type slowStore struct {
	store.Store
	entered, goOn chan struct{}
}

func (s *slowStore) AcquireLease(
	ctx context.Context, name, owner string, ttl time.Duration, now time.Time,
) (bool, error) {
	s.entered <- struct{}{}
	<-s.goOn
	return s.Store.AcquireLease(ctx, name, owner, ttl, now)
}

func TestTermEndsWhenTheLeaseChangesOwner(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		st := tables(t, d)
		l := newLease(st, time.Hour)
		h, changes := newHold(l)
		require.ErrorIs(t, context.Cause(h.Term()), errLost, "not held yet")
		require.NoError(t, h.Try(t.Context()))
		require.Equal(t, change{held: true}, <-changes)
		first := h.Term()
		require.NoError(t, first.Err())
		require.True(t, h.Held() && h.Fresh())
		require.NoError(t, h.Try(t.Context()))
		require.Equal(t, first, h.Term(), "a renewal begins no new term")

		inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET owner_id = ?", uuid.NewString())
		require.NoError(t, h.Try(t.Context()))
		require.ErrorIs(t, context.Cause(first), errLost)
		require.ErrorContains(t, (<-changes).why, "another worker")
		require.False(t, h.Held() || h.Fresh())
		require.NoError(t, h.Try(t.Context()))
		require.Empty(t, changes, "reported once")

		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_locks")
		require.NoError(t, h.Try(t.Context()))
		require.True(t, (<-changes).held)
		require.NoError(t, h.Term().Err())
		h.End()
		require.Error(t, h.Term().Err())
		require.NoError(t, h.Try(t.Context()))
		require.False(t, h.Held(), "it has ended")
		require.Empty(t, changes)
	})
}

func TestTermEndsWhenNoRenewalSucceedsInTime(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		h, changes := newHold(newLease(tables(t, d), 3*time.Second))
		before := time.Now()
		require.NoError(t, h.Try(t.Context()))
		<-changes
		term := h.Term()
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_locks RENAME TO hidden")
		require.Error(t, h.Try(t.Context()))
		require.NoError(t, term.Err(), "one failure is not the end")
		require.ErrorContains(t, inboxtest.Receive(t, changes, "the fence").why, "could not be renewed for 3s")
		require.GreaterOrEqual(t, time.Since(before), 3*time.Second)
		require.ErrorIs(t, context.Cause(term), errLost)
		inboxtest.Exec(t, d.DB, "ALTER TABLE hidden RENAME TO inbox_locks")
		require.NoError(t, h.Try(t.Context()))
		require.True(t, h.Held(), "it may be held again")
		h.End()
	})
}

func TestLateRenewalBeginsNoTerm(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		st := &slowStore{Store: tables(t, d), entered: make(chan struct{}, 1), goOn: make(chan struct{})}
		h, changes := newHold(newLease(st, 100*time.Millisecond))
		tried := make(chan error, 1)
		go func() { tried <- h.Try(context.Background()) }()
		inboxtest.Receive(t, st.entered, "the statement")
		timer := time.NewTimer(150 * time.Millisecond) // frozen
		<-timer.C
		close(st.goOn)
		require.NoError(t, inboxtest.Receive(t, tried, "the answer"))
		require.False(t, h.Held())
		require.Empty(t, changes)
	})
}
