package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Tally is where the workers' work stands, read from the database. Each
// transfer is in one of the states, but Retrying ones may be Claimed.
type Tally struct {
	Completed, Poisoned, Waiting, Claimed, Retrying int64
}

// Accepted counts all.
func (t Tally) Accepted() int64 { return t.Completed + t.Poisoned + t.Waiting + t.Claimed }

// ReadTally counts.
func ReadTally(ctx context.Context, db *gorm.DB) (t Tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const pending = "completed_at IS NULL AND NOT is_poisoned"
	count := func(condition string) string {
		return "COALESCE(SUM(CASE WHEN " + condition + " THEN 1 ELSE 0 END), 0)"
	}
	err = db.WithContext(ctx).Model(&models.HandlerStatus{}).Select(
		count("completed_at IS NOT NULL") + " AS completed, " +
			count("is_poisoned AND completed_at IS NULL") + " AS poisoned, " +
			count(pending+" AND processing_started_at IS NULL") + " AS waiting, " +
			count(pending+" AND processing_started_at IS NOT NULL") + " AS claimed, " +
			count(pending+" AND error_count > 0") + " AS retrying").Take(&t).Error
	if err != nil {
		return t, fmt.Errorf("read where the work stands: %w", err)
	}
	return t, nil
}

// ReadLastWorker names the worker that booked last; empty if none has.
func ReadLastWorker(ctx context.Context, db *gorm.DB) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = db.WithContext(ctx).Model(&JournalEntry{}).Select("worker").Order("id DESC").Limit(1).Scan(&name).Error
	if err != nil {
		return "", fmt.Errorf("read who booked last: %w", err)
	}
	return name, nil
}
