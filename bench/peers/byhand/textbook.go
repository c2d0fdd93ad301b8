package byhand

import (
	"context"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Textbook is the inbox of the textbooks. It claims a batch, runs its handlers one after the other
// or atOnce concurrently, and saves each status separately. It returns when nothing is pending.
func (ib *Inbox) Textbook(ctx context.Context, batch, atOnce int, run func(id string, content []byte) error) error {
	for {
		claimed, err := ib.claim(ctx, batch)
		if err != nil || len(claimed) == 0 {
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for i := range claimed {
			g.Go(func() error {
				s := &claimed[i]
				if err := run(s.MessageID, s.Message.Content); err != nil {
					return err
				}
				now := time.Now().UTC()
				s.CompletedAt, s.ProcessingStartedAt = &now, nil
				return ib.DB.WithContext(ctx).Omit(clause.Associations).Save(s).Error
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
}

func (ib *Inbox) claim(ctx context.Context, batch int) (claimed []Status, err error) {
	err = ib.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := tx.Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate, Options: clause.LockingOptionsSkipLocked}).
			Preload("Message").Where("completed_at IS NULL AND NOT is_poisoned AND processing_started_at IS NULL").Order("id").Limit(batch).Find(&claimed).Error
		if err != nil || len(claimed) == 0 {
			return err
		}
		ids := make([]uuid.UUID, len(claimed))
		for i, s := range claimed {
			ids[i] = s.ID
		}
		return tx.Model(&Status{}).Where("id IN ?", ids).Update("processing_started_at", time.Now().UTC()).Error
	})
	return claimed, err
}

// TransactionEach runs several goroutines. Each takes one message at a time and runs its handler in
// the transaction that completes it. It returns when nothing is pending.
func (ib *Inbox) TransactionEach(
	ctx context.Context, goroutines int, run func(tx *gorm.DB, id string, content []byte) error,
) error {
	g, ctx := errgroup.WithContext(ctx)
	for range goroutines {
		g.Go(func() error {
			for {
				var found []Status
				err := ib.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
					err := tx.Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate,
						Options: clause.LockingOptionsSkipLocked}).
						Preload("Message").Where("completed_at IS NULL AND NOT is_poisoned").Order("id").Limit(1).Find(&found).Error
					if err != nil || len(found) == 0 {
						return err
					}
					if err := run(tx, found[0].MessageID, found[0].Message.Content); err != nil {
						return err
					}
					return tx.Model(&Status{}).Where("id = ?", found[0].ID).Update("completed_at", time.Now().UTC()).Error
				})
				if err != nil || len(found) == 0 {
					return err
				}
			}
		})
	}
	return g.Wait()
}
