package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/models"
)

// Tally is where the service's work stands, read from its database.
type Tally struct {
	Accepted, Rejected int64
	scratch.Tally
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
	if t.Tally, err = scratch.ReadTally(ctx, db); err != nil {
		return t, err
	}
	if err = db.Model(&models.Message{}).Count(&t.Accepted).Error; err == nil {
		err = db.Model(&models.RejectedMessage{}).Count(&t.Rejected).Error
	}
	if err != nil {
		return t, fmt.Errorf("read where the work stands: %w", err)
	}
	return t, nil
}
