package dashboard

import (
	"slices"

	"github.com/gorm-inbox/inbox/ops"
)

// count says how many match, by the cheapest way there is, as lists are looked
// at again and again: by the page if it is all, by the overview if it counts
// them, else by a look at no more than the largest page. A page that took as
// many looks as are allowed is not counted: that would take as many once more.
func (q *request) count(filter ops.Filter, page ops.Page, seen ops.Overview) (ops.Count, error) {
	onPage := ops.Count{N: int64(len(page.Statuses)), Capped: page.Next != "" || page.Partial}
	if q.query.Get("after") == "" && !onPage.Capped {
		return onPage, nil
	}
	if counted, ok := countedBy(seen, filter); ok {
		return counted, nil
	}
	if page.Partial {
		onPage.Capped = true
		return onPage, nil
	}
	all, err := q.d.ops.List(q.r.Context(), filter, "", ops.MaxLimit)
	return ops.Count{N: int64(len(all.Statuses)), Capped: all.Next != "" || all.Partial}, err
}

// countedBy reads a count off an overview. It has those of states that are not
// over, of each handler.
func countedBy(seen ops.Overview, f ops.Filter) (sum ops.Count, ok bool) {
	if len(f.States) == 0 || f.MessageID != "" || f.Type != "" || f.ErrorText != "" || f.Fingerprint != "" ||
		!f.From.IsZero() || !f.To.IsZero() {
		return ops.Count{}, false
	}
	for _, h := range seen.Handlers {
		if len(f.HandlerKeys) > 0 && !slices.Contains(f.HandlerKeys, h.HandlerKey) {
			continue
		}
		for i, state := range f.States {
			of, known := map[ops.State]ops.Count{ops.StatePending: h.Pending, ops.StateProcessing: h.Processing,
				ops.StatePoisoned: h.Poisoned}[state]
			if !known {
				return ops.Count{}, false
			}
			if !slices.Contains(f.States[:i], state) { // an address may name it twice
				sum.N, sum.Capped = sum.N+of.N, sum.Capped || of.Capped
			}
		}
	}
	return sum, len(seen.Handlers) > 0
}
