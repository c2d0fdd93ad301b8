// Package registry finds the handlers of an inbox and checks their keys.
package registry

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
)

// AnyType is the type of a subscription that takes the messages of every type. A channel that has such a subscription
// has no other one.
const AnyType = "*"

// Subscription routes the messages of one type on one channel to a handler.
type Subscription struct {
	Channel string
	Type    string // or AnyType
	Handler *handler.Handler
	// Synchronous means that the channel is Inline or Direct: its messages have no statuses.
	Synchronous bool
}

// Registry finds one inbox's handlers by key and by route. It is immutable.
type Registry struct {
	byKey  map[string]Subscription
	routes map[route][]*handler.Handler
	types  map[string][]string // by channel, sorted
	all    []Subscription
}

type route struct{ channel, typ string }

// New checks the subscriptions and indexes them. The error joins all problems, each with channel, type and handler key.
func New(subscriptions []Subscription) (*Registry, error) {
	r := &Registry{byKey: map[string]Subscription{}, routes: map[route][]*handler.Handler{},
		types: map[string][]string{}}
	var problems []error
	for _, s := range subscriptions {
		at := fmt.Sprintf("channel %q, type %q, handler %q", s.Channel, s.Type, s.Handler.Key())
		if s.Type == "" {
			problems = append(problems, fmt.Errorf("%s: the message type is empty", at))
		}
		if err := s.Handler.Err(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", at, err))
		}
		for _, key := range s.Handler.Keys() {
			if err := CheckKey(key); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", at, err))
			}
			r.byKey[key] = s
		}
		r.all = append(r.all, s)
		to := route{s.Channel, s.Type}
		r.routes[to] = append(r.routes[to], s.Handler)
		if at, known := slices.BinarySearch(r.types[s.Channel], s.Type); !known {
			r.types[s.Channel] = slices.Insert(r.types[s.Channel], at, s.Type)
		}
	}
	return r, errors.Join(problems...)
}

// CheckKey returns why key cannot be a handler key. It must have 1 to 200 characters of valid UTF-8 without NUL
// (contract 4.2).
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("handler key is empty: give the handler one that never changes")
	case !utf8.ValidString(key) || slices.Contains([]byte(key), 0):
		return fmt.Errorf("handler key %q is not valid UTF-8 without NUL", key)
	case utf8.RuneCountInString(key) > columns.MaxHandlerKey:
		return fmt.Errorf("handler key of %d characters: must be 1 to %d", utf8.RuneCountInString(key),
			columns.MaxHandlerKey)
	}
	return nil
}

// Route returns the handlers for a type on a channel, in the order of declaration; none means unrouted. The slice is
// the caller's.
func (r *Registry) Route(channel, typ string) []*handler.Handler {
	return r.AppendRoute(nil, channel, typ)
}

// AppendRoute appends the result of Route to handlers. It does not allocate if they have room.
func (r *Registry) AppendRoute(handlers []*handler.Handler, channel, typ string) []*handler.Handler {
	if of := r.routes[route{channel, typ}]; len(of) > 0 {
		return append(handlers, of...)
	}
	return append(handlers, r.routes[route{channel, AnyType}]...)
}

// namedTypes is how many types Types names.
const namedTypes = 10

// Types names the types for which a channel has handlers, and counts those beyond the first ten.
func (r *Registry) Types(channel string) string {
	all := r.types[channel]
	text := fmt.Sprintf("%q", all[:min(len(all), namedTypes)])
	if more := len(all) - namedTypes; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Lookup finds a handler by its primary key or a legacy key.
func (r *Registry) Lookup(key string) (*handler.Handler, bool) {
	s, ok := r.byKey[key]
	return s.Handler, ok
}

// Subscription finds a handler as Lookup does, with its channel and type.
func (r *Registry) Subscription(key string) (Subscription, bool) {
	s, ok := r.byKey[key]
	return s, ok
}

// Handlers returns all handlers in order of declaration.
func (r *Registry) Handlers() iter.Seq[*handler.Handler] {
	return func(yield func(*handler.Handler) bool) {
		for _, s := range r.all {
			if !yield(s.Handler) {
				return
			}
		}
	}
}

// Subscriptions returns all subscriptions in order of declaration.
func (r *Registry) Subscriptions() iter.Seq[Subscription] { return slices.Values(r.all) }

// Keys returns every primary and legacy key, sorted.
func (r *Registry) Keys() []string {
	keys := make([]string, 0, len(r.byKey))
	for key := range r.byKey {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Registration is one handler key that an inbox of the process registers.
type Registration struct {
	Inbox   string
	Channel string
	Type    string
	Key     string
	Legacy  bool
}

// String describes the registration for an error message.
func (r Registration) String() string {
	kind := "key"
	if r.Legacy {
		kind = "legacy key"
	}
	return fmt.Sprintf("%s of inbox %q, channel %q, type %q", kind, r.Inbox, r.Channel, r.Type)
}

// DuplicateKeyError says that two registrations share a handler key (contract 5.16).
type DuplicateKeyError struct {
	Key           string
	First, Second Registration
}

// Error names both registrations.
func (e *DuplicateKeyError) Error() string {
	return fmt.Sprintf("handler key %q is registered twice: as %s, and as %s", e.Key, e.First, e.Second)
}

// CheckKeys returns an error for every key that two registrations share, over all inboxes and channels of the process,
// primary and legacy keys together. The error joins *DuplicateKeyError values.
func CheckKeys(registrations []Registration) error {
	first := map[string]Registration{}
	var problems []error
	for _, r := range registrations {
		if r.Key == "" {
			continue // New reports that
		}
		if before, taken := first[r.Key]; taken {
			problems = append(problems, &DuplicateKeyError{Key: r.Key, First: before, Second: r})
			continue
		}
		first[r.Key] = r
	}
	return errors.Join(problems...)
}
