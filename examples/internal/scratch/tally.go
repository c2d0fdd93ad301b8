package scratch

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// Tally is how many statuses of an inbox are in which state. Each is in one of
// them, but Retrying ones may be Claimed.
type Tally struct {
	Completed, Poisoned, Waiting, Claimed, Retrying int64
}

// All counts all.
func (t Tally) All() int64 { return t.Completed + t.Poisoned + t.Waiting + t.Claimed }

// ReadTally counts. The inbox's tables must be there.
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
