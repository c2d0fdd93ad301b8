package store

import (
	"context"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// judge compares what is known with what came again and says which statuses
// are missing and what is to be rejected (contract 4.2, 4.3).
func judge(ctx context.Context, pool gorm.ConnPool, dialect accepting, found []known, batch AcceptBatch,
	index map[string]int, statuses [][]statusRow, results []Accepted,
) (missing []statusRow, conflicts []models.RejectedMessage, err error) {
	var ids []string
	for _, stored := range found {
		i := index[stored.id]
		message, result := batch.Messages[i], &results[i]
		if stored.messageType == message.Type && stored.source == message.Source {
			result.ContentDiffers = stored.contentDiffers
			ids = append(ids, stored.id)
			continue
		}
		result.Conflict, result.StoredType, result.StoredSource = true, stored.messageType, stored.source
		if message.Rejection != nil {
			conflicts = append(conflicts, conflict(*message.Rejection, stored))
		}
	}
	if len(ids) == 0 {
		return nil, conflicts, nil
	}
	pairs, err := dialect.handlerKeys(ctx, pool, ids)
	if err != nil {
		return nil, nil, err
	}
	has := make(map[[2]string]bool, len(pairs))
	for _, pair := range pairs {
		has[pair] = true
	}
	for _, stored := range found {
		i := index[stored.id]
		if results[i].Conflict {
			continue
		}
		for j, handler := range batch.Messages[i].Handlers {
			if !handler.hasRow(has, stored.id) && !handler.cleaned(stored.receivedAt, batch.Now) {
				missing = append(missing, statuses[i][j])
			}
		}
	}
	return missing, conflicts, nil
}

// hasRow: under its own key or one of its legacy keys (contract 4.2).
func (n NewStatus) hasRow(has map[[2]string]bool, messageID string) bool {
	if has[[2]string{messageID, n.HandlerKey}] {
		return true
	}
	return slices.ContainsFunc(n.LegacyKeys, func(key string) bool { return has[[2]string{messageID, key}] })
}

// cleaned: the message is older than the handler's retention, so its row is
// gone because it was cleaned, not because it never was (contract 4.2).
func (n NewStatus) cleaned(receivedAt, now time.Time) bool {
	return n.Retention > 0 && receivedAt.Before(now.Add(-n.Retention))
}
