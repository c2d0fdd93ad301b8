package storetest

import (
	"strings"
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
	require.NoError(s, s.store.AddRequest(s.ctx, s.poolOf(s.db), r))
	return r
}

func (s *suite) openRequests(since time.Time) []models.Request {
	s.Helper()
	return s.openAfter(since, uuid.Max.String(), 10, "cancel", "replay")
}

func (s *suite) openAfter(at time.Time, id string, limit int, kinds ...string) []models.Request {
	s.Helper()
	found, err := s.store.OpenRequests(s.ctx, s.poolOf(s.db), kinds, at, id, limit)
	require.NoError(s, err)
	return found
}

func (s *suite) takeRequest(id string, since time.Time) bool {
	s.Helper()
	taken, err := s.store.TakeRequest(s.ctx, s.poolOf(s.db), id, "process 7", since, noon)
	require.NoError(s, err)
	return taken
}

var workerRequestTests = []test{
	{"requests to workers are listed until one has taken them or they are too old", func(s *suite) {
		require.Empty(s, s.openRequests(time.Time{}))
		first, second := s.ask(noon), s.ask(noon.Add(time.Second))
		before := noon.Add(-time.Hour)
		require.Equal(s, []models.Request{first, second}, s.openRequests(before))
		require.Equal(s, []models.Request{second}, s.openRequests(noon))
		require.Equal(s, []models.Request{first}, s.openAfter(before, first.ID, 1, "cancel"))
		require.Equal(s, []models.Request{second}, s.openAfter(first.RequestedAt, first.ID, 1, "cancel"), "the next page")
		require.Empty(s, s.openAfter(before, first.ID, 10, "backfill"), "of another kind")
		require.False(s, s.takeRequest(first.ID, noon), "it is too old")
		require.True(s, s.takeRequest(first.ID, before))
		require.False(s, s.takeRequest(first.ID, before), "it is taken")
		require.Equal(s, []models.Request{second}, s.openRequests(before))
		pool := s.poolOf(s.db)
		require.NoError(s, s.store.EndRequest(s.ctx, pool, first.ID, `{"done":1}`, "", noon.Add(time.Second)))
		require.NoError(s, s.store.EndRequest(s.ctx, pool, first.ID, "", "late", noon.Add(time.Minute)))
		loaded, err := s.store.LoadRequest(s.ctx, pool, first.ID)
		require.NoError(s, err)
		first.TakenBy, first.TakenAt, first.EndedAt, first.Result = "process 7", new(noon), new(noon.Add(time.Second)), `{"done":1}`
		first.Argument = ""
		require.Equal(s, &first, loaded)
		unknown, err := s.store.LoadRequest(s.ctx, pool, uuid.NewString())
		require.NoError(s, err)
		require.Nil(s, unknown)
	}},
	{"a request's long argument is read only by the worker that carries it out, and deleted with its end", func(s *suite) {
		pool := s.poolOf(s.db)
		long := models.Request{ID: uuid.Must(uuid.NewV7()).String(), Kind: "replay", Target: "c",
			Argument: `"` + strings.Repeat("ä", 2000) + `"`, Actor: "ada", RequestedAt: noon}
		require.NoError(s, s.store.AddRequest(s.ctx, pool, long))
		argument := func() string {
			text, err := s.store.RequestArgument(s.ctx, pool, long.ID)
			require.NoError(s, err)
			return text
		}
		require.Equal(s, long.Argument, argument())
		listed := long
		listed.Argument = ""
		require.Equal(s, []models.Request{listed}, s.openRequests(time.Time{}))
		loaded, err := s.store.LoadRequest(s.ctx, pool, long.ID)
		require.NoError(s, err)
		require.Equal(s, &listed, loaded)
		require.NoError(s, s.store.EndRequest(s.ctx, pool, long.ID, "{}", "", noon))
		require.Empty(s, argument())
	}},
	{"one of several workers takes a request", func(s *suite) {
		r := s.ask(noon)
		won := make([]bool, 8)
		s.noErrors(racetest.Together(len(won), func(i int) (err error) {
			won[i], err = s.store.TakeRequest(s.ctx, s.poolOf(s.db), r.ID, "p", time.Time{}, noon)
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
