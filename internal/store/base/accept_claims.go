package base

import (
	"bytes"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// noteClaims adds to the results what Claim would have returned for the statuses that were inserted claimed: the
// statuses of new messages up to first in the batch.
func noteClaims(
	results []store.Accepted, batch store.AcceptBatch, statuses [][]StatusRow, claimedAt time.Time, first int,
) {
	taken := func(i int, row StatusRow) bool { return row.Claim && results[i].Inserted && i <= first }
	count := 0
	for i, rows := range statuses {
		for _, row := range rows {
			if taken(i, row) {
				count++
			}
		}
	}
	claims := make([]store.Claim, 0, count) // of all messages, in one piece
	for i, rows := range statuses {
		before := len(claims)
		for _, row := range rows {
			if !taken(i, row) {
				continue
			}
			message := asStored(batch.Messages[i], batch.Now)
			message.Number = models.MessageNumber(row.Number)
			claims = append(claims, store.Claim{
				Ref: store.Ref{StatusID: row.ID, MessageNumber: row.Number, MessageID: row.MessageID,
					HandlerKey: row.HandlerKey, Version: firstVersion, Lane: row.Lane},
				MessageBytes: row.MessageBytes, CreatedAt: claimedAt, Due: claimedAt, Message: message,
			})
		}
		if len(claims) > before {
			results[i].Claims = claims[before:len(claims):len(claims)]
		}
	}
}

// firstVersion is the version of a newly inserted status.
const firstVersion = 1

// asStored returns the message as it will be read from its row. Each call returns a copy, because handlers and the
// caller of Accept may change their bytes.
func asStored(m store.NewMessage, receivedAt time.Time) *models.Message {
	copied := m.Message
	copied.Content, copied.OrderingKey = Filled(bytes.Clone(m.Content)), bytes.Clone(m.OrderingKey)
	copied.ReceivedAt = StoredTime(receivedAt)
	return &copied
}

// StoredTime returns a time as it will be read back: UTC, in microseconds.
func StoredTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
