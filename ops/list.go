package ops

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
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
func (o statusSearch) List(ctx context.Context, filter Filter, after Cursor, limit int) (Page[Status], error) {
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
	rows, err := o.whole(ctx, out.rows)
	if err != nil {
		return Page[Status]{}, fmt.Errorf("list statuses: %w", err)
	}
	page := Page[Status]{Items: make([]Status, 0, len(rows)), Next: next, Partial: out.partial, Scanned: out.looked}
	for _, r := range rows {
		if f.takes(r.Status) { // still: it may have changed in between
			page.Items = append(page.Items, r.Status)
		}
	}
	return page, nil
}

// Count counts the statuses that match. It reads at most 10,000 rows.
func (o statusSearch) Count(ctx context.Context, filter Filter) (Count, error) {
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

// count counts what a list would return, one handler key after the other, because the order does not matter.
func (o statusSearch) count(ctx context.Context, f *filter) (Count, error) {
	var n, looked int
	for i, st := range f.stages() {
		keys := []string{""}
		if st.Keyed() {
			var err error
			if keys, err = o.keysFor(ctx, f, st); err != nil {
				return Count{}, err
			}
		}
		for _, key := range keys {
			its, read, ended, err := o.countOf(ctx, f, st, i, key, looked)
			if err != nil {
				return Count{}, err
			}
			if n, looked = n+its, looked+read; !ended {
				return Count{N: int64(n), Capped: true}, nil
			}
		}
	}
	return Count{N: int64(n)}, nil
}

// countOf counts the rows of a stage, the number-th, after looked rows of others have been read. ended means that all
// have been read.
func (o statusSearch) countOf(
	ctx context.Context, f *filter, st store.Stage, number int, key string, looked int,
) (n, read int, ended bool, err error) {
	if !o.counts(f, st) {
		of := *f
		if st.Keyed() {
			of.HandlerKeys = []string{key}
		}
		out := found{looked: looked}
		ended, err = o.findIn(ctx, &of, st, number, nil, lookLimit, &out)
		return len(out.rows), out.looked - looked, ended, err
	}
	left := lookLimit - looked
	if left == 0 {
		return 0, 0, false, nil
	}
	scan := o.scanOf(f, st, []string{key}, o.start(f, st), left, 1)
	read, n, err = o.store.CountStatuses(ctx, o.largePool(ctx), scan)
	return n, read, read < left, err
}

// countPoisoned counts the poisoned statuses without reading their rows.
func (o statusSearch) countPoisoned(ctx context.Context, f *filter) (Count, error) {
	keys, err := o.keysFor(ctx, f, store.StagePoisoned)
	if err != nil {
		return Count{}, err
	}
	var all Count
	for _, key := range keys {
		its, err := o.capped(ctx, lookLimit-all.N, func(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error) {
			return o.store.CountPoisoned(ctx, pool, key, limit)
		})
		if err != nil {
			return Count{}, err
		}
		if all.N, all.Capped = all.N+its.N, its.Capped; all.Capped {
			break
		}
	}
	return all, nil
}

// Page is a part of a list.
type Page[T any] struct {
	Items []T
	// Next is the cursor of the next page; empty on the last one.
	Next Cursor
	// Partial is set when the scan stopped after about 10,000 rows, of which few matched. Continue with Next.
	Partial bool
	// Scanned is how many rows were read, matching or not.
	Scanned int
}

// pageAs converts the items of a page.
func pageAs[A, B any](page Page[A], convert func(A) B) Page[B] {
	items := make([]B, len(page.Items))
	for i, item := range page.Items {
		items[i] = convert(item)
	}
	return Page[B]{Items: items, Next: page.Next, Partial: page.Partial, Scanned: page.Scanned}
}

// part is the result of one statement of such a list: the items that match, how many items it read, and the last of
// these.
type part[T any] struct {
	items  []T
	looked int
	last   place
}

// pageOf reads a page of a list that has one order and one index. A statement reads depth items after a place, in the
// list's order, and returns up to limit that match. placeAt returns the place of an item. takes decides what the
// statement cannot. judged means that takes drops more than a few items, so the statement must return all.
func pageOf[T any](ctx context.Context, list string, filter any, after Cursor, limit int, judged bool,
	read func(ctx context.Context, p place, depth, limit int) (part[T], error), placeAt func(T) place,
	takes func(T) bool) (Page[T], error) {
	var page Page[T]
	limit, err := checkLimit(limit)
	if err != nil {
		return page, err
	}
	from, err := placeOf(list, filter, after)
	if err != nil {
		return page, err
	}
	at := place{ListPlace: store.ListPlace{At: lastTime, ID: lastID}}
	if from != nil {
		if at = *from; at.ID == "" {
			return page, badInput("cursor", "it is not one of this list")
		}
	}
	w, err := walk(ctx, at, limit, judged, read, placeAt, takes)
	page.Items, page.Partial, page.Scanned = w.items, w.partial, w.looked
	if err != nil || w.next == nil {
		return page, err
	}
	page.Next, err = cursorOf(list, filter, w.next)
	return page, err
}

// walked is the result of walk.
type walked[T any] struct {
	items []T
	// next is the place to continue from; nil at the end of the list.
	next *place
	// partial means that it ended because it had read lookLimit rows.
	partial bool
	looked  int
}

// walk reads up to limit items of such a list from a place on. See pageOf.
func walk[T any](ctx context.Context, at place, limit int, judged bool,
	read func(ctx context.Context, p place, depth, limit int) (part[T], error), placeAt func(T) place,
	takes func(T) bool) (w walked[T], err error) {
	end := func(p place) (walked[T], error) {
		w.next = &p
		return w, nil
	}
	last := at // of the items
	for step := limit + 1; ; step = min(4*step, lookLimit) {
		depth := min(step, lookLimit-w.looked)
		if depth == 0 {
			w.partial = true
			return end(at)
		}
		wanted := limit + 1 - len(w.items)
		if judged {
			wanted = depth
		}
		found, err := read(ctx, at, depth, wanted)
		if err != nil {
			return w, err
		}
		w.looked += found.looked
		for _, item := range found.items {
			at = placeAt(item)
			if !takes(item) {
				continue
			}
			if len(w.items) == limit { // so there is more
				return end(last)
			}
			w.items = append(w.items, item)
			last = at
		}
		if len(found.items) == wanted {
			continue // there may be more before the last
		}
		if found.looked < depth {
			return w, nil
		}
		at = found.last
	}
}

// parted splits the rows of a statement into the items and the closing row, which has the last item that was read and
// the number of items.
func parted[T any](rows []T, placeAt func(T) place, closes func(T) (number int, yes bool)) (p part[T]) {
	for _, row := range rows {
		if number, yes := closes(row); yes {
			p.looked, p.last = number, placeAt(row)
		} else {
			p.items = append(p.items, row)
		}
	}
	return p
}
