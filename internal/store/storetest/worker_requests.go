package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/models"
)

// ask stores a request to workers.
func (s *suite) ask(at time.Time) models.Request {
	s.Helper()
	r := models.Request{ID: uuid.Must(uuid.NewV7()).String(), Kind: "cancel", Target: "mail", Argument: `{"message_id":"m1"}`,
		Actor: "ada", RequestedAt: at}
	require.NoError(s, s.store.AddRequest(s.ctx, s.db.Statement.ConnPool, r))
	return r
}

func (s *suite) openRequests(since time.Time) []models.Request {
	s.Helper()
	found, err := s.store.OpenRequests(s.ctx, s.db.Statement.ConnPool, since, 10)
	require.NoError(s, err)
	return found
}

var workerRequestTests = []test{
	{"requests to workers are listed until one has taken them or they are too old", func(s *suite) {
		require.Empty(s, s.openRequests(time.Time{}))
		first, second := s.ask(noon), s.ask(noon.Add(time.Second))
		require.Equal(s, []models.Request{first, second}, s.openRequests(noon.Add(-time.Hour)))
		require.Equal(s, []models.Request{second}, s.openRequests(noon))
		pool := s.db.Statement.ConnPool
		taken, err := s.store.TakeRequest(s.ctx, pool, first.ID, "process 7", noon)
		require.NoError(s, err)
		require.True(s, taken)
		require.Equal(s, []models.Request{second}, s.openRequests(noon.Add(-time.Hour)))
		require.NoError(s, s.store.EndRequest(s.ctx, pool, first.ID, `{"done":1}`, "", noon.Add(time.Second)))
		require.NoError(s, s.store.EndRequest(s.ctx, pool, first.ID, "", "late", noon.Add(time.Minute)))
		loaded, err := s.store.LoadRequest(s.ctx, pool, first.ID)
		require.NoError(s, err)
		first.TakenBy, first.TakenAt, first.EndedAt, first.Result = "process 7", new(noon), new(noon.Add(time.Second)), `{"done":1}`
		require.Equal(s, &first, loaded)
		unknown, err := s.store.LoadRequest(s.ctx, pool, uuid.NewString())
		require.NoError(s, err)
		require.Nil(s, unknown)
	}},
	{"one of several workers takes a request", func(s *suite) {
		r := s.ask(noon)
		won := make([]bool, 8)
		s.noErrors(racetest.Together(len(won), func(i int) (err error) {
			won[i], err = s.store.TakeRequest(s.ctx, s.db.Statement.ConnPool, r.ID, "p", noon)
			return err
		}))
		n := 0
		for _, w := range won {
			if w {
				n++
			}
		}
		require.Equal(s, 1, n)
	}},
	{"old requests are deleted in batches", func(s *suite) {
		for _, at := range fiveSeconds {
			s.ask(at)
		}
		s.prunesThree(s.store.DeleteRequests)
		require.Len(s, s.openRequests(time.Time{}), 2)
	}},
}
