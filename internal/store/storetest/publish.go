package storetest

import (
	"bytes"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// unpublished returns the message IDs of a handler's poisoned statuses that are not published.
func (s *suite) unpublished(handlerKey string) (ids []string) {
	s.Helper()
	found, err := s.store.Unpublished(s.ctx, handlerKey, "", 10)
	require.NoError(s, err)
	for _, ref := range found {
		u, err := s.store.LoadUnpublished(s.ctx, ref.ID, 1000)
		require.NoError(s, err)
		ids = append(ids, u.Message.ID)
	}
	return ids
}

func unpublishedRef(row models.HandlerStatus) store.UnpublishedRef {
	return store.UnpublishedRef{ID: row.ID, Version: int64(row.Version)}
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

		row := s.status("m1", "mail")
		ref := unpublishedRef(row)
		found, err := s.store.Unpublished(s.ctx, "mail", "", 10)
		require.NoError(s, err)
		require.Equal(s, []store.UnpublishedRef{ref}, found)
		loaded, err := s.store.LoadUnpublished(s.ctx, row.ID, 1000)
		require.NoError(s, err)
		require.Equal(s, store.Unpublished{ErrorCount: 2, LastError: text, Message: *claims[0].Message}, loaded)

		require.NoError(s, s.store.MarkPublished(s.ctx, ref, noon))
		require.Empty(s, s.unpublished("mail"))
		published := s.status("m1", "mail")
		require.Equal(s, noon, published.PublishedAt.UTC())
		require.Equal(s, row.Version, published.Version, "an operator who saw it may still act on it")
	}},
	{"a status poisoned again in between is not marked", func(s *suite) {
		s.accept(message("m1", "mail"))
		s.poison(s.claim(noon, 1, "mail")[0])
		ref := unpublishedRef(s.status("m1", "mail"))
		s.retry("m1", "mail")
		require.NoError(s, s.store.MarkPublished(s.ctx, ref, noon))
		require.Empty(s, s.unpublished("mail"), "it is not poisoned")
		_, err := s.store.LoadUnpublished(s.ctx, ref.ID, 1000)
		require.ErrorIs(s, err, store.ErrGone)
		s.poison(s.claim(noon.Add(time.Hour), 1, "mail")[0])
		require.NoError(s, s.store.MarkPublished(s.ctx, ref, noon))
		require.Equal(s, []string{"m1"}, s.unpublished("mail"))
	}},
	{"at most the requested number is found, ordered by ID", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		for _, c := range s.claim(noon, 3, "mail") {
			s.poison(c)
		}
		found, err := s.store.Unpublished(s.ctx, "mail", "", 2)
		require.NoError(s, err)
		require.Len(s, found, 2)
		require.Less(s, found[0].ID, found[1].ID)
		rest, err := s.store.Unpublished(s.ctx, "mail", found[1].ID, 2)
		require.NoError(s, err)
		require.Len(s, rest, 1)
		require.Less(s, found[1].ID, rest[0].ID)
	}},
	{"a channel's rejected messages are found until they are marked", func(s *suite) {
		other := *rejection(3)
		other.Channel = "other"
		ids := s.keep(*rejection(1), *rejection(2), other)
		found, err := s.store.UnpublishedRejected(s.ctx, rejection(1).Channel, "", 10)
		require.NoError(s, err)
		require.Equal(s, []store.UnpublishedRef{{ID: ids[0]}, {ID: ids[1]}}, found)
		stored, err := s.store.LoadRejected(s.ctx, ids[0])
		require.NoError(s, err)
		loaded, err := s.store.LoadUnpublishedRejected(s.ctx, ids[0], 1000)
		require.NoError(s, err)
		require.Equal(s, store.UnpublishedRejected{RejectedMessage: stored}, loaded)
		require.NoError(s, s.store.MarkRejectedPublished(s.ctx, found[0], noon))
		found, err = s.store.UnpublishedRejected(s.ctx, rejection(1).Channel, "", 10)
		require.NoError(s, err)
		require.Equal(s, []store.UnpublishedRef{{ID: ids[1]}}, found)
		_, err = s.store.LoadUnpublishedRejected(s.ctx, uuid.NewString(), 1000)
		require.ErrorIs(s, err, store.ErrGone)
	}},
	{"what is too large is loaded without its content", func(s *suite) {
		large := message("m1", "mail")
		large.Content = bytes.Repeat([]byte("x"), 2000)
		s.accept(large)
		s.poison(s.claim(noon, 1, "mail")[0])
		u, err := s.store.LoadUnpublished(s.ctx, s.status("m1", "mail").ID, 1000)
		require.NoError(s, err)
		require.True(s, u.Omitted)
		require.Equal(s, "m1", u.Message.ID)
		require.Empty(s, u.Message.Content)
		bad := *rejection(1)
		bad.Value = large.Content
		r, err := s.store.LoadUnpublishedRejected(s.ctx, s.keep(bad)[0], 1000)
		require.NoError(s, err)
		require.True(s, r.Omitted)
		require.Equal(s, bad.Offset, r.Offset)
		require.Empty(s, r.Value)
	}},
}
