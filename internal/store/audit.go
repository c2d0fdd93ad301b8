package store

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// No condition. The role is the one that the session has logged in as, whatever role it
// has taken since, and whoever says to act.
const (
	postgresAddAudit = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role)
VALUES ($1::text::uuid, $2, $3, $4, $5, $6::timestamptz, session_user)`

	sqliteAddAudit = `
INSERT INTO {audit} (id, actor, action, target, detail, occurred_at, database_role) VALUES (?1, ?2, ?3, ?4, ?5, ?6, '')`
)

func (p *postgres) AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error {
	return addAudit(ctx, tx, p, audit)
}

func (s *sqlite) AddAuditTx(ctx context.Context, tx *gorm.DB, audit models.Audit) error {
	return addAudit(ctx, tx, s, audit)
}

// auditing is what writing an audit row needs of a dialect.
type auditing interface {
	addAudit(ctx context.Context, pool gorm.ConnPool, audit models.Audit) error
}

func addAudit(ctx context.Context, tx *gorm.DB, dialect auditing, audit models.Audit) error {
	pool, err := joined(tx)
	if err == nil {
		err = dialect.addAudit(ctx, pool, audit)
	}
	return notAudited(err)
}

func notAudited(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotAudited, err)
}

func (p *postgres) addAudit(ctx context.Context, pool gorm.ConnPool, a models.Audit) error {
	_, err := Exec(ctx, pool, p.text(postgresAddAudit), a.ID, a.Actor, a.Action, a.Target, a.Detail, a.OccurredAt.UTC())
	return err
}

func (s *sqlite) addAudit(ctx context.Context, pool gorm.ConnPool, a models.Audit) error {
	_, err := Exec(ctx, pool, s.text(sqliteAddAudit), a.ID, a.Actor, a.Action, a.Target, a.Detail, SQLiteTime(a.OccurredAt))
	return err
}

// addAny adds the audit row of an action on behalf of an operator; nil is none.
func addAny(ctx context.Context, pool gorm.ConnPool, dialect auditing, audit *models.Audit) error {
	if audit == nil {
		return nil
	}
	return notAudited(dialect.addAudit(ctx, pool, *audit))
}
