package byhand

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// Processed is the marker of the articles on idempotent consumers, such as
// https://microservices.io/patterns/communication-style/idempotent-consumer.html.
// That one inserts it before it handles the message, as gormstore does; what is
// measured here is the order of many others: look, handle, note.
type Processed struct {
	MessageID   string `gorm:"primaryKey;type:varchar(200)"`
	ProcessedAt time.Time
}

// TableName implements gorm's Tabler.
func (Processed) TableName() string { return "hand_processed" }

// Consumer looks whether a message was processed, handles it, and then notes
// that it was.
type Consumer struct{ DB *gorm.DB }

// OpenConsumer makes the table. The pool may have that many connections. GORM
// does without a transaction around each single statement, which its page on
// performance (https://gorm.io/docs/performance.html) advises.
func OpenConsumer(ctx context.Context, dsn string, connections int) (*Consumer, error) {
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{Logger: logger.Discard, SkipDefaultTransaction: true})
	if err != nil {
		return nil, err
	}
	c := &Consumer{DB: db}
	pool, err := db.DB()
	if err == nil {
		pool.SetMaxOpenConns(connections)
		pool.SetMaxIdleConns(connections)
		err = db.WithContext(ctx).AutoMigrate(&Processed{})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the pool.
func (c *Consumer) Close() {
	if pool, err := c.DB.DB(); err == nil {
		_ = pool.Close()
	}
}

// Separately has each statement commit by itself. Of two at the same moment both
// may find nothing and run; a crash after run repeats it.
func (c *Consumer) Separately(ctx context.Context, id string, run func(db *gorm.DB) error) error {
	return checkThenAct(c.DB.WithContext(ctx), id, run)
}

// InTransaction has them commit together. Of two at the same moment both may
// find nothing and run; the primary key then fails one, whose message has to be
// delivered again.
func (c *Consumer) InTransaction(ctx context.Context, id string, run func(db *gorm.DB) error) error {
	return c.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return checkThenAct(tx, id, run) })
}

func checkThenAct(db *gorm.DB, id string, run func(db *gorm.DB) error) error {
	err := db.Take(&Processed{}, "message_id = ?", id).Error
	if err == nil {
		return nil
	}
	if !errors.Is(err, gorm.ErrRecordNotFound) {
		return err
	}
	if err := run(db); err != nil {
		return err
	}
	if err := db.Create(&Processed{MessageID: id, ProcessedAt: time.Now().UTC()}).Error; err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return nil
}
