package ops

import "context"

// pageFound is a page of a list that has one order and one index.
type pageFound[T any] struct {
	items   []T
	next    Cursor
	partial bool
	looked  int
}

// pageOf reads a page: read gives up to n items behind a place, in the list's
// order, and placeAt tells where an item is.
func pageOf[T any](ctx context.Context, list string, filter any, after Cursor, limit int,
	read func(ctx context.Context, p place, n int) ([]T, error), placeAt func(T) place, takes func(T) bool) (pageFound[T],
	error) {
	var page pageFound[T]
	limit, err := checkLimit(limit)
	if err != nil {
		return page, err
	}
	from, err := placeOf(list, filter, after)
	if err != nil {
		return page, err
	}
	at := place{At: lastTime, ID: lastID}
	if from != nil {
		if at = *from; at.ID == "" {
			return page, badInput("cursor", "it is not one of this list")
		}
	}
	end := func(p place) (pageFound[T], error) {
		var err error
		page.next, err = cursorOf(list, filter, &p)
		return page, err
	}
	last := at // of the page
	for n := limit + 1; ; n = min(2*n, mostAtOnce) {
		items, err := read(ctx, at, n)
		if err != nil {
			return page, err
		}
		for _, item := range items {
			at = placeAt(item)
			page.looked++
			if takes(item) {
				if len(page.items) == limit { // so there is more
					return end(last)
				}
				page.items = append(page.items, item)
				last = at
			}
			if page.looked >= LookLimit {
				page.partial = true
				return end(at)
			}
		}
		if len(items) < n {
			return page, nil
		}
	}
}

// mostAtOnce is how many rows one statement of a page reads.
const mostAtOnce = 1000
