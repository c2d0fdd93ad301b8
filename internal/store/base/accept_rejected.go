package base

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// errConflict rolls back an accept that is all or nothing.
var errConflict = errors.New("a message ID is known with another type, source or content")

// RejectedRows holds the statements on one rejected message by its ID.
type RejectedRows struct{ Load, Remove, Reason string }

func (c Common) LoadRejected(ctx context.Context, id string) (models.RejectedMessage, error) {
	return c.loadRejected(ctx, c.Pool(ctx), id)
}

func (c Common) loadRejected(ctx context.Context, pool gorm.ConnPool, id string) (models.RejectedMessage, error) {
	found, err := store.Query(ctx, pool, c.Text(c.sql.Rejected.Load), ScanRejected, id)
	if err == nil && len(found) == 0 {
		err = store.ErrRejectedGone
	}
	if err != nil {
		return models.RejectedMessage{}, Doing("load rejected message", err)
	}
	return found[0], nil
}

// ScanRejected scans a rejected message.
func ScanRejected(rows *sql.Rows, m *models.RejectedMessage) error {
	var whole store.UnpublishedRejected
	err := scanUnpublishedRejected(rows, &whole)
	*m = whole.RejectedMessage
	return err
}

// AcceptRejected deletes the row last, so that all accepts lock messages before rejected rows. Of two calls at once:
//
// 1. Both insert the messages, and the second one waits for the first.
// 2. The first deletes the row and commits.
// 3. The second finds the messages known and the row gone, and is rolled back.
func (c Common) AcceptRejected(ctx context.Context, id string, batch store.AcceptBatch) ([]store.Accepted, error) {
	last := func(pool gorm.ConnPool, results []store.Accepted) error {
		if slices.ContainsFunc(results, func(r store.Accepted) bool { return r.Conflict }) {
			return errConflict
		}
		deleted, err := store.Exec(ctx, pool, c.Text(c.sql.Rejected.Remove), id)
		if err == nil && deleted == 0 {
			err = store.ErrRejectedGone
		}
		if err == nil {
			err = c.addAny(ctx, pool, batch.Audit)
		}
		return err
	}
	return AcceptRetrying(ctx, c.dialect.Transaction, c.dialect, batch, last)
}

func (c Common) SetRejectedReason(ctx context.Context, id, reason string, audit *models.Audit) error {
	err := c.dialect.Transaction(ctx, func(pool gorm.ConnPool) error {
		kept, err := store.Exec(ctx, pool, c.Text(c.sql.Rejected.Reason), id, store.SanitizeError(reason))
		if err == nil && kept == 0 && audit != nil {
			// An audit row would record something that was not done if the row is gone. MySQL does not count a row that
			// has had this reason before.
			_, err = c.loadRejected(ctx, pool, id)
		}
		if err == nil {
			err = c.addAny(ctx, pool, audit)
		}
		return err
	})
	return Doing("set the reason of a rejected message", err)
}

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
