package fxtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/models"
)

// RequireAccepted fails the test unless the message is stored, and returns it.
func (k *Kit) RequireAccepted(messageID string) models.Message {
	k.t.Helper()
	found := messages(k.t, k.Inbox, messageID)
	if len(found) == 0 {
		k.t.Fatalf("fxtest: message %q was never accepted, or is cleaned", messageID)
	}
	return found[0]
}

// RequireNotAccepted fails the test if the message is stored.
func (k *Kit) RequireNotAccepted(messageID string) {
	k.t.Helper()
	if len(messages(k.t, k.Inbox, messageID)) > 0 {
		k.t.Fatalf("fxtest: message %q is accepted", messageID)
	}
}

// RequirePending fails the test unless the handler has yet to succeed for the message, whether it failed before or not,
// and returns the status.
func (k *Kit) RequirePending(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, pending, messageID, handlerKey)
}

// RequireCompleted fails the test unless the handler has returned nil for the message, and returns the status.
func (k *Kit) RequireCompleted(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, completed, messageID, handlerKey)
}

// RequireFailed fails the test unless the handler has failed for the message and the status waits for its next attempt.
// It returns the status with its last error. After the last attempt the status is poisoned instead.
func (k *Kit) RequireFailed(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, failed, messageID, handlerKey)
}

// RequirePoisoned fails the test unless the status is poisoned, and returns it with its last error.
func (k *Kit) RequirePoisoned(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, poisoned, messageID, handlerKey)
}

// WaitCompleted waits until a running inbox has completed the message for the handler, and returns the status. It fails
// the test with the reason when that takes longer than within (real time), or when the status is poisoned.
func WaitCompleted(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, completed, within, messageID, handlerKey)
}

// WaitFailed waits until the handler has failed for the message and the status waits for its next attempt. It fails the
// test as WaitCompleted does, and also when the status is completed. It may miss a status that is retried quickly.
func WaitFailed(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, failed, within, messageID, handlerKey)
}

// WaitPoisoned waits until the status is poisoned. It fails the test as WaitCompleted does, and also when the status is
// completed.
func WaitPoisoned(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, poisoned, within, messageID, handlerKey)
}

// WaitAccepted waits until the message is stored, and returns it. It fails the test when that takes longer than within
// (real time).
func WaitAccepted(t testing.TB, ib *inbox.Inbox, within time.Duration, messageID string) models.Message {
	t.Helper()
	var found []models.Message
	if !poll(within, func() bool {
		found = messages(t, ib, messageID)
		return len(found) > 0
	}) {
		t.Fatalf("fxtest: not accepted within %s: message %q", within, messageID)
	}
	return found[0]
}

// WaitRejected waits until a record of the channel is kept as rejected, and returns the latest one with the reason. It
// fails the test when that takes longer than within (real time).
func WaitRejected(t testing.TB, ib *inbox.Inbox, within time.Duration, channel string) models.RejectedMessage {
	t.Helper()
	var found []models.RejectedMessage
	if !poll(within, func() bool {
		query := ib.DB().Clauses(ib.Tables()).Where("channel = ?", channel).Order("rejected_at DESC, id DESC").Limit(1)
		found = rows[models.RejectedMessage](t, fmt.Sprintf("what channel %q rejected", channel), query)
		return len(found) > 0
	}) {
		t.Fatalf("fxtest: nothing rejected within %s on channel %q", within, channel)
	}
	return found[0]
}

func wait(
	t testing.TB, ib *inbox.Inbox, want state, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	var f found
	if !poll(within, func() bool {
		f = find(t, ib, messageID, handlerKey)
		if f.status == nil || want.is(*f.status) {
			return f.status != nil
		}
		if f.status.CompletedAt != nil || f.status.IsPoisoned { // the state is final
			t.Fatalf("fxtest: will not be %s: %s", want.name, f.describe(messageID, handlerKey))
		}
		return false
	}) {
		t.Fatalf("fxtest: not %s within %s: %s", want.name, within, f.describe(messageID, handlerKey))
	}
	return *f.status
}

// glance is the time between two queries of the database.
const glance = 5 * time.Millisecond

// poll calls look until it returns true, and reports whether it did within that time.
func poll(within time.Duration, look func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	again := time.NewTicker(glance)
	defer again.Stop()
	for !look() {
		select {
		case <-deadline.C:
			return false
		case <-again.C:
		}
	}
	return true
}

// state is a condition of a status that tests can require.
type state struct {
	name string
	is   func(s models.HandlerStatus) bool
}

var (
	pending   = state{"pending", func(s models.HandlerStatus) bool { return s.CompletedAt == nil && !s.IsPoisoned }}
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

func find(t testing.TB, ib *inbox.Inbox, messageID, handlerKey string) found {
	t.Helper()
	f := found{message: len(messages(t, ib, messageID)) > 0}
	query := ib.DB().Clauses(ib.Tables()).Where("message_id = ?", messageID).Order("handler_key")
	for _, s := range rows[models.HandlerStatus](t, fmt.Sprintf("the statuses of message %q", messageID), query) {
		f.keys = append(f.keys, s.HandlerKey)
		if s.HandlerKey == handlerKey {
			f.status = &s
		}
	}
	return f
}

// messages returns the message if it is stored.
func messages(t testing.TB, ib *inbox.Inbox, messageID string) []models.Message {
	t.Helper()
	query := ib.DB().Clauses(ib.Tables()).Where("id = ?", messageID).Limit(1)
	return rows[models.Message](t, fmt.Sprintf("message %q", messageID), query)
}

// rows returns what a query finds. Unlike First, it does not order by primary key and does not log a missing row.
func rows[T any](t testing.TB, of string, query *gorm.DB) (found []T) {
	t.Helper()
	if err := query.Find(&found).Error; err != nil {
		t.Fatalf("fxtest: read %s: %v", of, err)
	}
	return found
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
	case s.NextAttemptAt != nil && s.ErrorCount+s.AbandonedCount+s.InterruptedCount == 0:
		text = "pending, not before " + at(s.NextAttemptAt)
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
	f := find(t, ib, messageID, handlerKey)
	if f.status == nil || !want.is(*f.status) {
		t.Fatalf("fxtest: not %s: %s", want.name, f.describe(messageID, handlerKey))
	}
	return *f.status
}
