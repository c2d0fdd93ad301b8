package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/models"
)

// Status is what the inbox stores about a transfer.
type Status struct {
	MessageID  string
	HandlerKey string
	Completed  bool
	Claimed    bool
	ErrorCount int
	Outcome    models.Outcome
}

// Books are everything that is left when all has ended. Nothing in them comes
// from a counter.
type Books struct {
	Messages []string
	Statuses []Status
	Accounts []Account
	Journal  []JournalEntry // in the order of booking
	Postings []Posting
	// Calls are the transfers the handler was called for, call by call.
	Calls []string
}

// ReadBooks reads the database and the file of the handler's calls.
func ReadBooks(ctx context.Context, place *scratch.Place) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	db := place.DB.WithContext(ctx)
	for what, query := range map[string]*gorm.DB{
		"messages": db.Model(&models.Message{}).Pluck("id", &b.Messages),
		"statuses": db.Model(&models.HandlerStatus{}).Select("message_id, handler_key, completed_at IS NOT NULL AS completed, " +
			"processing_started_at IS NOT NULL AS claimed, error_count, outcome").Find(&b.Statuses),
		"accounts": db.Order("id").Find(&b.Accounts),
		"journal":  db.Order("id").Find(&b.Journal),
		"postings": db.Order("id").Find(&b.Postings),
	} {
		if query.Error != nil {
			return b, fmt.Errorf("read %s: %w", what, query.Error)
		}
	}
	b.Calls, err = scratch.ReadCalls(place.File(callsFile))
	return b, err
}
