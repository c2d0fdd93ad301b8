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

// Limits of the query parameters. They bound the work of a request, because each named item is looked up.
const (
	maxAddress    = 32 << 10 // fits the longest error text to search for, encoded
	maxParameters = 50
	maxHandlers   = 20
)

// retryAfter is the value of the Retry-After header, in seconds.
const retryAfter = 2

// answeredAtOnce is how many requests of one actor are served concurrently. Further requests of this actor wait, so
// that other actors wait for at most two of them to get a connection.
const answeredAtOnce = 2

// inProgress counts the requests in progress, so that a few people or one script cannot exhaust the process's memory.
type inProgress struct {
	mu  sync.Mutex
	all int
	of  map[string]*actorsRequests
}

type actorsRequests struct {
	underWay int
	answered chan struct{} // has one element for each request being served
}

// admit counts a request until release, and waits until it may be served. It refuses requests beyond MaxRequests.
func (q *request) admit() (release func(), err error) {
	actor, uncount, err := q.countIn()
	if err != nil {
		return nil, err
	}
	release = func() {
		<-actor.answered
		uncount()
	}
	select {
	case actor.answered <- struct{}{}:
		return release, nil
	default:
	}
	select {
	case actor.answered <- struct{}{}:
		return release, nil
	case <-q.r.Context().Done():
		uncount()
		return nil, q.refused(http.StatusServiceUnavailable, "Your other requests took too long",
			"They were still running when this request timed out, so it was not processed. Wait for them, or close other pages.")
	}
}

// refused returns a temporary problem and asks the client to retry later.
func (q *request) refused(status int, title, text string) error {
	q.w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	return &problem{status: status, title: title, text: text, bare: true}
}

// countIn counts a request until uncount is called, or refuses it if there are too many.
func (q *request) countIn() (its *actorsRequests, uncount func(), err error) {
	p, actor := &q.d.inProgress, q.who.Actor
	p.mu.Lock()
	defer p.mu.Unlock()
	if its = p.of[actor]; its == nil {
		its = &actorsRequests{answered: make(chan struct{}, answeredAtOnce)}
	}
	switch {
	case its.underWay >= q.d.opts.MaxRequestsPerActor:
		return nil, nil, q.refused(http.StatusTooManyRequests, "Too many requests at once",
			"You have "+strconv.Itoa(q.d.opts.MaxRequestsPerActor)+
				" requests in progress. Wait for them, or close other pages of this dashboard.")
	case p.all >= q.d.opts.MaxRequests:
		return nil, nil, q.refused(http.StatusServiceUnavailable, "The dashboard is busy",
			"Too many requests are in progress. Try again in a few seconds.")
	}
	if p.of == nil {
		p.of = map[string]*actorsRequests{}
	}
	p.of[actor] = its
	p.all++
	its.underWay++
	return its, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if its.underWay--; its.underWay == 0 {
			delete(p.of, actor)
		}
	}, nil
}

// parameters parses the query of an address. It refuses more parameters than any page uses.
func parameters(address *url.URL) (url.Values, error) {
	if len(address.RawQuery) > maxAddress {
		return nil, badInput(fmt.Sprintf("The address is too long: its parameters have more than %d characters.", maxAddress))
	}
	if n := strings.Count(address.RawQuery, "&") + 1; n > maxParameters {
		return nil, badInput(fmt.Sprintf("The address has %d parameters: at most %d are allowed.", n, maxParameters))
	}
	query, err := url.ParseQuery(address.RawQuery)
	if err != nil {
		return nil, badInput("The address is malformed.")
	}
	return query, nil
}

// checkLists refuses a filter that names more handlers or states than a page can query quickly.
func checkLists(f ops.Filter) error {
	if n := len(f.HandlerKeys); n > maxHandlers {
		return badInput(fmt.Sprintf("%d handlers are named: at most %d can be shown at once.", n, maxHandlers))
	}
	if n, all := len(f.States), len(ops.States()); n > all {
		return badInput(fmt.Sprintf("%d states are named: there are %d.", n, all))
	}
	return nil
}
