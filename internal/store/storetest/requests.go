package storetest

import (
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// request stores a request of an operator.
func (s *suite) request(partition int32, change ...func(*models.PartitionRequest)) models.PartitionRequest {
	s.Helper()
	r := models.PartitionRequest{Channel: "c", Topic: "t", Partition: partition, ID: uuid.NewString(), Offset: 7,
		Decision: "skip", Actor: "ada", RequestedAt: noon}
	for _, each := range change {
		each(&r)
	}
	require.NoError(s, s.db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&r).Error)
	return r
}

// requests returns the partitions of the channel's requests that were made after a time.
func (s *suite) requests(since time.Time) (found []models.PartitionRequest) {
	s.Helper()
	found, err := s.store.PartitionRequests(s.ctx, "c", since)
	require.NoError(s, err)
	return found
}

var requestTests = []test{
	{"requests of a channel are listed unless they are too old", func(s *suite) {
		require.Empty(s, s.requests(noon.Add(-time.Hour)))
		wanted := s.request(0)
		s.request(1, func(r *models.PartitionRequest) { r.RequestedAt = noon.Add(-time.Hour) })
		s.request(0, func(r *models.PartitionRequest) { r.Channel = "d" })
		require.Equal(s, []models.PartitionRequest{wanted}, s.requests(noon.Add(-time.Hour)))
	}},
	{"a request is deleted with what it asks for stored, and once", func(s *suite) {
		skip, pass, plain := s.request(0), s.request(1), s.request(2)
		row := *rejection(7)
		row.ID, row.RejectedAt = uuid.NewString(), noon
		gap := models.Gap{ID: uuid.NewString(), Channel: "c", Topic: "t", Partition: 1, FromOffset: 7, ToOffset: 9,
			Reason: "gone", FoundAt: noon}
		for range 2 {
			for i, carryOut := range []func() (bool, error){
				func() (bool, error) { return s.store.CarryOut(s.ctx, skip, &row, nil) },
				func() (bool, error) { return s.store.CarryOut(s.ctx, pass, nil, &gap) },
				func() (bool, error) { return s.store.CarryOut(s.ctx, plain, nil, nil) },
			} {
				before := len(s.requests(time.Time{}))
				done, err := carryOut()
				require.NoError(s, err)
				require.Equal(s, before == 3-i, done, "the second time there is no request")
			}
		}
		require.Empty(s, s.requests(time.Time{}))
		require.EqualValues(s, 1, s.rejectedCount())
		stored, err := s.store.LoadRejected(s.ctx, row.ID)
		require.NoError(s, err)
		require.Equal(s, row, stored)
		var gaps []models.Gap
		require.NoError(s, s.db.Find(&gaps).Error)
		require.Len(s, gaps, 1)
	}},
	{"a record that is kept as rejected already is kept once", func(s *suite) {
		s.keep(*rejection(7))
		again := *rejection(7)
		again.ID = uuid.NewString()
		done, err := s.store.CarryOut(s.ctx, s.request(0), &again, nil)
		require.NoError(s, err)
		require.True(s, done)
		require.EqualValues(s, 1, s.rejectedCount())
	}},
	{"a request that another one has replaced stores nothing", func(s *suite) {
		first := s.request(0)
		second := s.request(0)
		done, err := s.store.CarryOut(s.ctx, first, rejection(7), nil)
		require.NoError(s, err)
		require.False(s, done)
		require.Zero(s, s.rejectedCount())
		require.Equal(s, []models.PartitionRequest{second}, s.requests(time.Time{}))
	}},
	{"what the database refuses leaves the request", func(s *suite) {
		if !s.isPostgres() { // SQLite refuses no text
			return
		}
		r := s.request(0)
		bad := *rejection(7)
		bad.Topic = strings.Repeat("t", 300) + "\xff"
		_, err := s.store.CarryOut(s.ctx, r, &bad, nil)
		require.True(s, store.IsData(err), "%v", err)
		require.Len(s, s.requests(time.Time{}), 1)
		require.Zero(s, s.rejectedCount())
	}},
	{"one of several that carry a request out at once wins", func(s *suite) {
		r := s.request(0)
		won := make([]bool, 10)
		s.noErrors(racetest.Together(len(won), func(i int) (err error) {
			won[i], err = s.store.CarryOut(s.ctx, r, rejection(7), nil)
			return err
		}))
		n := 0
		for _, w := range won {
			if w {
				n++
			}
		}
		require.Equal(s, 1, n)
		require.EqualValues(s, 1, s.rejectedCount())
	}},
}
