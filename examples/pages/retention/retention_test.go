package retention

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

func nothing(context.Context, handler.Message[OrderPlaced]) error { return nil }

const day = 24 * time.Hour

// Contract 6.1 to 6.3.
func TestFinishedMessagesAreArchivedThenDeleted(t *testing.T) {
	archive := fxtest.OpenDB(t)
	require.NoError(t, archive.AutoMigrate(&ArchivedMessage{}, &ArchivedStatus{}))
	kit := fxtest.New(t, options(nothing, nothing, archive)...)
	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{"o-1"}))
	kit.Process()
	count := func(model any) (n int64) {
		require.NoError(t, archive.Model(model).Count(&n).Error)
		return n
	}

	kit.Advance(29 * day)
	deleted, err := nightly(t.Context(), kit.Inbox)
	require.NoError(t, err)
	require.Zero(t, deleted)

	kit.Advance(2 * day)
	deleted, err = nightly(t.Context(), kit.Inbox)
	require.NoError(t, err)
	require.Equal(t, handler.Deleted{Statuses: 1}, deleted, "the other handler's is kept, and the message for it")
	require.EqualValues(t, 1, count(&ArchivedMessage{}))
	require.EqualValues(t, 1, count(&ArchivedStatus{}))

	kit.Advance(370 * day)
	deleted, err = nightly(t.Context(), kit.Inbox)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted.Messages)
	require.EqualValues(t, 1, deleted.Statuses)
	kit.RequireNotAccepted("o-1")
	require.EqualValues(t, 1, count(&ArchivedMessage{}), "it came again and was replaced")
	require.EqualValues(t, 2, count(&ArchivedStatus{}))
}

// Contract 6.3.
func TestFailingArchiveKeepsTheRows(t *testing.T) {
	kit := fxtest.New(t, options(nothing, nothing, fxtest.OpenDB(t))...) // without tables
	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{"o-1"}))
	kit.Process()
	kit.Advance(500 * day)
	deleted, err := nightly(t.Context(), kit.Inbox)
	require.True(t, errors.Is(err, cleanup.ErrArchiveFailed), "%v", err)
	require.EqualValues(t, 1, deleted.Unarchived)
	kit.RequireAccepted("o-1")
}
