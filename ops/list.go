package ops

import (
	"context"
	"fmt"
)

// List returns a page of the statuses that match, newest first:
//
//   - open ones of a failure group by when they were accepted,
//   - poisoned ones by when they were accepted,
//   - pending, processing and failing ones by when they are due, the latest first,
//     followed by those that wait in a lane,
//   - if poisoned ones are requested too, they come before these,
//   - everything else, and all states together, by when the message was received.
//
// after is the place to continue from, "" for the beginning. limit is 1 to MaxLimit, 0 for 50. A status that keeps its
// place is on exactly one page, even if others come, go and change between the pages.
func (o *Ops) List(ctx context.Context, filter Filter, after Cursor, limit int) (Page[Status], error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	const list = "statuses"
	f, err := filter.checked()
	if err != nil {
		return Page[Status]{}, err
	}
	if limit, err = checkLimit(limit); err != nil {
		return Page[Status]{}, err
	}
	from, err := placeOf(list, filter, after)
	if err != nil {
		return Page[Status]{}, err
	}
	out, err := o.find(ctx, f, from, limit)
	if err != nil {
		return Page[Status]{}, fmt.Errorf("list statuses: %w", err)
	}
	next, err := cursorOf(list, filter, out.next)
	if err != nil {
		return Page[Status]{}, err
	}
	rows, err := o.whole(ctx, out.ids())
	if err != nil {
		return Page[Status]{}, fmt.Errorf("list statuses: %w", err)
	}
	page := Page[Status]{Items: make([]Status, 0, len(rows)), Next: next, Partial: out.partial, Looked: out.looked}
	for _, r := range rows {
		if f.takes(r.Status) { // still: it may have changed in between
			page.Items = append(page.Items, r.Status)
		}
	}
	return page, nil
}

// Count counts the statuses that match. It reads at most 10,000 rows.
func (o *Ops) Count(ctx context.Context, filter Filter) (Count, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	f, err := filter.checked()
	if err != nil {
		return Count{}, err
	}
	count := o.count
	if f.poisonedAlone() {
		count = o.countPoisoned
	}
	counted, err := count(ctx, f)
	if err != nil {
		return Count{}, fmt.Errorf("count statuses: %w", err)
	}
	return counted, nil
}

// count counts what a list would return, one handler key after the other, because the order does
// not matter.
func (o *Ops) count(ctx context.Context, f *filter) (Count, error) {
	var out found
	for i, st := range f.stages() {
		keys := []string{""}
		if st.keyed() {
			var err error
			if keys, err = o.keysFor(ctx, f, st); err != nil {
				return Count{}, err
			}
		}
		for _, key := range keys {
			of := *f
			if st.keyed() {
				of.HandlerKeys = []string{key}
			}
			ended, err := o.findIn(ctx, &of, st, i, nil, lookLimit, &out)
			if err != nil {
				return Count{}, err
			}
			if !ended {
				return Count{N: int64(len(out.rows)), Capped: true}, nil
			}
		}
	}
	return Count{N: int64(len(out.rows))}, nil
}

// countPoisoned counts the poisoned statuses without reading their rows.
func (o *Ops) countPoisoned(ctx context.Context, f *filter) (Count, error) {
	keys, err := o.keysFor(ctx, f, byPoisoned)
	if err != nil {
		return Count{}, err
	}
	var all Count
	for _, key := range keys {
		its, err := o.capped(ctx, countPoisoned, lookLimit-all.N, key)
		if err != nil {
			return Count{}, err
		}
		if all.N, all.Capped = all.N+its.N, its.Capped; all.Capped {
			break
		}
	}
	return all, nil
}
