package acceptor

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
)

// Result is what happened to one message.
type Result struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers counts the status rows that this accept added or, of OutcomeProcessed, the handlers that ran.
	Handlers int
	// ContentDiffers means that the duplicate's content is not the stored one (contract 4.3).
	ContentDiffers bool
	// Err is an *InvalidError for invalid messages, else nil.
	Err error
}

// The reasons of an InvalidError.
const (
	reasonUnknownChannel = "unknown_channel"
	reasonUnrouted       = "unrouted"
	reasonNotStored      = "not_stored" // its channel is delivered without an inbox
	reasonMissingID      = "missing_id"
	reasonIDTooLong      = "id_too_long"
	reasonBadID          = "bad_id"
	reasonTooLong        = "too_long"
	reasonBadText        = "bad_text"
	reasonBadProperties  = "bad_properties"
	reasonBadOrderingKey = "bad_ordering_key" // OrderedBy panicked
	reasonIDConflict     = "id_conflict"
	reasonContentDiffers = "content_differs"
	reasonRefused        = "refused_by_database"
	reasonNoMessage      = "no_message" // a rejected record that holds none
	reasonCut            = "cut"        // a rejected record of which only the beginning is kept
)

// InvalidError is why one message cannot be accepted. Accepting it again unchanged fails again.
type InvalidError struct {
	// MessageID is cut to 200 characters if it is longer, and therefore no message ID.
	MessageID string
	// Reason is for programs: unknown_channel, unrouted, not_stored (its channel is delivered without an
	// inbox), missing_id, id_too_long, bad_id, too_long, bad_text, bad_properties, bad_ordering_key
	// (OrderedBy panicked), id_conflict, content_differs, refused_by_database, no_message (a rejected
	// record that holds none) or cut (one of which only the beginning is kept).
	Reason string
	// Detail is for people.
	Detail string
	// Err is the cause, if that is another error.
	Err error
}

// Error names the message ID, cut if it is overlong, and the reason.
func (e *InvalidError) Error() string {
	id, more := brief.Characters(e.MessageID, 60), ""
	if len(id) < len(e.MessageID) {
		more = "…"
	}
	text := fmt.Sprintf("message %q%s is invalid: %s", id, more, e.Reason)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// invalid joins the errors of the invalid results, nil if there are none.
func invalid(results []Result) error {
	var problems []error
	for _, r := range results {
		if r.Err != nil {
			problems = append(problems, r.Err)
		}
	}
	return errors.Join(problems...)
}
