package fxtest

import (
	"testing"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/models"
)

// WaitCompleted waits until a running inbox has completed the message for the handler, and returns
// the status. It fails the test with the reason when that takes longer than within (real time), or
// when the status is poisoned.
func WaitCompleted(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, completed, within, messageID, handlerKey)
}

// WaitFailed waits until the handler has failed for the message and the status waits for its next
// attempt. It fails the test as WaitCompleted does, and also when the status is completed. It may
// miss a status that is retried quickly.
func WaitFailed(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, failed, within, messageID, handlerKey)
}

// WaitPoisoned waits until the status is poisoned. It fails the test as WaitCompleted does, and
// also when the status is completed.
func WaitPoisoned(
	t testing.TB, ib *inbox.Inbox, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	return wait(t, ib, poisoned, within, messageID, handlerKey)
}

// glance is the time between two queries of the database.
const glance = 5 * time.Millisecond

func wait(
	t testing.TB, ib *inbox.Inbox, want state, within time.Duration, messageID, handlerKey string,
) models.HandlerStatus {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	look := time.NewTicker(glance)
	defer look.Stop()
	for {
		f, err := find(ib, messageID, handlerKey)
		if err != nil {
			t.Fatalf("fxtest: read message %q: %v", messageID, err)
		}
		if s := f.status; s != nil {
			if want.is(*s) {
				return *s
			}
			if s.CompletedAt != nil || s.IsPoisoned { // the state is final
				t.Fatalf("fxtest: will not be %s: %s", want.name, f.describe(messageID, handlerKey))
			}
		}
		select {
		case <-deadline.C:
			t.Fatalf("fxtest: not %s within %s: %s", want.name, within, f.describe(messageID, handlerKey))
		case <-look.C:
		}
	}
}
