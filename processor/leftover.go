package processor

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// leftover is the set of groups that are still running after their loop has ended. The zero value
// is empty.
type leftover struct {
	mu     sync.Mutex
	groups map[*group]bool
}

func (l *leftover) add(groups map[*group]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.groups == nil {
		l.groups = map[*group]bool{}
	}
	for g := range groups {
		l.groups[g] = true
	}
}

func (l *leftover) remove(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, g)
}

func (l *leftover) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.groups)
}

// mostNamed is the number of messages that names lists at most.
const mostNamed = 10

// names lists the handler keys and message IDs of the groups, for an error.
func (l *leftover) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var each []string
	for g := range l.groups {
		for _, a := range g.tasks {
			each = append(each, fmt.Sprintf("handler %q with message %q", a.claim.HandlerKey, a.claim.MessageID))
		}
	}
	slices.Sort(each)
	if more := len(each) - mostNamed; more > 0 {
		each = append(each[:mostNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(each, ", ")
}
