package operators

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// listAudit uses the audit's primary key: the IDs ascend with time, package ops makes them so.
const listAudit = `
WITH looked AS (
	SELECT id, actor, action, target, occurred_at, database_role FROM {audit} WHERE id < $1 AND id >= $9 ORDER BY id DESC LIMIT $2
)
SELECT false AS closes, 0 AS n, f.*, row_number() OVER (ORDER BY id DESC) AS place
FROM (
	SELECT * FROM looked WHERE ($4 = '' OR actor = $4) AND ($5 = '' OR action = $5) AND ($6 = '' OR {index of}target, $6) > 0)
		AND occurred_at >= $7 AND occurred_at < $8
	ORDER BY id DESC LIMIT $3
) f
UNION ALL
SELECT true, (SELECT count(*) FROM looked), l.*, 0 FROM (SELECT * FROM looked ORDER BY id LIMIT 1) l
ORDER BY place`

func (q Queries) ScanAudit(ctx context.Context, pool gorm.ConnPool, scan store.AuditScan) ([]store.AuditHit, error) {
	return query(ctx, q, pool, listAudit, func(rows *sql.Rows, h *store.AuditHit) error {
		var occurred store.Stamp
		var place int64
		err := rows.Scan(&h.Closes, &h.Looked, &h.ID, &h.Actor, &h.Action, &h.Target, &occurred, &h.DatabaseRole, &place)
		h.OccurredAt = occurred.Time
		return err
	}, scan.BeforeID, scan.Depth, scan.Limit, scan.Actor, scan.Action, scan.Target, q.form.Time(scan.From),
		q.form.Time(scan.To), scan.FromID)
}

// auditDetails uses the audit's primary key.
const auditDetails = `SELECT id, detail FROM {audit} WHERE id {= any ID} LIMIT $2`

func (q Queries) AuditDetails(ctx context.Context, pool gorm.ConnPool, ids []string) (map[string]string, error) {
	rows, err := query(ctx, q, pool, auditDetails, func(rows *sql.Rows, a *models.Audit) error {
		return rows.Scan(&a.ID, &a.Detail)
	}, base.JSONList(ids), len(ids))
	details := make(map[string]string, len(rows))
	for _, row := range rows {
		details[row.ID] = row.Detail
	}
	return details, err
}
