package ops

import "context"

// Page is a part of a list.
type Page[T any] struct {
	Items []T
	// Next goes on behind this page; empty at the end.
	Next Cursor
	// Partial: the page ended because about 10,000 rows were looked at. Few of
	// them matched, or none; Next goes on.
	Partial bool
	// Looked counts the rows looked at.
	Looked int
}

// pageAs converts the items of a page.
func pageAs[A, B any](page Page[A], convert func(A) B) Page[B] {
	items := make([]B, len(page.Items))
	for i, item := range page.Items {
		items[i] = convert(item)
	}
	return Page[B]{Items: items, Next: page.Next, Partial: page.Partial, Looked: page.Looked}
}

// part is the result of one statement of such a list: the items that match, how many items it read,
// and the last of these.
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
	at := place{At: lastTime, ID: lastID}
	if from != nil {
		if at = *from; at.ID == "" {
			return page, badInput("cursor", "it is not one of this list")
		}
	}
	end := func(p place) (Page[T], error) {
		var err error
		page.Next, err = cursorOf(list, filter, &p)
		return page, err
	}
	last := at // of the page
	for step := limit + 1; ; step = min(4*step, lookLimit) {
		depth := min(step, lookLimit-page.Looked)
		if depth == 0 {
			page.Partial = true
			return end(at)
		}
		wanted := limit + 1 - len(page.Items)
		if judged {
			wanted = depth
		}
		found, err := read(ctx, at, depth, wanted)
		if err != nil {
			return page, err
		}
		page.Looked += found.looked
		for _, item := range found.items {
			at = placeAt(item)
			if !takes(item) {
				continue
			}
			if len(page.Items) == limit { // so there is more
				return end(last)
			}
			page.Items = append(page.Items, item)
			last = at
		}
		if len(found.items) == wanted {
			continue // there may be more before the last
		}
		if found.looked < depth {
			return page, nil
		}
		at = found.last
	}
}

// parted splits the rows of a statement into the items and the closing row, which has the last item
// that was read and the number of items.
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
