package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// judge compares what is known with what came again and says which statuses
// are missing and what is to be rejected (contract 4.2, 4.3).
func judge(ctx context.Context, pool gorm.ConnPool, dialect accepting, found []known, batch AcceptBatch,
	index map[identity]int, statuses [][]statusRow, results []Accepted,
) (missing []statusRow, conflicts []models.RejectedMessage, err error) {
	var numbers []int64
	for _, stored := range found {
		i := index[stored.identity]
		setNumber(statuses[i], stored.number)
		message, result := batch.Messages[i], &results[i]
		alike := stored.messageType == message.Type && stored.source == message.Source
		result.ContentDiffers = alike && stored.contentDiffers
		if alike && !(stored.contentDiffers && batch.RejectDiffering) {
			numbers = append(numbers, stored.number)
			continue
		}
		result.Conflict, result.StoredType, result.StoredSource = true, stored.messageType, stored.source
		if message.Rejection != nil {
			conflicts = append(conflicts, conflict(message.Rejection(), stored, alike))
		}
	}
	if len(numbers) == 0 {
		return nil, conflicts, nil
	}
	stored, err := dialect.handlerKeys(ctx, pool, numbers)
	if err != nil {
		return nil, nil, err
	}
	has := make(map[handledBy]bool, len(stored))
	for _, status := range stored {
		has[status] = true
	}
	for _, stored := range found {
		i := index[stored.identity]
		if results[i].Conflict {
			continue
		}
		for j, handler := range batch.Messages[i].Handlers {
			if !handler.hasRow(has, stored.number) && !handler.cleaned(stored.receivedAt, batch.Now) {
				missing = append(missing, statuses[i][j])
			}
		}
	}
	return missing, conflicts, nil
}

// handledBy is a status: of the message with this number, under this key.
type handledBy struct {
	number     int64
	handlerKey string
}

func scanHandledBy(rows *sql.Rows, h *handledBy) error { return rows.Scan(&h.number, &h.handlerKey) }

func scanStoredNumber(rows *sql.Rows, m *storedNumber) error {
	return rows.Scan(&m.id, &m.namespace, &m.number)
}

// hasRow: under its own key or one of its legacy keys (contract 4.2).
func (n NewStatus) hasRow(has map[handledBy]bool, number int64) bool {
	if has[handledBy{number, n.HandlerKey}] {
		return true
	}
	return slices.ContainsFunc(n.LegacyKeys, func(key string) bool { return has[handledBy{number, key}] })
}

// cleaned: the message is older than the handler's retention, so its row is
// gone because it was cleaned, not because it never was (contract 4.2).
func (n NewStatus) cleaned(receivedAt, now time.Time) bool {
	return n.Retention > 0 && receivedAt.Before(now.Add(-n.Retention))
}
