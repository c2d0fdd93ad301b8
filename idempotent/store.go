package idempotent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/registry"
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
	// themselves return 0. If the store's server has a clock, keys that have not expired by that clock are kept.
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

// Check returns why k is not a valid key: its message ID is missing, too long (*envelope.IDTooLongError) or not valid
// UTF-8 without NUL, or the same holds for its handler key or namespace; a namespace may be empty. The wrapper checks
// before it calls a store. Call it where a Store is used without the wrapper.
func (k Key) Check() error {
	if err := registry.CheckKey(k.HandlerKey); err != nil {
		return err
	}
	if err := checkNamespace(k.Namespace); err != nil {
		return err
	}
	return envelope.CheckID(k.MessageID)
}

func checkNamespace(name string) error {
	switch n := utf8.RuneCountInString(name); {
	case n > columns.MaxChannel:
		return fmt.Errorf("namespace of IDs has %d characters, at most %d are allowed: give a shorter one to IDNamespace", n,
			columns.MaxChannel)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("namespace of IDs %q is no valid UTF-8 without NUL: give another to IDNamespace", name)
	default:
		return nil
	}
}

// ErrMissingID is why a message without an ID is refused (contract 8.3): find it with errors.Is. A function given to
// KeyBy may return it, wrapped or not, instead of an empty ID.
var ErrMissingID = envelope.ErrMissingID

// ErrNoStore says that RequireStore is set and there is no store.
var ErrNoStore = errors.New("there is no store, and RequireStore is set")

// IDError says that a message has no usable ID, so the handler was not called. Err is ErrMissingID, an
// *envelope.IDTooLongError that names the length, envelope.ErrBadID, or the error of the function given to KeyBy. It is
// the same at each delivery.
type IDError struct {
	HandlerKey string
	Err        error
}

// Error names the handler.
func (e *IDError) Error() string { return fmt.Sprintf("handler %q: %v", e.HandlerKey, e.Err) }

// Unwrap returns what is wrong with the ID.
func (e *IDError) Unwrap() error { return e.Err }

// DuplicateError is returned by the wrapper for a message that was processed before, if Duplicates is FailDuplicates.
// The message may be acknowledged.
type DuplicateError struct{ Key Key }

// Error names message and handler.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("handler %q has processed message %q before", e.Key.HandlerKey, e.Key.MessageID)
}
