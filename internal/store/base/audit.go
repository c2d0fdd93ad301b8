package base

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

func (c Common) AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error {
	pool, err := Joined(tx)
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrNotAudited, err)
	}
	return c.addAny(ctx, pool, &audit)
}

// addAny adds the audit row of an operator's action, if there is one.
func (c Common) addAny(ctx context.Context, pool gorm.ConnPool, a *models.Audit) error {
	if a == nil {
		return nil
	}
	_, err := store.Exec(ctx, pool, c.Text(c.sql.AddAudit), a.ID, a.Actor, a.Action, a.Target, a.Detail,
		c.form.Time(a.OccurredAt))
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrNotAudited, err)
	}
	return nil
}
