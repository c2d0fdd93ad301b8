package base

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

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

// prepareRejected returns rows that no column refuses: a rejected record must not fail again. They are sorted by their
// coordinates, so that concurrent accepts of the same records wait for each other instead of deadlocking. Of rows with
// the same coordinates only the first is returned.
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

func (c Common) KeepGap(ctx context.Context, g models.Gap) (bool, error) {
	added, err := c.addGap(ctx, c.Pool(ctx), g)
	return added == 1, Doing("keep gap", err)
}

// Requests holds the statements on operators' requests for halted partitions. All use the primary key.
type Requests struct{ List, Delete, KeepGap string }

// maxRequests bounds a list of requests.
const maxRequests = 1000

func (c Common) PartitionRequests(ctx context.Context, channel string, since time.Time) (
	[]models.PartitionRequest, error,
) {
	found, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.List), ScanPartitionRequest, channel, c.form.Time(since),
		maxRequests)
	return found, Doing("list requests for partitions", err)
}

// ScanPartitionRequest scans channel, topic, partition, ID, offset, decision, actor and time of a request.
func ScanPartitionRequest(rows *sql.Rows, r *models.PartitionRequest) error {
	var at store.Stamp
	err := rows.Scan(&r.Channel, &r.Topic, &r.Partition, &r.ID, &r.Offset, &r.Decision, &r.Actor, &at)
	r.RequestedAt = at.Time
	return err
}

// CarryOut deletes the request first, so that if two consumers carry it out at once, the second waits for the first and
// then finds it gone.
func (c Common) CarryOut(ctx context.Context, r models.PartitionRequest, rejected *models.RejectedMessage,
	gap *models.Gap,
) (done bool, err error) {
	err = c.dialect.Transaction(ctx, func(pool gorm.ConnPool) error {
		deleted, err := store.Exec(ctx, pool, c.Text(c.sql.Delete), r.Channel, r.Topic, r.Partition, r.ID)
		if done = deleted == 1; err != nil || !done {
			return err
		}
		if rejected != nil {
			rows, err := prepareRejected([]models.RejectedMessage{*rejected}, rejected.RejectedAt)
			if err == nil {
				err = c.dialect.InsertRejected(ctx, pool, rows)
			}
			return err
		}
		if gap != nil {
			_, err = c.addGap(ctx, pool, *gap)
		}
		return err
	})
	return done && err == nil, Doing("carry out a request for a partition", err)
}

func (c Common) addGap(ctx context.Context, pool gorm.ConnPool, g models.Gap) (int64, error) {
	return store.Exec(ctx, pool, c.Text(c.sql.KeepGap), g.ID, g.Channel, g.Topic, g.Partition, g.FromOffset, g.ToOffset,
		store.SanitizeError(g.Reason), c.form.Time(g.FoundAt))
}
