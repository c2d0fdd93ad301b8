package ops

import (
	"errors"

	"github.com/gorm-inbox/inbox/internal/store"
)

// The errors that callers tell apart; each is wrapped with what it is about.
var (
	// ErrNotFound: there is nothing of that ID or handler key, or not any more.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous: several namespaces have a message of that ID, see MessageRef.
	ErrAmbiguous = errors.New("in several namespaces")
	// ErrStale: the status is at another version than the caller saw, or
	// changed while the action looked: look again.
	ErrStale = errors.New("changed meanwhile")
	// ErrNotPoisoned: only a poisoned status may be retried or discarded.
	ErrNotPoisoned = errors.New("not poisoned")
	// ErrNotPaused: only a paused handler key can be resumed.
	ErrNotPaused = errors.New("not paused")
	// ErrProcessing: a message cannot be deleted while a handler runs on it.
	ErrProcessing = errors.New("being processed")
	// ErrBadInput: an argument is missing, malformed or out of range.
	ErrBadInput = errors.New("bad input")
	// ErrNeedsApplication: only the running application can do that, because it
	// knows the channels and handlers: use Inbox.Ops in its process, or its
	// dashboard.
	ErrNeedsApplication = errors.New("only the running application can do this")
	// ErrReplayOff: Replay needs the option AllowReplay.
	ErrReplayOff = errors.New("replay is off")
	// ErrNotAudited: the audit row could not be written, so nothing was done or
	// shown.
	ErrNotAudited = store.ErrNotAudited
)
