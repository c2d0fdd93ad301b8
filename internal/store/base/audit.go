package base

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// auditing is what writing an audit row needs from a dialect.
type auditing interface {
	AddAudit(ctx context.Context, pool gorm.ConnPool, audit models.Audit) error
}

// AddAudit implements Store.AddAuditTx.
func AddAudit(ctx context.Context, tx *gorm.DB, dialect auditing, audit models.Audit) error {
	pool, err := Joined(tx)
	if err == nil {
		err = dialect.AddAudit(ctx, pool, audit)
	}
	return notAudited(err)
}

func notAudited(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", store.ErrNotAudited, err)
}

// addAny adds the audit row of an operator's action, if there is one.
func addAny(ctx context.Context, pool gorm.ConnPool, dialect auditing, audit *models.Audit) error {
	if audit == nil {
		return nil
	}
	return notAudited(dialect.AddAudit(ctx, pool, *audit))
}
