package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Tally is where the service's work stands, read from its database.
type Tally struct {
	Accepted, Rejected int64
	// Statuses by state; each is in one of them, but Retrying ones may be
	// Running.
	Completed, Poisoned, Waiting, Running, Retrying int64
}

// Settled counts the statuses that nothing will happen to any more.
func (t Tally) Settled() int64 { return t.Completed + t.Poisoned }

// ReadTally counts. Before the service has made its tables all is zero.
func ReadTally(ctx context.Context, db *gorm.DB) (t Tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	db = db.WithContext(ctx)
	if !db.Migrator().HasTable(&models.HandlerStatus{}) {
		return t, ctx.Err()
	}
	const pending = "completed_at IS NULL AND NOT is_poisoned"
	count := func(condition string) string {
		return "COALESCE(SUM(CASE WHEN " + condition + " THEN 1 ELSE 0 END), 0)"
	}
	err = db.Model(&models.HandlerStatus{}).Select(
		count("completed_at IS NOT NULL") + " AS completed, " +
			count("is_poisoned AND completed_at IS NULL") + " AS poisoned, " +
			count(pending+" AND processing_started_at IS NULL") + " AS waiting, " +
			count(pending+" AND processing_started_at IS NOT NULL") + " AS running, " +
			count(pending+" AND error_count > 0") + " AS retrying").Take(&t).Error
	if err == nil {
		err = db.Model(&models.Message{}).Count(&t.Accepted).Error
	}
	if err == nil {
		err = db.Model(&models.RejectedMessage{}).Count(&t.Rejected).Error
	}
	if err != nil {
		return t, fmt.Errorf("read where the work stands: %w", err)
	}
	return t, nil
}
