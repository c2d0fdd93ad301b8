package ops

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

// Live is what only a running application can do, because it knows the channels and handlers. Inbox.Ops gets one from
// *inbox.Inbox. Without it Replay, ReAccept and Cleanup (but see Options.Cleanup) fail with ErrNeedsApplication.
// Implementations are safe for concurrent use.
type Live interface {
	// AcceptTx accepts a message in an open transaction on the inbox's database. The caller calls
	// wake after the commit.
	AcceptTx(ctx context.Context, tx *gorm.DB, m handler.RawMessage) (result Accepted, wake func(), err error)
	// AcceptRejected accepts the content of a rejected message, deletes its row and adds the audit
	// row, all in one transaction. If the record is still bad, it stores the new reason with the
	// audit row.
	AcceptRejected(ctx context.Context, id string, audit models.Audit) ([]Accepted, error)
	// Cleanup is Inbox.Cleanup.
	Cleanup(ctx context.Context) (handler.Deleted, error)
	// HandlerKeys returns all keys of the handler that has this one, its current key first. It
	// returns ErrNotFound if no handler of this process has it.
	HandlerKeys(key string) ([]string, error)
	// Ordered reports whether the handler that has this key is ordered, and whether its lanes skip
	// poisoned rows. Both are false if no handler of this process has it.
	Ordered(key string) (ordered, skipsPoisoned bool)
	// Wake notifies this process's processor that handlers have due statuses.
	Wake(handlerKeys ...string)
	// Ended returns, by handler key, the attempts that ended in this process within about the last
	// hour, and since when they are counted; zero if the process does not run.
	Ended() (since time.Time, of map[string]Ended)
	// TakePaused makes this process apply the current pauses now and not with its next heartbeat.
	TakePaused(ctx context.Context) error
}

// Ended counts attempts that have ended.
type Ended struct {
	Completed int64
	// Failed includes the attempts that poisoned.
	Failed   int64
	Poisoned int64
}

// Accepted is the result for a message that an operator accepted.
type Accepted struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers is the number of statuses added.
	Handlers int
}
