package store

import (
	"bytes"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// claimedRow is a status that was inserted claimed.
type claimedRow struct {
	id        string
	place     string // see Ref.Locator
	createdAt time.Time
}

// lateStatuses is what became of statuses that were inserted after their
// messages.
type lateStatuses struct {
	claimed   []claimedRow
	unclaimed []string // IDs that were claimed before, and are not any more
}

// noteClaims adds to the results what a claim of these rows would have
// returned, but those of unclaimed.
func noteClaims(results []Accepted, batch AcceptBatch, statuses [][]statusRow, claimed []claimedRow, unclaimed []string) {
	if len(claimed) == 0 {
		return
	}
	taken := make(map[string]claimedRow, len(claimed))
	for _, row := range claimed {
		taken[row.id] = row
	}
	for _, id := range unclaimed {
		delete(taken, id)
	}
	for i, rows := range statuses {
		for _, row := range rows {
			at, ok := taken[row.id]
			if !ok {
				continue
			}
			message := batch.Messages[i].stored(batch.Now)
			message.Number = models.MessageNumber(row.number)
			results[i].Claims = append(results[i].Claims, Claim{
				Ref:       Ref{StatusID: row.id, MessageID: row.messageID, HandlerKey: row.handlerKey, Version: firstVersion, Locator: at.place, Lane: row.lane},
				CreatedAt: at.createdAt, Due: at.createdAt, Message: message,
			})
		}
	}
}

// firstVersion is a status's when it is inserted.
const firstVersion = 1

// stored is the message as it comes back from its row. Each call returns a
// copy: handlers get bytes of their own, which they and the one who called
// Accept may change.
func (m NewMessage) stored(receivedAt time.Time) *models.Message {
	copied := m.Message
	copied.Content, copied.OrderingKey = filled(bytes.Clone(m.Content)), bytes.Clone(m.OrderingKey)
	copied.ReceivedAt = storedTime(receivedAt)
	return &copied
}

// storedTime is a time as it comes back: UTC, in microseconds.
func storedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
