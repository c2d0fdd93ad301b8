package storetest

import (
	"slices"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// learn keeps statuses that the store has returned.
func (m *machine) learn(refs ...store.Ref) {
	m.known = append(m.known, refs...)
}

// place returns the last known place of a status, at any version: an outdated hint must do no harm.
func (m *machine) place(statusID string) string {
	for _, ref := range slices.Backward(m.known) {
		if ref.StatusID == statusID {
			return ref.Locator
		}
	}
	return ""
}

// target picks a status: among those in some state, longest due first, or among everything the
// store ever returned, newest first. An Index beyond the last means the last, so that a shorter
// sequence picks the same ones.
type target struct {
	Of    string // claimed, pending, poisoned, known
	Index int
}

func (m *machine) pick(t target) (ref store.Ref, found bool) {
	if t.Of == "known" {
		if len(m.known) == 0 {
			return ref, false
		}
		return m.known[max(len(m.known)-1-t.Index, 0)], true
	}
	rows := m.model.sorted(func(row models.HandlerStatus) bool {
		switch t.Of {
		case "claimed":
			return claimedRow(row)
		case "pending":
			return pending(row) && row.ProcessingStartedAt == nil
		default:
			return row.IsPoisoned && row.CompletedAt == nil
		}
	})
	if len(rows) == 0 {
		return ref, false
	}
	ref = refOf(rows[min(t.Index, len(rows)-1)])
	ref.Locator = m.place(ref.StatusID)
	return ref, true
}

// picked returns the distinct statuses of targets, at one version each.
func (m *machine) picked(targets []target) (refs []store.Ref) {
	taken := map[version]bool{}
	for _, t := range targets {
		ref, found := m.pick(t)
		if at := (version{ref.StatusID, ref.Version}); found && !taken[at] {
			taken[at] = true
			refs = append(refs, ref)
		}
	}
	return refs
}

func refOf(row models.HandlerStatus) store.Ref {
	return store.Ref{
		StatusID: row.ID, MessageID: row.MessageID, HandlerKey: row.HandlerKey, Version: int64(row.Version),
		ErrorCount: row.ErrorCount, AbandonedCount: row.AbandonedCount, Lane: laneOf(row),
	}
}

// unplaced returns references without the hints, for comparison.
func unplaced(refs []store.Ref) []store.Ref {
	bare := make([]store.Ref, len(refs))
	for i, ref := range refs {
		ref.Locator = ""
		bare[i] = ref
	}
	return bare
}
