package fxtest

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/models"
)

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
		found = rows[models.Message](t, ib.DB().Clauses(ib.Tables()).Where("id = ?", messageID))
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
		found = rows[models.RejectedMessage](t, ib.DB().Clauses(ib.Tables()).Where("channel = ?", channel).
			Order("rejected_at DESC, id DESC"))
		return len(found) > 0
	}) {
		t.Fatalf("fxtest: nothing rejected within %s on channel %q", within, channel)
	}
	return found[0]
}

// rows returns what a query finds, at most one row.
func rows[T any](t testing.TB, query *gorm.DB) (found []T) {
	t.Helper()
	if err := query.Limit(1).Find(&found).Error; err != nil {
		t.Fatalf("fxtest: read a %T: %v", *new(T), err)
	}
	return found
}

func wait(
	t testing.TB, ib *inbox.Inbox, want state, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	var f found
	if !poll(within, func() (done bool) {
		var err error
		if f, err = find(ib, messageID, handlerKey); err != nil {
			t.Fatalf("fxtest: read message %q: %v", messageID, err)
		}
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
