package byhand

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/bench/trial"
)

// AcceptOneByOne stores each message with its statuses in a transaction of its own, from several
// goroutines. A duplicate would show as an error of its transaction.
func (ib *Inbox) AcceptOneByOne(ctx context.Context, messages []Message, statuses []Status, goroutines int) error {
	handlers := len(statuses) / len(messages)
	return trial.InBatches(ctx, len(messages), 1, goroutines, func(ctx context.Context, i, _ int) error {
		return ib.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(&messages[i]).Error; err != nil {
				return err
			}
			return tx.Create(statuses[i*handlers : (i+1)*handlers]).Error
		})
	})
}

// AcceptInBatches stores messages and statuses with CreateInBatches. A single duplicate would fail
// its whole batch.
func (ib *Inbox) AcceptInBatches(
	ctx context.Context, messages []Message, statuses []Status, batch, goroutines int,
) error {
	handlers := len(statuses) / len(messages)
	return trial.InBatches(ctx, len(messages), batch, goroutines, func(ctx context.Context, from, to int) error {
		return ib.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.CreateInBatches(messages[from:to], batch).Error; err != nil {
				return err
			}
			return tx.CreateInBatches(statuses[from*handlers:to*handlers], batch).Error
		})
	})
}
