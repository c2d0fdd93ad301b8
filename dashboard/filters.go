package dashboard

import (
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gorm-inbox/inbox/ops"
)

// pageSizes are the page sizes offered. The first is the default.
var pageSizes = []int{50, 100, 200}

// filterFields are the query parameters that form a filter of statuses.
var filterFields = []string{"state", "handler", "id", "namespace", "type", "from", "to", "error", "fingerprint"}

// filterOf reads a filter from the query of an address, so that filtered lists can be bookmarked and shared.
func filterOf(query url.Values) (ops.Filter, error) {
	f := ops.Filter{
		MessageID: query.Get("id"), Namespace: query.Get("namespace"), Type: query.Get("type"), ErrorText: query.Get("error"),
		Fingerprint: query.Get("fingerprint"),
		HandlerKeys: present(query["handler"]),
	}
	for _, state := range present(query["state"]) {
		f.States = append(f.States, ops.State(state))
	}
	if f.MessageID == "" {
		f.Namespace = "" // a namespace qualifies an ID only
	}
	var err error
	if f.From, err = timeOf(query.Get("from")); err != nil {
		return f, badInput("“From” is not a time such as 2026-01-31T14:30.")
	}
	if f.To, err = timeOf(query.Get("to")); err != nil {
		return f, badInput("“To” is not a time such as 2026-01-31T14:30.")
	}
	return f, checkLists(f)
}

// present drops empty values, because forms send unfilled fields too. Other values stay unchanged: IDs, types and
// handler keys may begin or end with spaces.
func present(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(value string) bool { return value == "" })
}

// timeOf parses a UTC time in the formats that browsers' fields and this package write.
func timeOf(text string) (t time.Time, err error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano, "2006-01-02"} {
		if t, err = time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, err
}

// only keeps the named parameters that are not empty.
func only(query url.Values, names []string) url.Values {
	kept := url.Values{}
	for _, name := range names {
		if values := present(query[name]); len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// limitOf returns the requested page size if it is one of pageSizes, else the default.
func limitOf(query url.Values) int {
	if asked, err := strconv.Atoi(query.Get("limit")); err == nil && slices.Contains(pageSizes, asked) {
		return asked
	}
	return pageSizes[0]
}

// paging has the links to the next and the first page of a list.
type paging struct {
	Next    string // address of the next page; empty on the last
	First   string // address of the first page; empty on the first
	Partial bool
	Looked  int
	Shown   int
}

// pagingOf builds the links of a list. They keep the filters of the current address.
func (q *request) pagingOf(next ops.Cursor, partial bool, looked, shown int) paging {
	p := paging{Partial: partial, Looked: looked, Shown: shown}
	query := q.ownQuery()
	if query.Get("after") != "" {
		query.Del("after")
		p.First = "./" + q.route.path + "?" + query.Encode()
	}
	if next != "" {
		query.Set("after", string(next))
		p.Next = "./" + q.route.path + "?" + query.Encode()
	}
	return p
}
