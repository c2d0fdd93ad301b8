package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/models"
)

// Status is what is stored about one handler and one message.
type Status struct {
	MessageID  string
	HandlerKey string
	Completed  bool
	Poisoned   bool
	Claimed    bool
	ErrorCount int
	Outcome    models.Outcome
}

// Books are everything the service left behind, read back when it has
// stopped. Nothing in them comes from a counter of its own.
type Books struct {
	Messages []string
	Statuses []Status
	Rejected []Coordinates
	Revenue  []RevenueEntry
	Mails    []string
	// Unread counts the records whose offsets are not committed.
	Unread int64
}

// ReadBooks reads database, mail file and broker.
func ReadBooks(ctx context.Context, place *scratch.Place, broker *Broker, mailFile string) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	db := place.DB.WithContext(ctx)
	for what, query := range map[string]*gorm.DB{
		"messages": db.Model(&models.Message{}).Pluck("id", &b.Messages),
		"statuses": db.Model(&models.HandlerStatus{}).Select("message_id, handler_key, completed_at IS NOT NULL AS completed, " +
			"is_poisoned AS poisoned, processing_started_at IS NOT NULL AS claimed, error_count, outcome").Find(&b.Statuses),
		"rejected messages": db.Model(&models.RejectedMessage{}).Select("partition, record_offset AS \"offset\"").Find(&b.Rejected),
		"revenue":           db.Find(&b.Revenue),
	} {
		if query.Error != nil {
			return b, fmt.Errorf("read %s: %w", what, query.Error)
		}
	}
	mails, err := os.ReadFile(mailFile)
	if err != nil {
		return b, fmt.Errorf("read mails: %w", err)
	}
	b.Mails = strings.Fields(string(mails))
	b.Unread, err = broker.Unread(ctx)
	return b, err
}
