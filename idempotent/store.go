package idempotent

import (
	"context"
	"errors"
	"time"
)

// Key names what is to be done once: a message by one handler. Two handlers of
// one message are independent (contract 8.3). Source and type are no part of it:
// producers that each number their messages by themselves, for which CloudEvents
// allows, have messages of one ID that are not the same. All but the first would
// be taken for duplicates: let KeyBy put the source before the ID there.
type Key struct {
	MessageID  string // 1 to 200 characters
	HandlerKey string // 1 to 200 characters
	// Namespace is where the message ID is unique: the channel, or what IDNamespace
	// says; empty, or up to 200 characters. The same ID in two namespaces is two
	// messages.
	Namespace string
}

// Run is one call of Store.Run.
type Run struct {
	Key Key
	// MessageType is kept beside the key for those who look at the markers; it
	// may be empty.
	MessageType string
	// Retention is how long it is remembered that the key was processed; 0 leaves
	// that to the store. Whether it counts from the run's begin or its end is up
	// to the store: gormstore, whose marker is written first, counts from the
	// begin. It has to be longer than a body may run.
	Retention time.Duration
}

// DefaultRetention is how long gormstore and memstore remember a key of a run
// that names no Retention. Stores of your own do well to do the same.
const DefaultRetention = 24 * time.Hour

// Store remembers which keys have been processed. Its marker of a key is there
// once a body has succeeded, and until Cleanup or, where the store forgets by
// itself, until its retention has passed: the marker's presence decides, not its
// expiry (contract 8.2, 8.4). A store is safe for concurrent use. Package
// idempotenttest has the suite that each must pass.
type Store interface {
	// Run calls body unless the key has been processed, and then remembers
	// that. Duplicate is true, and err nil, if the key has been processed: body
	// was not called. Of calls at the same time one calls its body at a time; the
	// others wait for it or return ErrInProgress, as the store says. Body is
	// called with a context derived from ctx, and its error is returned as it
	// is, or wrapped; nothing is remembered then, nor after a panic, which goes
	// on to the caller.
	Run(ctx context.Context, run Run, body func(ctx context.Context) error) (duplicate bool, err error)
	// Processed reports whether the key has been processed.
	Processed(ctx context.Context, key Key) (bool, error)
	// Cleanup forgets keys whose retention ended before olderThan, and returns
	// how many. Stores that forget by themselves return 0.
	Cleanup(ctx context.Context, olderThan time.Time) (int64, error)
}

// Errors of a run. Neither message may be acknowledged: deliver it again later.
var (
	// ErrInProgress: another call for the key is under way, here or in another
	// process, and had not ended when waiting did.
	ErrInProgress = errors.New("the message is being handled elsewhere")
	// ErrLost: the store gave the key to another call while body ran (its lease
	// had run out), or cannot say whether it kept the marker. Body may run again.
	ErrLost = errors.New("the claim on the message was lost")
)
