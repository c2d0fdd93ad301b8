package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// unpublished returns the message IDs of a handler's poisoned statuses that are not published.
func (s *suite) unpublished(handlerKey string) (ids []string) {
	s.Helper()
	found, err := s.store.Unpublished(s.ctx, handlerKey, 10)
	require.NoError(s, err)
	for _, u := range found {
		ids = append(ids, u.Message.ID)
	}
	return ids
}

// Contract 7.9.
var publishTests = []test{
	{"poisoned statuses are found with their messages until they are marked, and no others", func(s *suite) {
		s.accept(message("m1", "mail", "stock"), message("m2", "mail"), message("m3", "mail"), message("m4", "mail"))
		claims := s.claim(noon, 3, "mail")
		text := "boom"
		poisoned := settlement(claims[0])
		poisoned.Poisoned, poisoned.ErrorCount, poisoned.LastError = true, 2, &text
		s.settle(poisoned)
		s.poison(claims[1])
		s.end(s.status("m2", "mail"), models.OutcomeDiscarded, noon)
		s.complete(noon, claims[2])

		found, err := s.store.Unpublished(s.ctx, "mail", 10)
		require.NoError(s, err)
		require.Len(s, found, 1)
		row := s.status("m1", "mail")
		require.Equal(s, store.Unpublished{StatusID: row.ID, Version: int64(row.Version), ErrorCount: 2, LastError: text,
			Message: *claims[0].Message}, found[0])

		require.NoError(s, s.store.MarkPublished(s.ctx, row.ID, int64(row.Version), noon))
		require.Empty(s, s.unpublished("mail"))
		published := s.status("m1", "mail")
		require.Equal(s, noon, published.PublishedAt.UTC())
		require.Equal(s, row.Version, published.Version, "an operator who saw it may still act on it")
	}},
	{"a status that was poisoned again meanwhile is not marked", func(s *suite) {
		s.accept(message("m1", "mail"))
		s.poison(s.claim(noon, 1, "mail")[0])
		row := s.status("m1", "mail")
		s.retry("m1", "mail")
		require.NoError(s, s.store.MarkPublished(s.ctx, row.ID, int64(row.Version), noon))
		require.Empty(s, s.unpublished("mail"), "it is not poisoned")
		s.poison(s.claim(noon.Add(time.Hour), 1, "mail")[0])
		require.NoError(s, s.store.MarkPublished(s.ctx, row.ID, int64(row.Version), noon))
		require.Equal(s, []string{"m1"}, s.unpublished("mail"))
	}},
	{"no more are found than asked for, the earliest first", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		for _, c := range s.claim(noon, 3, "mail") {
			s.poison(c)
		}
		found, err := s.store.Unpublished(s.ctx, "mail", 2)
		require.NoError(s, err)
		require.Len(s, found, 2)
		require.Less(s, found[0].StatusID, found[1].StatusID)
		require.Equal(s, found[0].Message.ID, s.unpublished("mail")[0])
	}},
	{"a channel's rejected messages are found until they are marked", func(s *suite) {
		other := *rejection(3)
		other.Channel = "other"
		ids := s.keep(*rejection(1), *rejection(2), other)
		found, err := s.store.UnpublishedRejected(s.ctx, rejection(1).Channel, 10)
		require.NoError(s, err)
		require.Len(s, found, 2)
		loaded, err := s.store.LoadRejected(s.ctx, ids[0])
		require.NoError(s, err)
		require.Equal(s, loaded, found[0])
		require.NoError(s, s.store.MarkRejectedPublished(s.ctx, ids[0], noon))
		found, err = s.store.UnpublishedRejected(s.ctx, rejection(1).Channel, 10)
		require.NoError(s, err)
		require.Len(s, found, 1)
		require.Equal(s, ids[1], found[0].ID)
	}},
}
