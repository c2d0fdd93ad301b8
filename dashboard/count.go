package dashboard

import (
	"slices"

	"github.com/gorm-inbox/inbox/ops"
)

// count returns how many statuses match, in the cheapest way available, because lists are reloaded
// often. It uses the page if the page has everything, then the overview if the overview counts
// these statuses, then a query of at most the largest page. If the page itself already reached its
// scan limit, only the page is counted, because a query would scan as much again.
func (q *request) count(filter ops.Filter, page ops.Page[ops.Status], seen ops.Overview) (ops.Count, error) {
	onPage := ops.Count{N: int64(len(page.Items)), Capped: page.Next != "" || page.Partial}
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
	return ops.Count{N: int64(len(all.Items)), Capped: all.Next != "" || all.Partial}, err
}

// countedBy takes a count from an overview, which has the counts of pending, processing and
// poisoned statuses for each handler.
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
			if !slices.Contains(f.States[:i], state) { // the query may name a state twice
				sum.N, sum.Capped = sum.N+of.N, sum.Capped || of.Capped
			}
		}
	}
	return sum, len(seen.Handlers) > 0
}
