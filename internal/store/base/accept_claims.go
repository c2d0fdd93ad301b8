package base

import (
	"bytes"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ClaimedRow is a status that was inserted claimed.
type ClaimedRow struct {
	ID        string
	CreatedAt time.Time
}

// lateStatuses is what happened to statuses that were inserted after their messages.
type lateStatuses struct {
	claimed   []ClaimedRow
	unclaimed []string // IDs that were claimed before and no longer are
}

// noteClaims adds to the results what Claim would have returned for these rows, except for those of
// unclaimed.
func noteClaims(
	results []store.Accepted, batch store.AcceptBatch, statuses [][]StatusRow, claimed []ClaimedRow, unclaimed []string,
) {
	if len(claimed) == 0 {
		return
	}
	taken := make(map[string]ClaimedRow, len(claimed))
	for _, row := range claimed {
		taken[row.ID] = row
	}
	for _, id := range unclaimed {
		delete(taken, id)
	}
	claims := make([]store.Claim, 0, len(taken)) // of all messages, in one piece
	for i, rows := range statuses {
		first := len(claims)
		for _, row := range rows {
			at, ok := taken[row.ID]
			if !ok {
				continue
			}
			message := asStored(batch.Messages[i], batch.Now)
			message.Number = models.MessageNumber(row.Number)
			claims = append(claims, store.Claim{
				Ref: store.Ref{StatusID: row.ID, MessageNumber: row.Number, MessageID: row.MessageID,
					HandlerKey: row.HandlerKey, Version: firstVersion, Lane: row.Lane},
				CreatedAt: at.CreatedAt, Due: at.CreatedAt, Message: message,
			})
		}
		if len(claims) > first {
			results[i].Claims = claims[first:len(claims):len(claims)]
		}
	}
}

// firstVersion is the version of a newly inserted status.
const firstVersion = 1

// asStored returns the message as it will be read from its row. Each call returns a copy: handlers
// get bytes of their own, which they and the caller of Accept may change.
func asStored(m store.NewMessage, receivedAt time.Time) *models.Message {
	copied := m.Message
	copied.Content, copied.OrderingKey = Filled(bytes.Clone(m.Content)), bytes.Clone(m.OrderingKey)
	copied.ReceivedAt = StoredTime(receivedAt)
	return &copied
}

// StoredTime returns a time as it will be read back: UTC, in microseconds.
func StoredTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
