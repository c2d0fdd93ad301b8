package fxtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/models"
)

// state is a condition of a status that tests can require.
type state struct {
	name string
	is   func(s models.HandlerStatus) bool
}

var (
	pending = state{"pending", func(s models.HandlerStatus) bool {
		return s.CompletedAt == nil && !s.IsPoisoned
	}}
	completed = state{"completed", func(s models.HandlerStatus) bool {
		return s.CompletedAt != nil && s.Outcome == models.OutcomeProcessed
	}}
	failed = state{"failed and waiting for its next attempt", func(s models.HandlerStatus) bool {
		return s.CompletedAt == nil && !s.IsPoisoned && s.ErrorCount > 0 && s.ProcessingStartedAt == nil
	}}
	poisoned = state{"poisoned", func(s models.HandlerStatus) bool { return s.IsPoisoned && s.CompletedAt == nil }}
)

// found is what the database has for one message and handler key.
type found struct {
	message bool
	status  *models.HandlerStatus
	keys    []string // handler keys that have a status for the message
}

func find(ib *inbox.Inbox, messageID, handlerKey string) (found, error) {
	var f found
	// Limit and Find, unlike First, do not order by primary key and do not log a missing row.
	var messages []models.Message
	if err := ib.DB().Clauses(ib.Tables()).Where("id = ?", messageID).Limit(1).Find(&messages).Error; err != nil {
		return f, err
	}
	f.message = len(messages) > 0
	var statuses []models.HandlerStatus
	if err := ib.DB().Clauses(ib.Tables()).Where("message_id = ?",
		messageID).Order("handler_key").Find(&statuses).Error; err != nil {
		return f, err
	}
	for _, s := range statuses {
		f.keys = append(f.keys, s.HandlerKey)
		if s.HandlerKey == handlerKey {
			f.status = &s
		}
	}
	return f, nil
}

// describe says what was found instead of what was expected.
func (f found) describe(messageID, handlerKey string) string {
	switch {
	case !f.message && f.status == nil:
		return fmt.Sprintf("message %q was never accepted, or is cleaned", messageID)
	case f.status == nil && len(f.keys) == 0:
		return fmt.Sprintf("message %q has no status under any handler key", messageID)
	case f.status == nil:
		return fmt.Sprintf("message %q has no status under handler key %q, only under %s", messageID, handlerKey,
			strings.Join(f.keys, ", "))
	}
	return fmt.Sprintf("message %q, handler key %q is %s", messageID, handlerKey, summary(*f.status))
}

// summary formats a status as one line, with its last error below.
func summary(s models.HandlerStatus) string {
	at := func(t *time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	var text string
	switch {
	case s.CompletedAt != nil:
		text = fmt.Sprintf("completed (%s) at %s", s.Outcome, at(s.CompletedAt))
	case s.IsPoisoned:
		text = "poisoned"
	case s.ProcessingStartedAt != nil:
		text = "being processed since " + at(s.ProcessingStartedAt)
	case s.NextAttemptAt != nil:
		text = "pending, next attempt at " + at(s.NextAttemptAt)
	default:
		text = "pending, due now"
	}
	text += fmt.Sprintf(", %d errors charged", s.ErrorCount)
	if s.AbandonedCount > 0 {
		text += fmt.Sprintf(", abandoned %d times", s.AbandonedCount)
	}
	if s.InterruptedCount > 0 {
		text += fmt.Sprintf(", interrupted by the database %d times", s.InterruptedCount)
	}
	if s.LastError != nil {
		text += "\nlast error: " + *s.LastError
	}
	return text
}

// require returns the status if it is in the wanted state. Otherwise it fails the test with what was found.
func require(t testing.TB, ib *inbox.Inbox, want state, messageID, handlerKey string) models.HandlerStatus {
	t.Helper()
	f, err := find(ib, messageID, handlerKey)
	if err != nil {
		t.Fatalf("fxtest: read message %q: %v", messageID, err)
	}
	if f.status == nil || !want.is(*f.status) {
		t.Fatalf("fxtest: not %s: %s", want.name, f.describe(messageID, handlerKey))
	}
	return *f.status
}
