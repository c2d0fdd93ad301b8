package base

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// conflict completes the reason of a rejection with what the ID is known as.
func conflict(rejection models.RejectedMessage, stored Known, contentDiffers bool) models.RejectedMessage {
	if contentDiffers {
		reason := cmp.Or(rejection.Reason, "content_differs")
		rejection.Reason = fmt.Sprintf("%s: message ID %q is known with other content", reason, stored.ID)
		return rejection
	}
	reason := cmp.Or(rejection.Reason, "id_conflict")
	rejection.Reason = fmt.Sprintf("%s: message ID %q is known with type %q and source %q", reason, stored.ID,
		stored.MessageType, stored.Source)
	return rejection
}

// prepareRejected returns rows that no column refuses: what is rejected already must not fail
// again. They are sorted by their coordinates, so that concurrent accepts of the same records wait
// for each other instead of deadlocking. Of rows with the same coordinates only the first is
// returned.
func prepareRejected(rejected []models.RejectedMessage, now time.Time) ([]models.RejectedMessage, error) {
	rows := make([]models.RejectedMessage, len(rejected))
	for i, row := range rejected {
		if row.ID == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("make a rejected message's ID: %w", err)
			}
			row.ID = id.String()
		}
		if row.RejectedAt.IsZero() {
			row.RejectedAt = now
		}
		row.Timestamp = store.StorableTime(row.Timestamp)
		row.Reason = store.SanitizeError(row.Reason)
		row.Headers = strings.ReplaceAll(strings.ToValidUTF8(row.Headers, "\uFFFD"), "\x00", "\uFFFD")
		rows[i] = row
	}
	slices.SortStableFunc(rows, byCoordinates)
	return slices.CompactFunc(rows, func(a, b models.RejectedMessage) bool { return byCoordinates(a, b) == 0 }), nil
}

func byCoordinates(a, b models.RejectedMessage) int {
	return cmp.Or(
		cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition),
		cmp.Compare(a.Offset, b.Offset), a.Timestamp.Compare(b.Timestamp),
	)
}

// KeepGap implements Store.KeepGap.
func KeepGap(ctx context.Context, d Database, statement string, g models.Gap, foundAt any) (bool, error) {
	added, err := store.Exec(ctx, d.Pool(ctx), d.Text(statement),
		g.ID, g.Channel, g.Topic, g.Partition, g.FromOffset, g.ToOffset, store.SanitizeError(g.Reason), foundAt)
	return added == 1, Doing("keep gap", err)
}
