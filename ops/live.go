package ops

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

// Live is what only a running application can do, as it alone knows channels
// and handlers. *inbox.Inbox gives one to Inbox.Ops; without it Replay,
// ReAccept and Cleanup (but see Options.Cleanup) fail with ErrNeedsApplication.
// Implementations are safe for concurrent use.
type Live interface {
	// AcceptTx accepts a message in an open transaction on the inbox's
	// database. wake is called after the commit.
	AcceptTx(ctx context.Context, tx *gorm.DB, m handler.RawMessage) (result Accepted, wake func(), err error)
	// AcceptRejected accepts what a rejected message holds, deletes its row and
	// adds the audit row, all in one transaction. If the record is still bad it
	// keeps the new reason with the audit row.
	AcceptRejected(ctx context.Context, id string, audit models.Audit) ([]Accepted, error)
	// Cleanup is Inbox.Cleanup.
	Cleanup(ctx context.Context) (handler.Deleted, error)
	// HandlerKeys are all keys of the handler that has this one, the one it goes
	// by now first. ErrNotFound if none of this process has it.
	HandlerKeys(key string) ([]string, error)
	// Ordered tells whether the handler that has this key is ordered, and if so
	// whether its lanes skip what is poisoned. False if none of this process has it.
	Ordered(key string) (ordered, skipsPoisoned bool)
	// Wake tells this process's processor that handlers have due statuses.
	Wake(handlerKeys ...string)
	// Ended counts, by handler key, the attempts that have ended in this process
	// within about the last hour, and says since when; zero if it does not run.
	Ended() (since time.Time, of map[string]Ended)
	// TakePaused has this process obey what is paused now, not with its next
	// heartbeat.
	TakePaused(ctx context.Context) error
}

// Ended counts attempts that have ended.
type Ended struct {
	Completed int64
	// Failed includes those that poisoned.
	Failed   int64
	Poisoned int64
}

// Accepted says what became of a message that an operator had accepted.
type Accepted struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers counts the statuses added.
	Handlers int
}
