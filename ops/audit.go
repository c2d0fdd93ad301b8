package ops

import (
	"context"
	"errors"
	"time"
)

// Actor is who acts: a user's name or address, 1 to 200 characters. Callers
// have authenticated it; empty, too long or not text is ErrBadInput.
type Actor string

// Action is what an audit row is of.
type Action string

// The actions.
const (
	ActionView           Action = "view" // of a message and its payload
	ActionViewRejected   Action = "view_rejected"
	ActionRetry          Action = "retry"
	ActionDiscard        Action = "discard"
	ActionDelete         Action = "delete"
	ActionReplay         Action = "replay"
	ActionReAccept       Action = "re_accept"
	ActionDeleteRejected Action = "delete_rejected"
	ActionPause          Action = "pause"
	ActionResume         Action = "resume"
	ActionCleanup        Action = "cleanup"
)

// AuditEntry is one row of the audit.
type AuditEntry struct {
	ID     string
	Actor  Actor
	Action Action
	// Target is what it was done to, such as "message m1", "status 0190…" or
	// "handler orders.mail".
	Target string
	// Detail is JSON, with what else there is to know: see the action.
	Detail     string
	OccurredAt time.Time
}

// AuditFilter narrows the audit; empty fields take all.
type AuditFilter struct {
	Actor  Actor
	Action Action
	// Target contains this.
	Target   string
	From, To time.Time
}

// AuditPage is a part of the audit, see Page.
type AuditPage struct {
	Entries []AuditEntry
	Next    Cursor
	Partial bool
	Looked  int
}

// Audit returns a page of the audit, the last action first. See List for after
// and limit. Reading it leaves no audit row.
func (o *Ops) Audit(ctx context.Context, filter AuditFilter, after Cursor, limit int) (AuditPage, error) {
	return AuditPage{}, errors.ErrUnsupported
}
