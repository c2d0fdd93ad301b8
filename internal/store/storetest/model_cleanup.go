package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// cleanup walks one batch (contract 6.1, 6.2, 6.4).
func (m *model) cleanup(req store.CleanupRequest) store.CleanupResult {
	cutoffs, latest := map[string]time.Time{}, req.Cutoff
	for _, own := range req.HandlerCutoffs {
		cutoffs[own.HandlerKey] = own.Cutoff
		if own.Cutoff.After(latest) {
			latest = own.Cutoff
		}
	}
	var walk []models.Message
	for _, message := range m.messages {
		behind := cmp.Or(message.ReceivedAt.Compare(req.After.ReceivedAt), cmp.Compare(message.ID, req.After.MessageID)) > 0
		if behind && message.ReceivedAt.Before(latest) {
			walk = append(walk, message)
		}
	}
	slices.SortFunc(walk, func(a, b models.Message) int {
		return cmp.Or(a.ReceivedAt.Compare(b.ReceivedAt), cmp.Compare(a.ID, b.ID))
	})
	result := store.CleanupResult{Next: req.After, Done: len(walk) < req.Limit}
	for _, message := range walk[:min(len(walk), req.Limit)] {
		left := 0
		for id, row := range m.rows {
			if row.MessageID != message.ID {
				continue
			}
			cutoff, own := cutoffs[row.HandlerKey]
			if !own {
				cutoff = req.Cutoff
			}
			if row.CompletedAt != nil && row.CompletedAt.Before(cutoff) {
				delete(m.rows, id)
				result.Statuses++
			} else {
				left++
			}
		}
		if left == 0 {
			delete(m.messages, message.ID)
			result.Messages++
		}
		result.Next = store.CleanupCursor{ReceivedAt: message.ReceivedAt, MessageID: message.ID}
	}
	return result
}
