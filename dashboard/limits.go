package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/gorm-inbox/inbox/ops"
)

// Bounds of what an address says: what it names is looked at one by one.
const (
	maxAddress    = 32 << 10 // the longest error text to search for, encoded, and more
	maxParameters = 50
	maxHandlers   = 20
)

// retryAfter is in how many seconds somebody who was refused may ask again.
const retryAfter = 2

// inProgress counts the requests under way, so that a few people, or one script,
// cannot take the process's memory.
type inProgress struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by actor
}

// admit counts a request of an actor until release is called. It refuses more at
// once than the option MaxRequests allows.
func (q *request) admit() (release func(), err error) {
	p, actor := &q.d.inProgress, q.who.Actor
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := func(status int, title, text string) (func(), error) {
		q.w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		return nil, &problem{status: status, title: title, text: text, bare: true}
	}
	switch {
	case p.of[actor] >= q.d.requestsPerActor:
		return refused(http.StatusTooManyRequests, "Too many requests at once",
			"You have "+strconv.Itoa(q.d.requestsPerActor)+" requests under way. Wait for them, or close other pages of this dashboard.")
	case p.all >= q.d.requests:
		return refused(http.StatusServiceUnavailable, "The dashboard is busy", "Too many people are looking at once. Try again in a few seconds.")
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.all++
	p.of[actor]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[actor]--; p.of[actor] == 0 {
			delete(p.of, actor)
		}
	}, nil
}

// parameters reads those of an address, unless there are more than any page's.
func parameters(address *url.URL) (url.Values, error) {
	if len(address.RawQuery) > maxAddress {
		return nil, badInput(fmt.Sprintf("The address is too long: its parameters have more than %d characters.", maxAddress))
	}
	if n := strings.Count(address.RawQuery, "&") + 1; n > maxParameters {
		return nil, badInput(fmt.Sprintf("The address has %d parameters: at most %d are taken.", n, maxParameters))
	}
	query, err := url.ParseQuery(address.RawQuery)
	if err != nil {
		return nil, badInput("The address is malformed.")
	}
	return query, nil
}

// checkLists refuses a filter that names more than a page can look at quickly.
func checkLists(f ops.Filter) error {
	if n := len(f.HandlerKeys); n > maxHandlers {
		return badInput(fmt.Sprintf("%d handlers are named: at most %d can be shown at once.", n, maxHandlers))
	}
	if n, all := len(f.States), len(ops.States()); n > all {
		return badInput(fmt.Sprintf("%d states are named: there are %d.", n, all))
	}
	return nil
}
