package ops

import (
	"context"
	"fmt"
)

// Page is a part of a list.
type Page struct {
	Statuses []Status
	// Next goes on behind this page; empty at the end.
	Next Cursor
	// Partial: the page ended because LookLimit rows were looked at. Few of them
	// matched, or none; Next goes on.
	Partial bool
	// Looked counts the rows looked at.
	Looked int
}

// List returns a page of the statuses that match, newest first:
//
//   - poisoned ones by when they were accepted,
//   - pending, processing and failing ones by when they are due, the latest
//     first; those that wait in a lane behind them,
//   - if poisoned ones are asked for besides, they come before these,
//   - all else, and every state at once, by when the message was received.
//
// after is where to go on, "" to begin; limit is 1 to MaxLimit, 0 for
// DefaultLimit. A status that keeps its place is on exactly one page, however
// others come, go and change between the pages.
func (o *Ops) List(ctx context.Context, filter Filter, after Cursor, limit int) (Page, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	const list = "statuses"
	f, err := filter.checked()
	if err != nil {
		return Page{}, err
	}
	if limit, err = checkLimit(limit); err != nil {
		return Page{}, err
	}
	from, err := placeOf(list, filter, after)
	if err != nil {
		return Page{}, err
	}
	out, err := o.find(ctx, f, from, limit, LookLimit)
	if err != nil {
		return Page{}, fmt.Errorf("list statuses: %w", err)
	}
	next, err := cursorOf(list, filter, out.next)
	if err != nil {
		return Page{}, err
	}
	rows, err := o.whole(ctx, out.rows)
	if err != nil {
		return Page{}, fmt.Errorf("list statuses: %w", err)
	}
	page := Page{Statuses: make([]Status, 0, len(rows)), Next: next, Partial: out.partial, Looked: out.looked}
	for _, r := range rows {
		if g := r.glimpse(); f.takes(&g) { // still: it may have changed in between
			page.Statuses = append(page.Statuses, r.Status)
		}
	}
	return page, nil
}

// Count counts the statuses that match, up to LookLimit rows looked at.
func (o *Ops) Count(ctx context.Context, filter Filter) (Count, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	f, err := filter.checked()
	if err != nil {
		return Count{}, err
	}
	if f.poisonedAlone() {
		count, err := o.countPoisoned(ctx, f.HandlerKeys)
		if err != nil {
			return Count{}, fmt.Errorf("count statuses: %w", err)
		}
		return count, nil
	}
	out, err := o.find(ctx, f, nil, LookLimit, LookLimit)
	if err != nil {
		return Count{}, fmt.Errorf("count statuses: %w", err)
	}
	return Count{N: int64(len(out.rows)), Capped: out.partial || out.next != nil}, nil
}

// countPoisoned counts what is poisoned without a look at it.
func (o *Ops) countPoisoned(ctx context.Context, keys []string) (Count, error) {
	if len(keys) == 0 {
		var err error
		if keys, err = o.openKeys(ctx, byPoisoned); err != nil {
			return Count{}, err
		}
	}
	var all Count
	for _, key := range distinct(keys) {
		its, err := o.capped(ctx, countPoisoned, LookLimit-all.N, key)
		if err != nil {
			return Count{}, err
		}
		all.N += its.N
		if all.Capped = its.Capped; all.Capped {
			break
		}
	}
	return all, nil
}
