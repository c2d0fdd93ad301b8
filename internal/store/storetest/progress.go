package storetest

import (
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// partition returns a partition that has caught up to a moment, or never if that is zero.
func partition(channel string, id int32, caughtUp time.Time) models.Partition {
	p := models.Partition{Channel: channel, GroupID: "g", Topic: "t", Partition: id}
	if !caughtUp.IsZero() {
		p.CaughtUpAt = &caughtUp
	}
	return p
}

func (s *suite) record(now time.Time, rows ...models.Partition) {
	s.Helper()
	require.NoError(s, s.store.RecordProgress(s.ctx, rows, nil, now))
}

func (s *suite) furthestBehind(inline bool) *models.Partition {
	s.Helper()
	p, found, err := s.store.FurthestBehind(s.ctx, inline)
	require.NoError(s, err)
	if !found {
		return nil
	}
	return &p
}

func (s *suite) partitions() (all []models.Partition) {
	s.Helper()
	require.NoError(s, s.db.Order("channel").Order(clause.OrderByColumn{Column: clause.Column{Name: "partition"}}).Find(&all).Error)
	for i := range all {
		all[i].DeclaredAt, all[i].CountedAt = all[i].DeclaredAt.UTC(), all[i].CountedAt.UTC()
	}
	return all
}

var progressTests = []test{
	{"the partition that is furthest behind is found, and none moves back", func(s *suite) {
		require.Nil(s, s.furthestBehind(true))
		s.record(noon, partition("a", -1, noon), partition("a", 0, noon.Add(-time.Hour)), partition("b", 0, time.Time{}))
		require.Equal(s, "b", s.furthestBehind(true).Channel)
		require.Nil(s, s.furthestBehind(true).CaughtUpAt)
		s.record(noon, partition("b", 0, noon))
		require.Equal(s, noon.Add(-time.Hour), *s.furthestBehind(true).CaughtUpAt)
		for _, later := range []time.Time{noon, noon.Add(-2 * time.Hour), {}} { // other processes know less
			s.record(noon.Add(time.Hour), partition("a", 0, later))
			require.Equal(s, noon, *s.furthestBehind(true).CaughtUpAt)
		}
	}},
	{"partitions of inline channels count on demand", func(s *suite) {
		inline := partition("a", 0, time.Time{})
		inline.Inline = true
		s.record(noon, inline, partition("b", 0, noon))
		require.Equal(s, "a", s.furthestBehind(true).Channel)
		require.Equal(s, "b", s.furthestBehind(false).Channel)
		inline.Inline = false // its mode has changed
		s.record(noon, inline)
		require.Equal(s, "a", s.furthestBehind(false).Channel)
	}},
	{"what no worker declares is counted while workers run, and forgotten", func(s *suite) {
		s.record(noon, partition("gone", 0, noon), partition("here", 0, noon), partition("named", 0, noon),
			partition("named", 4, noon), partition("unlisted", 0, noon))
		now, named := noon, int32(0)
		for range 6 {
			now = now.Add(store.CountUndeclaredEvery)
			for range 2 { // two processes
				require.NoError(s, s.store.RecordProgress(s.ctx, []models.Partition{partition("here", 0, time.Time{})},
					[]store.Unlisted{{Channel: "unlisted", GroupID: "g", Topic: "t"},
						{Channel: "named", GroupID: "g", Topic: "t", Partition: &named}}, now))
			}
		}
		require.Equal(s, []models.Partition{
			{Channel: "gone", UndeclaredFor: 3600, DeclaredAt: noon, CountedAt: now},
			{Channel: "here", DeclaredAt: now, CountedAt: now},
			{Channel: "named", DeclaredAt: now, CountedAt: now},
			{Channel: "named", UndeclaredFor: 3600, DeclaredAt: noon, CountedAt: now}, // another group reads it now
			{Channel: "unlisted", DeclaredAt: now, CountedAt: now},
		}, s.withoutRest(s.partitions()))
		s.record(now.Add(1000*time.Hour), partition("here", 0, time.Time{}))
		require.EqualValues(s, 3600+2*600, s.partitions()[0].UndeclaredFor, "nothing ran meanwhile")

		none, err := s.store.ForgetPartitions(s.ctx, 2*time.Hour)
		require.NoError(s, err)
		require.Empty(s, none)
		forgotten, err := s.store.ForgetPartitions(s.ctx, 80*time.Minute)
		require.NoError(s, err)
		require.Len(s, forgotten, 2)
		require.ElementsMatch(s, []string{"gone", "named"}, []string{forgotten[0].Channel, forgotten[1].Channel})
		require.Len(s, s.partitions(), 3)
		s.record(now.Add(1000*time.Hour), partition("unlisted", 0, time.Time{}))
		require.Zero(s, s.partitions()[2].UndeclaredFor, "it is declared again")
	}},
}

// withoutRest returns channels, declarations and counts alone.
func (s *suite) withoutRest(all []models.Partition) []models.Partition {
	for i, p := range all {
		all[i] = models.Partition{Channel: p.Channel, UndeclaredFor: p.UndeclaredFor, DeclaredAt: p.DeclaredAt,
			CountedAt: p.CountedAt}
	}
	return all
}
