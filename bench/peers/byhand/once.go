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

// Processed is the marker that articles on idempotent consumers use, such as
// https://microservices.io/patterns/communication-style/idempotent-consumer.html. That article
// inserts it before it handles the message, as gormstore does. The order measured here is that of
// many others: check, handle, mark.
type Processed struct {
	MessageID   string `gorm:"primaryKey;type:varchar(200)"`
	ProcessedAt time.Time
}

// TableName implements gorm's Tabler.
func (Processed) TableName() string { return "hand_processed" }

// Consumer checks whether a message was processed, handles it, and then marks it.
type Consumer struct{ DB *gorm.DB }

// OpenConsumer creates the table. The pool may have that many connections. GORM does not wrap
// single statements in transactions, as its page on performance advises
// (https://gorm.io/docs/performance.html).
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

// Separately commits each statement by itself. Two concurrent deliveries may both find no marker
// and run. A crash after run repeats it.
func (c *Consumer) Separately(ctx context.Context, id string, run func(db *gorm.DB) error) error {
	return checkThenAct(c.DB.WithContext(ctx), id, run)
}

// InTransaction commits all statements together. Two concurrent deliveries may both find no marker
// and run. The primary key then fails one, whose message has to be delivered again.
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
