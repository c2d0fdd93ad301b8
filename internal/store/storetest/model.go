package storetest

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// model is an inbox as the contract describes it: a few maps and one clock. It is written from the
// contract's clauses and not from the statements, and knows nothing of indexes, locks or dialects.
type model struct {
	now      time.Time
	messages map[string]models.Message
	rows     map[string]models.HandlerStatus // by status ID
	rejected map[int64]bool                  // by offset
	workers  map[string]modelWorker
	paused   map[string]bool
	// dueFromCreation means that a status that was never put off is due from its created_at by the
	// claimer's clock, and not at once. This is so on SQLite, where accepting and claiming share a
	// clock (contract 3.5).
	dueFromCreation bool
}

type modelWorker struct{ stopped, released bool }

func newModel(now time.Time, dueFromCreation bool) *model {
	return &model{
		now: now, dueFromCreation: dueFromCreation,
		messages: map[string]models.Message{}, rows: map[string]models.HandlerStatus{}, rejected: map[int64]bool{},
		workers: map[string]modelWorker{}, paused: map[string]bool{},
	}
}

func (m *model) find(messageID, handlerKey string) (models.HandlerStatus, bool) {
	for _, row := range m.rows {
		if row.MessageID == messageID && row.HandlerKey == handlerKey {
			return row, true
		}
	}
	return models.HandlerStatus{}, false
}

// accept returns the result of each message and which statuses are added, in order. keep applies
// this to the model (contract 4.1-4.3).
func (m *model) accept(batch store.AcceptBatch) (results []store.Accepted, added []models.HandlerStatus, keep func()) {
	var inserted []models.Message
	var rejected []int64
	for _, each := range batch.Messages {
		var result store.Accepted
		stored, known := m.messages[each.ID]
		switch {
		case !known:
			result.Inserted = true
			message := each.Message
			message.ReceivedAt = batch.Now
			inserted = append(inserted, message)
		case stored.Type != each.Type || stored.Source != each.Source:
			result.Conflict, result.StoredType, result.StoredSource = true, stored.Type, stored.Source
			if each.Rejection != nil {
				rejected = append(rejected, each.Rejection().Offset)
			}
			results = append(results, result)
			continue
		default:
			result.ContentDiffers = !bytes.Equal(stored.Content, each.Content)
		}
		first := each // what was stored first counts
		if known {
			first.Message = stored
		}
		for _, h := range each.Handlers {
			if known && (m.hasRow(each.ID, h) || h.Retention > 0 && batch.Now.Sub(stored.ReceivedAt) > h.Retention) {
				continue
			}
			result.StatusesAdded++
			row := models.HandlerStatus{MessageID: each.ID, HandlerKey: h.HandlerKey, CreatedAt: batch.Now, Version: 1,
				MessageBytes: first.Size()}
			if h.NotBefore.After(batch.Now) {
				row.NextAttemptAt = &h.NotBefore
			}
			if h.Lane != nil {
				row.LaneHandler, row.LaneKey = &h.Lane.Handler, &h.Lane.Key
			}
			added = append(added, row)
		}
		results = append(results, result)
	}
	return results, added, func() {
		for _, message := range inserted {
			m.messages[message.ID] = message
		}
		for _, offset := range rejected {
			m.rejected[offset] = true
		}
	}
}

// hasRow reports whether the handler has a row. A row under a legacy key counts (contract 4.2).
func (m *model) hasRow(messageID string, h store.NewStatus) bool {
	return slices.ContainsFunc(append([]string{h.HandlerKey}, h.LegacyKeys...), func(key string) bool {
		_, found := m.find(messageID, key)
		return found
	})
}

func pending(row models.HandlerStatus) bool { return row.CompletedAt == nil && !row.IsPoisoned }
func claimedRow(row models.HandlerStatus) bool {
	return pending(row) && row.ProcessingStartedAt != nil
}

// due returns when a pending row is to be claimed.
func due(row models.HandlerStatus) time.Time {
	if row.NextAttemptAt != nil {
		return *row.NextAttemptAt
	}
	return row.CreatedAt
}

// unclaimed returns a key's pending rows that are not claimed, longest due first.
func (m *model) unclaimed(key string) []models.HandlerStatus {
	return m.sorted(func(row models.HandlerStatus) bool {
		return row.HandlerKey == key && pending(row) && row.ProcessingStartedAt == nil
	})
}

// sorted returns the rows that match, longest due first.
func (m *model) sorted(matches func(models.HandlerStatus) bool) []models.HandlerStatus {
	var found []models.HandlerStatus
	for _, row := range m.rows {
		if matches(row) {
			found = append(found, row)
		}
	}
	slices.SortFunc(found, func(a, b models.HandlerStatus) int {
		return cmp.Or(due(a).Compare(due(b)), cmp.Compare(a.ID, b.ID))
	})
	return found
}

// claim returns the rows as they are after being claimed (contract 5.1, 5.2). A claim that begins
// after a place may pass rows: it gets those of taken. more are the keys of which it passed some
// without filling its limit.
func (m *model) claim(
	req store.ClaimRequest, taken map[string]bool,
) (claims []models.HandlerStatus, more map[string]bool) {
	if worker, known := m.workers[req.WorkerID]; req.WorkerID != "" && (!known || worker.released) {
		return nil, nil
	}
	limits, more := slices.Clone(req.Limits), map[string]bool{}
	slices.SortFunc(limits, func(a, b store.KeyLimit) int { return cmp.Compare(a.HandlerKey, b.HandlerKey) })
	for _, limit := range limits {
		passed := false
		for _, row := range m.unclaimed(limit.HandlerKey) {
			if limit.Limit == 0 {
				break
			}
			if row.IsWaiting || limit.Lanes != nil && !m.head(row, *limit.Lanes) {
				continue
			}
			if (row.NextAttemptAt != nil || m.dueFromCreation) && due(row).After(req.Now) {
				continue
			}
			if limit.After != nil && limit.Lanes == nil && !taken[row.ID] {
				passed = true
				continue
			}
			limit.Limit--
			at := req.Now
			row.ProcessingStartedAt = &at
			if req.WorkerID != "" {
				worker := req.WorkerID
				row.WorkerID = &worker
			}
			row.HoldsLane = limit.Lanes != nil && row.LaneKey != nil
			row.Version++
			m.rows[row.ID] = row
			claims = append(claims, row)
		}
		if passed && limit.Limit > 0 {
			more[limit.HandlerKey] = true
		}
	}
	return claims, more
}

// current reports whether a transition applies. It is conditional on the version, and a completed
// row stays completed (contract 3.2, 5.10).
func (m *model) current(statusID string, version int64) (models.HandlerStatus, bool) {
	row, found := m.rows[statusID]
	return row, found && int64(row.Version) == version && row.CompletedAt == nil
}

func givenBack(row models.HandlerStatus) models.HandlerStatus {
	row.ProcessingStartedAt, row.WorkerID, row.NextAttemptAt = nil, nil, nil
	row.IsWaiting, row.HoldsLane = false, false
	row.Version++
	return row
}

// complete completes a status. error_count and last_error stay as history (contract 5.5), and a
// finished attempt resets the counts of those that did not finish (contract 5.7, 5.9).
func (m *model) complete(c store.Completion, at time.Time) bool {
	row, ok := m.current(c.StatusID, c.Version)
	if ok {
		row = givenBack(row)
		row.CompletedAt, row.Outcome, row.IsPoisoned = &at, c.Outcome, false
		row.AbandonedCount, row.InterruptedCount = 0, 0
		m.rows[row.ID] = row
	}
	return ok
}

// settle gives a claim back. A poisoned row has no next attempt (contract 5.5).
func (m *model) settle(s store.Settlement) bool {
	row, ok := m.current(s.StatusID, s.Version)
	if ok {
		row = givenBack(row)
		row.ErrorCount, row.AbandonedCount, row.InterruptedCount = s.ErrorCount, s.AbandonedCount, s.InterruptedCount
		row.IsPoisoned = s.Poisoned
		if s.LastError != nil {
			named := fingerprint.Of(row.HandlerKey, *s.LastError)
			row.LastError, row.Fingerprint = s.LastError, &named
		}
		if !s.Poisoned {
			row.NextAttemptAt = s.NextAttemptAt
		}
		m.rows[row.ID] = row
	}
	return ok
}

// retry retries a poisoned status as an operator does (contract 11.1).
func (m *model) retry(row models.HandlerStatus) {
	row.ErrorCount, row.IsPoisoned = 0, false
	row.RequeuedCount++
	row.Version++
	m.rows[row.ID] = row
}
