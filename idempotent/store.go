package idempotent

import (
	"context"
	"errors"
	"time"
)

// Key names what must happen once: the handling of a message by one handler. Two handlers of one message are
// independent (contract 8.3). Source and type are not part of the key. CloudEvents allows producers to number their
// messages independently, so that different messages have the same ID; all but the first would count as duplicates. In
// that case use envelope.SourceAndID.
type Key struct {
	MessageID  string // 1 to 200 characters
	HandlerKey string // 1 to 200 characters
	// Namespace is where the message ID is unique: the channel, or what IDNamespace says. It is empty or has up to 200
	// characters. The same ID in two namespaces names two messages.
	Namespace string
}

// Run is the argument of one call of Store.Run.
type Run struct {
	Key Key
	// LegacyKeys are earlier keys of the handler, the newest first; usually there are none. While a rename is rolled
	// out, programs from before it know the message only under one of them.
	LegacyKeys []string
	// MessageType is stored with the key, for people who inspect the markers; it may be empty.
	MessageType string
	// Retention is how long to remember that the key was processed; 0 leaves that to the store. The store decides
	// whether it counts from the run's begin or its end: gormstore, which writes its marker first, counts from the
	// begin. It must be longer than a body may run.
	Retention time.Duration
}

// Keys returns all keys of the run: Key, and the same under each of LegacyKeys.
func (r Run) Keys() []Key {
	keys := []Key{r.Key}
	for _, legacy := range r.LegacyKeys {
		key := r.Key
		key.HandlerKey = legacy
		keys = append(keys, key)
	}
	return keys
}

// DefaultRetention is how long gormstore and memstore remember the key of a run without a Retention. Your own stores
// should use it, too.
const DefaultRetention = 24 * time.Hour

// Store remembers which keys have been processed. The marker of a key exists once a body has succeeded, until Cleanup
// or, if the store forgets by itself, until its retention is over. The marker's presence decides, not its expiry
// (contract 8.2, 8.4). A store must be safe for concurrent use. Package idempotenttest has the suite that each store
// must pass.
type Store interface {
	// Run calls body unless one of run.Keys has been processed, and then remembers that all of them are. If one has
	// been processed, duplicate is true, err is nil and body is not called. Of concurrent calls that have a key in
	// common only one at a time calls its body; the others wait for it or return ErrInProgress, depending on the store.
	// Take the keys together, or sorted: programs of a rename list them in different orders. body is called with a
	// context derived from ctx, and its error is returned as it is, or wrapped. After an error nothing is remembered,
	// nor after a panic, which is not recovered.
	Run(ctx context.Context, run Run, body func(ctx context.Context) error) (duplicate bool, err error)
	// Processed reports whether the key has been processed.
	Processed(ctx context.Context, key Key) (bool, error)
	// Cleanup forgets keys whose retention ended before olderThan, and returns how many. Stores that forget by
	// themselves return 0. If the store's server has a clock, as PostgreSQL has, keys that have not expired by that
	// clock are kept.
	Cleanup(ctx context.Context, olderThan time.Time) (int64, error)
}

// Errors of a run. In both cases do not acknowledge the message, so that it is delivered again later.
var (
	// ErrInProgress says that another call for the key is in progress, here or in another process, and had not ended
	// when the wait was over.
	ErrInProgress = errors.New("the message is being handled elsewhere")
	// ErrLost says that the store gave the key to another call while body ran (its lease had expired), or that it does
	// not know whether it kept the marker. body may run again.
	ErrLost = errors.New("the claim on the message was lost")
)
