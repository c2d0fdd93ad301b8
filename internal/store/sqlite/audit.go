package sqlite

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// addAuditSQL inserts unconditionally.
const addAuditSQL = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role) VALUES (?1, ?2, ?3, ?4, ?5, ?6, '')`

func (s *Store) AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error {
	return base.AddAudit(ctx, tx, s, audit)
}

func (s *Store) AddAudit(ctx context.Context, pool gorm.ConnPool, a models.Audit) error {
	_, err := store.Exec(ctx, pool, s.Text(addAuditSQL), a.ID, a.Actor, a.Action, a.Target, a.Detail,
		store.SQLiteTime(a.OccurredAt))
	return err
}
