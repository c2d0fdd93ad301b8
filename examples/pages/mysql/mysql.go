// Package mysql is the code of docs/mysql.md.
package mysql

import (
	"context"
	"errors"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

//page:begin open

// openMySQL opens a pool, also of MariaDB. address is host:port.
func openMySQL(user, password, address, database string) (*gorm.DB, error) {
	db, err := gorm.Open(mysql.Open(user + ":" + password + "@tcp(" + address + ")/" + database +
		"?parseTime=true&loc=UTC&interpolateParams=true&tls=true"))
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(20)
	pool.SetMaxIdleConns(20)
	pool.SetConnMaxLifetime(5 * time.Minute) // below wait_timeout and the idle timeout of a proxy
	return db, nil
}

//page:end

// OrderPlaced is a payload.
type OrderPlaced struct{ OrderID string }

//page:begin old

// oldMessage is a row of the table by hand.
type oldMessage struct {
	ID          int64
	MessageID   string
	Type        string
	Body        []byte
	ProcessedAt *time.Time
}

func (oldMessage) TableName() string { return "old_inbox" }

// acceptOpen accepts what the old program has not processed. It can run again: what is stored already is a duplicate.
func acceptOpen(ctx context.Context, db *gorm.DB, ib *inbox.Inbox) error {
	var rows []oldMessage
	return db.WithContext(ctx).Where("processed_at IS NULL").FindInBatches(&rows, 500, func(*gorm.DB, int) error {
		messages := make([]handler.RawMessage, len(rows))
		for i, row := range rows {
			messages[i] = handler.RawMessage{Channel: "orders.events", ID: row.MessageID, Type: row.Type, Source: "/shop",
				ContentType: "application/json", Content: row.Body}
		}
		results, err := ib.Accept(ctx, messages...)
		if err != nil {
			return err
		}
		for _, result := range results {
			err = errors.Join(err, result.Err)
		}
		return err
	}).Error
}

type txHandler = func(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error

// unlessDone skips what the old program has processed.
func unlessDone(next txHandler) txHandler {
	return func(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
		var done int64
		err := tx.Model(&oldMessage{}).Where("message_id = ? AND processed_at IS NOT NULL", m.ID).Count(&done).Error
		if err != nil || done > 0 {
			return err
		}
		return next(ctx, tx, m)
	}
}

//page:end
