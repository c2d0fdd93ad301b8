package fxtest

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// patience bounds every call of a Kit to its inbox, in real time.
const patience = time.Minute

// maxRounds limits ProcessAll. With the longest backoff it is half a year.
const maxRounds = 50_000

// JSON is inbox.JSON for tests: it panics if payload cannot be marshalled.
func JSON(channel, messageType, id string, payload any) handler.RawMessage {
	m, err := inbox.JSON(channel, messageType, id, payload)
	if err != nil {
		panic(fmt.Sprintf("fxtest: %v", err))
	}
	return m
}

// Accept accepts messages and returns the result of each. An invalid message fails the test. Use Inbox.Accept to test
// for one.
func (k *Kit) Accept(messages ...handler.RawMessage) []acceptor.Result {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := k.Inbox.Accept(ctx, messages...)
	if err != nil {
		k.t.Fatalf("fxtest: accept: %v", err)
	}
	return results
}

// Process runs everything that is due by the inbox's clock, including what becomes due meanwhile, and returns the
// counts. Failed messages wait for their next attempt: Advance the clock and call Process again, or use ProcessAll.
func (k *Kit) Process() processor.Drained {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var total processor.Drained
	for {
		d, err := k.Inbox.ProcessPending(ctx)
		if err != nil {
			k.t.Fatalf("fxtest: process: %v", err)
		}
		if d.Picked == 0 {
			return total
		}
		add(&total, d)
	}
}

// ProcessAll is like Process, but also moves the clock to each next attempt and each NotBefore, until every status is
// completed or poisoned. Do not use it with handlers that snooze until something outside changes. It would not come to
// an end, and fails the test after maxRounds attempts.
func (k *Kit) ProcessAll() processor.Drained {
	k.t.Helper()
	total := k.Process()
	for range maxRounds {
		due, waiting := k.nextAttempt()
		if !waiting {
			return total
		}
		if k.clock().Now().Before(due) {
			k.clock().Set(due)
		}
		add(&total, k.Process())
	}
	k.t.Fatalf("fxtest: ProcessAll: messages are still pending after %d rounds, at %s", maxRounds, k.Clock.Now())
	return total
}

// Advance moves the clock forward by d. Handlers do not run before the next Process.
func (k *Kit) Advance(d time.Duration) {
	k.t.Helper()
	k.clock().Advance(d)
}

// Now returns the time of the inbox's clock.
func (k *Kit) Now() time.Time {
	k.t.Helper()
	return k.clock().Now()
}

func (k *Kit) clock() *Clock {
	k.t.Helper()
	if k.Clock == nil {
		k.t.Fatal("fxtest: the application runs on the system's clock: start it with fxtest.Manual()")
	}
	return k.Clock
}

// nextAttempt returns when the next attempt of a pending status is due, if one waits for it.
func (k *Kit) nextAttempt() (due time.Time, waiting bool) {
	k.t.Helper()
	var next []struct{ NextAttemptAt sql.NullTime }
	err := k.DB.Clauses(k.Inbox.Tables()).Model(&models.HandlerStatus{}).Select("next_attempt_at").
		Where("next_attempt_at IS NOT NULL AND completed_at IS NULL AND NOT is_poisoned AND processing_started_at IS NULL").
		Order("next_attempt_at").Limit(1).Find(&next).Error
	if err != nil {
		k.t.Fatalf("fxtest: find the next attempt: %v", err)
	}
	if len(next) == 0 {
		return time.Time{}, false
	}
	return next[0].NextAttemptAt.Time, true
}

func add(total *processor.Drained, d processor.Drained) {
	total.Picked += d.Picked
	total.Completed += d.Completed
	total.Failed += d.Failed
	total.Poisoned += d.Poisoned
	total.Released += d.Released
	total.Unstored += d.Unstored
}
