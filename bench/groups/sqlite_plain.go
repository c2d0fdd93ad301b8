package groups

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/handler"
)

// plain is an inbox that one writes in an afternoon: GORM, one row at a time, no retries and no
// recovery.
type plain struct{ db *gorm.DB }

type plainMessage struct {
	ID         string `gorm:"primaryKey"`
	Type       string
	Content    []byte
	ReceivedAt time.Time
}

type plainStatus struct {
	ID                  uint64 `gorm:"primaryKey"`
	MessageID           string `gorm:"uniqueIndex:plain_once"`
	HandlerKey          string `gorm:"uniqueIndex:plain_once"`
	ProcessingStartedAt *time.Time
	// The index contains only pending rows.
	CompletedAt *time.Time    `gorm:"index:plain_pending,where:completed_at IS NULL"`
	Message     *plainMessage `gorm:"foreignKey:MessageID"`
}

func openPlain(ctx context.Context, driver, path string) (*plain, error) {
	db, err := gorm.Open(ours.SQLite(driver, path), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, err
	}
	return &plain{db: db}, db.WithContext(ctx).AutoMigrate(&plainMessage{}, &plainStatus{})
}

func (p *plain) close() {
	if pool, err := p.db.DB(); err == nil {
		_ = pool.Close()
	}
}

func (p *plain) accept(ctx context.Context, messages []handler.RawMessage) error {
	db := p.db.WithContext(ctx)
	for _, m := range messages {
		err := db.Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(&plainMessage{ID: m.ID, Type: m.Type, Content: m.Content,
				ReceivedAt: time.Now()}).Error; err != nil {
				return err
			}
			return tx.Create(&plainStatus{MessageID: m.ID, HandlerKey: "bench-handler-1"}).Error
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// process claims a hundred statuses at a time and completes each separately.
func (p *plain) process(ctx context.Context) error {
	db := p.db.WithContext(ctx)
	for {
		var batch []plainStatus
		if err := db.Preload("Message").Where("completed_at IS NULL").Order("id").Limit(100).Find(&batch).Error; err != nil {
			return err
		}
		if len(batch) == 0 {
			return nil
		}
		for _, s := range batch {
			if err := db.Model(&s).Update("processing_started_at", time.Now()).Error; err != nil {
				return err
			}
			if err := db.Model(&s).Updates(map[string]any{"processing_started_at": nil,
				"completed_at": time.Now()}).Error; err != nil {
				return err
			}
		}
	}
}

func (p *plain) check(ctx context.Context, messages, completed int) error {
	var m, s, c int64
	db := p.db.WithContext(ctx)
	for _, count := range []struct {
		query *gorm.DB
		into  *int64
	}{
		{db.Model(&plainMessage{}), &m},
		{db.Model(&plainStatus{}), &s},
		{db.Model(&plainStatus{}).Where("completed_at IS NOT NULL"), &c},
	} {
		if err := count.query.Count(count.into).Error; err != nil {
			return err
		}
	}
	if m != int64(messages) || s != int64(messages) || c != int64(completed) {
		return fmt.Errorf("by hand: messages %d, statuses %d, completed %d; expected %d, %d, %d", m, s, c, messages, messages,
			completed)
	}
	return nil
}
