package dashboard

import (
	"html/template"
	"slices"

	"github.com/gorm-inbox/inbox/ops"
)

type messagesBody struct {
	Statuses []ops.Status
	Count    ops.Count
	Paging   paging
	Filter   ops.Filter
	From, To string // as in the form's fields
	States   []stateChoice
	Handlers []string
	Limit    int
	Sizes    []int
	Filtered bool
	// Selectable is true if the page has poisoned statuses that the principal may act on.
	Selectable bool
	// All is the filter as query parameters of an action on all that match. It is empty if the
	// filter does not allow such an action.
	All template.URL
	// Narrow is true if an action on all that match needs a narrower filter.
	Narrow bool
}

type stateChoice struct {
	State  ops.State
	Chosen bool
}

// messages lists statuses. One line is one handler's status of one message.
func (q *request) messages() error {
	filter, err := filterOf(q.query)
	if err != nil {
		return err
	}
	ctx, limit := q.r.Context(), limitOf(q.query)
	page, err := q.d.ops.List(ctx, filter, ops.Cursor(q.query.Get("after")), limit)
	if err != nil {
		return err
	}
	seen, err := q.d.overview(ctx)
	if err != nil {
		return err
	}
	count, err := q.count(filter, page, seen)
	if err != nil {
		return err
	}
	b := messagesBody{Statuses: page.Items, Count: count, Filter: filter, Limit: limit, Sizes: pageSizes,
		From: q.query.Get("from"), To: q.query.Get("to"), Filtered: len(only(q.query, filterFields)) > 0,
		Paging: q.pagingOf(page.Next, page.Partial, page.Looked, len(page.Items))}
	for _, state := range ops.States() {
		b.States = append(b.States, stateChoice{state, slices.Contains(filter.States, state)})
	}
	for _, h := range seen.Handlers {
		b.Handlers = append(b.Handlers, h.HandlerKey)
	}
	if q.may("POST", "retry") {
		b.Selectable = slices.ContainsFunc(page.Items, func(s ops.Status) bool { return s.State == ops.StatePoisoned })
		if slices.Equal(filter.States, []ops.State{ops.StatePoisoned}) && count.N > 0 {
			if b.Narrow = !narrows(filter); !b.Narrow {
				b.All = template.URL(only(q.query, filterFields).Encode()) // safe: Encode escapes it
			}
		}
	}
	return q.render("messages", "Messages", "messages", b)
}

// narrows reports whether a filter has more than states. An action on all that match requires it.
func narrows(f ops.Filter) bool {
	return len(f.HandlerKeys) > 0 || f.MessageID != "" || f.Type != "" || f.ErrorText != "" || f.Fingerprint != "" ||
		!f.From.IsZero() || !f.To.IsZero()
}
