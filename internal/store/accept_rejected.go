package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// errConflict rolls back an accept that is all or nothing.
var errConflict = errors.New("a message ID is known with another type, source or content")

// rejectedRows are the statements on one rejected message by its ID.
type rejectedRows struct{ load, remove, reason string }

// loadRejected tells an empty key or value from none by columns of their own:
// what a driver makes of an empty blob is its own affair.
func loadRejected(ctx context.Context, d database, rows rejectedRows, id string) (models.RejectedMessage, error) {
	found, err := Query(ctx, d.pool(ctx), d.text(rows.load), scanRejected, id)
	if err == nil && len(found) == 0 {
		err = ErrRejectedGone
	}
	if err != nil {
		return models.RejectedMessage{}, doing("load rejected message", err)
	}
	return found[0], nil
}

func scanRejected(rows *sql.Rows, m *models.RejectedMessage) error {
	var timestamp, rejectedAt anyTime
	var hasKey, hasValue bool
	err := rows.Scan(&m.ID, &m.Channel, &m.Topic, &m.Partition, &m.Offset, &timestamp, &hasKey, &m.Key, &hasValue, &m.Value,
		&m.Headers, &m.Reason, &rejectedAt)
	m.Timestamp, m.RejectedAt = timestamp.Time, rejectedAt.Time
	if hasKey {
		m.Key = filled(m.Key)
	}
	if hasValue {
		m.Value = filled(m.Value)
	}
	return err
}

// acceptRejected deletes the row last, so that everybody locks messages before
// rejected rows. Two calls at once: the second waits for the first's messages,
// finds them known and then the row gone, and is rolled back.
func acceptRejected(ctx context.Context, d database, in transacting, dialect interface {
	accepting
	auditing
}, rows rejectedRows, id string, batch AcceptBatch) ([]Accepted, error) {
	return acceptRetrying(ctx, in, dialect, batch, func(pool gorm.ConnPool, results []Accepted) error {
		if slices.ContainsFunc(results, func(r Accepted) bool { return r.Conflict }) {
			return errConflict
		}
		deleted, err := Exec(ctx, pool, d.text(rows.remove), id)
		if err == nil && deleted == 0 {
			err = ErrRejectedGone
		}
		if err == nil {
			err = addAny(ctx, pool, dialect, batch.Audit)
		}
		return err
	})
}

func setRejectedReason(ctx context.Context, d database, in transacting, dialect auditing, rows rejectedRows, id, reason string, audit *models.Audit) error {
	return doing("set the reason of a rejected message", in(ctx, func(pool gorm.ConnPool) error {
		kept, err := Exec(ctx, pool, d.text(rows.reason), id, SanitizeError(reason))
		if err == nil && kept == 0 && audit != nil {
			err = ErrRejectedGone // an audit row would tell of what was not done
		}
		if err == nil {
			err = addAny(ctx, pool, dialect, audit)
		}
		return err
	}))
}
