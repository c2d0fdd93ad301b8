package postgres

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// addAuditSQL inserts unconditionally. The stored role is the one that the session has logged in as. Neither a role
// that it has taken since nor the actor changes that.
const addAuditSQL = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role)
VALUES ($1::text::uuid, $2, $3, $4, $5, $6::timestamptz, session_user)`

func (p *Store) AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error {
	return base.AddAudit(ctx, tx, p, audit)
}

func (p *Store) AddAudit(ctx context.Context, pool gorm.ConnPool, a models.Audit) error {
	_, err := store.Exec(ctx, pool, p.Text(addAuditSQL), a.ID, a.Actor, a.Action, a.Target, a.Detail, a.OccurredAt.UTC())
	return err
}
