package ops

import (
	"errors"

	"github.com/gorm-inbox/inbox/internal/store"
)

// These are the errors that callers can distinguish. Each is wrapped with details.
var (
	// ErrNotFound means that nothing has that ID or handler key, or no longer.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous means that several namespaces have a message with that ID, see MessageRef.
	ErrAmbiguous = errors.New("in several namespaces")
	// ErrStale means that the status has another version than the caller saw, or changed during the
	// action. Read it again.
	ErrStale = errors.New("changed meanwhile")
	// ErrNotPoisoned means that only a poisoned status can be retried or discarded.
	ErrNotPoisoned = errors.New("not poisoned")
	// ErrNotPaused means that only a paused handler key can be resumed.
	ErrNotPaused = errors.New("not paused")
	// ErrProcessing means that a message cannot be deleted while a handler runs on it.
	ErrProcessing = errors.New("being processed")
	// ErrBadInput means that an argument is missing, malformed or out of range.
	ErrBadInput = errors.New("bad input")
	// ErrNeedsApplication means that only the running application can do this, because it knows the
	// channels and handlers. Use Inbox.Ops in its process, or its dashboard.
	ErrNeedsApplication = errors.New("only the running application can do this")
	// ErrReplayOff means that Replay needs the option AllowReplay.
	ErrReplayOff = errors.New("replay is off")
	// ErrNotAudited means that the audit row could not be written, so nothing was done or shown.
	ErrNotAudited = store.ErrNotAudited
)
