package acceptor

import (
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
)

// Result is what happened to one message.
type Result struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers counts the status rows that this accept added.
	Handlers int
	// ContentDiffers means that the duplicate's content is not the stored one (contract 4.3).
	ContentDiffers bool
	// Err is an *InvalidError for invalid messages, else nil.
	Err error
}

// Reason classifies why a message is invalid.
type Reason string

// The reasons of an InvalidError.
const (
	ReasonUnknownChannel Reason = "unknown_channel"
	ReasonUnrouted       Reason = "unrouted"
	ReasonNotStored      Reason = "not_stored" // its channel is delivered without an inbox
	ReasonMissingID      Reason = "missing_id"
	ReasonIDTooLong      Reason = "id_too_long"
	ReasonBadID          Reason = "bad_id"
	ReasonTooLong        Reason = "too_long"
	ReasonBadText        Reason = "bad_text"
	ReasonBadProperties  Reason = "bad_properties"
	ReasonBadOrderingKey Reason = "bad_ordering_key" // OrderedBy panicked
	ReasonIDConflict     Reason = "id_conflict"
	ReasonContentDiffers Reason = "content_differs"
	ReasonRefused        Reason = "refused_by_database"
	ReasonNoMessage      Reason = "no_message" // a rejected record that holds none
)

// InvalidError is why one message cannot be accepted. Accepting it again unchanged fails again.
type InvalidError struct {
	MessageID string
	Reason    Reason
	Detail    string
	// Err is the cause, if that is another error.
	Err error
}

// Error names the message ID, cut if it is overlong, and the reason.
func (e *InvalidError) Error() string {
	id := []rune(e.MessageID)
	shown := fmt.Sprintf("%q", e.MessageID)
	if len(id) > 60 {
		shown = fmt.Sprintf("%q…", string(id[:60]))
	}
	text := fmt.Sprintf("message %s is invalid: %s", shown, e.Reason)
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
