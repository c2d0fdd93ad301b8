// Package retention is the code of docs/retention.md.
package retention

import (
	"context"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

// OrderPlaced is a payload.
type OrderPlaced struct{ OrderID string }

type handle = func(ctx context.Context, m handler.Message[OrderPlaced]) error

// options keep what is finished for 30 days, and one handler's share longer.
func options(fulfilOrder, reportTax handle, archive *gorm.DB) []inbox.Option {
	return []inbox.Option{
		//page:begin options
		inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = 30 * 24 * time.Hour
			o.Archive = intoTables(archive)
		}),
		inbox.Channel("orders.events", inbox.On("order.placed",
			inbox.Func("fulfil-order", fulfilOrder),
			inbox.Func("report-tax", reportTax, handler.Retention(400*24*time.Hour)),
		)),
		//page:end
	}
}

// ArchivedMessage and ArchivedStatus are the application's own tables, in
// whichever database has room.
type ArchivedMessage struct {
	Number     int64 `gorm:"primaryKey;autoIncrement:false"` // an ID is unique within its channel only
	ID         string
	Namespace  string
	Type       string
	Content    []byte
	Properties string
	ReceivedAt time.Time
}

type ArchivedStatus struct {
	ID            string `gorm:"primaryKey"`
	MessageNumber int64  `gorm:"index"`
	HandlerKey    string
	Outcome       models.Outcome
	ErrorCount    int
	CompletedAt   *time.Time
}

func intoTables(archive *gorm.DB) func(ctx context.Context, messages []cleanup.Archived) error {
	return func(ctx context.Context, messages []cleanup.Archived) error {
		var rows []ArchivedMessage
		var statuses []ArchivedStatus
		for _, m := range messages {
			rows = append(rows, ArchivedMessage{int64(m.Message.Number), m.Message.ID, m.Message.Namespace,
				m.Message.Type, m.Message.Content, m.Message.SerializedProperties, m.Message.ReceivedAt})
			for _, s := range m.Statuses {
				statuses = append(statuses, ArchivedStatus{s.ID, s.MessageNumber, s.HandlerKey, s.Outcome, s.ErrorCount,
					s.CompletedAt})
			}
		}
		return archive.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			tx = tx.Clauses(clause.OnConflict{UpdateAll: true}) // the same rows may come again
			if err := tx.CreateInBatches(rows, 100).Error; err != nil || len(statuses) == 0 {
				return err
			}
			return tx.CreateInBatches(statuses, 100).Error
		})
	}
}

// nightly runs a cleanup when the application says so.
func nightly(ctx context.Context, ib *inbox.Inbox) (handler.Deleted, error) {
	deleted, err := ib.Cleanup(ctx)
	return deleted, err
}
