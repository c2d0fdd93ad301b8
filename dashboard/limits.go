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

// answeredAtOnce is how many requests of one actor are answered at once. Further ones
// wait for these: others then wait for a connection behind two of them at most.
const answeredAtOnce = 2

// inProgress counts the requests under way, so that a few people, or one script,
// cannot take the process's memory.
type inProgress struct {
	mu  sync.Mutex
	all int
	of  map[string]*actorsRequests
}

type actorsRequests struct {
	underWay int
	answered chan struct{} // holds one for each that is being answered
}

// admit counts a request until release is called, and waits until it may be answered.
// It refuses more at once than the option MaxRequests allows.
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
			"They were still being answered when this one's time was over. Nothing was done for it. Wait for them, or close other pages.")
	}
}

// refused is a problem that passes.
func (q *request) refused(status int, title, text string) error {
	q.w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	return &problem{status: status, title: title, text: text, bare: true}
}

// countIn counts a request, unless there are too many, until uncount is called.
func (q *request) countIn() (its *actorsRequests, uncount func(), err error) {
	p, actor := &q.d.inProgress, q.who.Actor
	p.mu.Lock()
	defer p.mu.Unlock()
	if its = p.of[actor]; its == nil {
		its = &actorsRequests{answered: make(chan struct{}, answeredAtOnce)}
	}
	switch {
	case its.underWay >= q.d.requestsPerActor:
		return nil, nil, q.refused(http.StatusTooManyRequests, "Too many requests at once",
			"You have "+strconv.Itoa(q.d.requestsPerActor)+
				" requests under way. Wait for them, or close other pages of this dashboard.")
	case p.all >= q.d.requests:
		return nil, nil, q.refused(http.StatusServiceUnavailable, "The dashboard is busy",
			"Too many people are looking at once. Try again in a few seconds.")
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
