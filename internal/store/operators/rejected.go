package operators

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

const (
	ofRejected = `
WITH looked AS (
	SELECT id, channel, topic, "partition", record_offset, record_timestamp, reason, rejected_at, {rejected as stored} AS at,
		COALESCE(length("key"), 0) + COALESCE(length("value"), 0) AS size
	FROM {rejected} WHERE `

	matchRejected = `($6 = '' OR channel = $6) AND ($7 = '' OR topic = $7) AND ($10 < 0 OR "partition" = $10)
		AND ($9 = '' OR {index of}lower(reason{bytewise}), $9) > 0)`
)

// listRejected uses rejected_messages_rejected_at, the latest first.
const listRejected = ofRejected + `(rejected_at, id) < ($1, $2) AND rejected_at >= $3 ORDER BY rejected_at DESC, id DESC LIMIT $4
)
SELECT false AS closes, 0 AS n, f.*, row_number() OVER (ORDER BY rejected_at DESC, id DESC) AS place
FROM (
	SELECT * FROM looked WHERE ` + matchRejected + ` AND rejected_at < $8 ORDER BY rejected_at DESC, id DESC LIMIT $5
) f
UNION ALL
SELECT true, (SELECT count(*) FROM looked), l.*, 0 FROM (SELECT * FROM looked ORDER BY rejected_at, id LIMIT 1) l
ORDER BY place`

// listEarliestRejected uses rejected_messages_rejected_at, the earliest first.
const listEarliestRejected = ofRejected + `(rejected_at, id) > ($1, $2) AND rejected_at < $8 ORDER BY rejected_at, id LIMIT $4
)
SELECT false AS closes, 0 AS n, f.*, row_number() OVER (ORDER BY rejected_at, id) AS place
FROM (
	SELECT * FROM looked WHERE ` + matchRejected + ` AND rejected_at >= $3 ORDER BY rejected_at, id LIMIT $5
) f
UNION ALL
SELECT true, (SELECT count(*) FROM looked), l.*, 0 FROM (SELECT * FROM looked ORDER BY rejected_at DESC, id DESC LIMIT 1) l
ORDER BY place`

func (q Queries) ScanRejected(ctx context.Context, pool gorm.ConnPool, scan store.RejectedScan) (
	[]store.RejectedHit, error,
) {
	at, err := q.listTime(scan.After.At)
	if err != nil {
		return nil, err
	}
	statement := listRejected
	if scan.Earliest {
		statement = listEarliestRejected
	}
	return query(ctx, q, pool, statement, func(rows *sql.Rows, h *store.RejectedHit) error {
		var timestamp, rejected store.Stamp
		var at listed
		var place int64
		err := rows.Scan(&h.Closes, &h.Looked, &h.ID, &h.Channel, &h.Topic, &h.Partition, &h.Offset, &timestamp, &h.Reason,
			&rejected, &at, &h.Size, &place)
		h.Timestamp, h.RejectedAt, h.At = timestamp.Time, rejected.Time, string(at)
		return err
	}, at, scan.After.ID, q.form.Time(scan.From), scan.Depth, scan.Limit, scan.Channel, scan.Topic,
		q.form.Time(scan.To), scan.Reason, scan.Partition)
}

// oneRejected uses the primary key.
const oneRejected = `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, "key" IS NOT NULL, "key", "value" IS NOT NULL, "value", headers, reason, rejected_at
FROM {rejected} WHERE id = $1`

func (q Queries) RejectedRecord(ctx context.Context, pool gorm.ConnPool, id string) (*models.RejectedMessage, error) {
	return one(ctx, q, pool, oneRejected, base.ScanRejected, id)
}

// previewRejected uses the primary key.
const previewRejected = `
SELECT id, channel, topic, "partition", record_offset, record_timestamp, reason, rejected_at,
	"value" IS NULL, length("value"), CASE WHEN length("value") <= $2 THEN "value" WHEN $3 > 0 THEN substr("value", 1, $3) END,
	"key" IS NULL, length("key"), CASE WHEN length("key") <= $4 THEN "key" WHEN $5 > 0 THEN substr("key", 1, $5) END,
	{octets}headers{/octets}, CASE WHEN {octets}headers{/octets} <= $6 THEN headers END
FROM {rejected} WHERE id = $1`

func (q Queries) PreviewRejected(ctx context.Context, pool gorm.ConnPool, id string, cuts store.PreviewCuts) (
	*store.RejectedPreview, error,
) {
	return one(ctx, q, pool, previewRejected, func(rows *sql.Rows, r *store.RejectedPreview) error {
		var timestamp, rejected store.Stamp
		var headers sql.NullString
		var payloadSize, keySize, headersSize sql.NullInt64
		err := rows.Scan(&r.ID, &r.Channel, &r.Topic, &r.Partition, &r.Offset, &timestamp, &r.Reason, &rejected,
			&r.Payload.IsNull, &payloadSize, &r.Payload.Bytes, &r.RecordKey.IsNull, &keySize, &r.RecordKey.Bytes, &headersSize,
			&headers)
		r.Timestamp, r.RejectedAt, r.Payload.Size, r.RecordKey.Size = timestamp.Time, rejected.Time, payloadSize.Int64,
			keySize.Int64
		r.Headers, r.HeadersSize, r.HeadersCut = headers.String, headersSize.Int64, !headers.Valid
		return err
	}, append([]any{id}, cutArguments(cuts)...)...)
}

// deleteRejected uses the primary key.
const deleteRejected = `DELETE FROM {rejected} WHERE id = $1 RETURNING channel, topic, "partition", record_offset`

func (q Queries) DropRejected(ctx context.Context, pool gorm.ConnPool, id string) (*models.RejectedMessage, error) {
	return one(ctx, q, pool, deleteRejected, func(rows *sql.Rows, r *models.RejectedMessage) error {
		return rows.Scan(&r.Channel, &r.Topic, &r.Partition, &r.Offset)
	}, id)
}

const (
	// requestReAccept uses the primary key, and so does takeReAccept, or rejected_messages_requested.
	requestReAccept = `UPDATE {rejected} SET requested_by = $2, requested_at = $3 WHERE id = $1`
	takeReAccept    = `UPDATE {rejected} SET requested_by = NULL, requested_at = NULL WHERE id = $1 AND requested_at = $2`

	// hasRejected uses the primary key.
	hasRejected = `SELECT CAST(id AS text) FROM {rejected} WHERE id = $1`

	// requestedReAccepts uses rejected_messages_requested.
	requestedReAccepts = `
SELECT CAST(id AS text), channel, requested_by, requested_at FROM {rejected}
WHERE requested_at IS NOT NULL AND (requested_at, id) > ($1, $2) ORDER BY requested_at, id LIMIT $3`
)

func (q Queries) RequestReAccept(ctx context.Context, pool gorm.ConnPool, id, actor string, now time.Time) (
	bool, error,
) {
	changed, err := q.exec(ctx, pool, requestReAccept, id, actor, q.form.Time(now))
	if err != nil || changed > 0 {
		return err == nil, err
	}
	found, err := query(ctx, q, pool, hasRejected, store.Value[string], id) // MySQL counts no row that stays the same
	return len(found) > 0, err
}

func (q Queries) TakeReAccept(ctx context.Context, pool gorm.ConnPool, id string, requestedAt time.Time) (bool, error) {
	changed, err := q.exec(ctx, pool, takeReAccept, id, q.form.Time(requestedAt))
	return changed > 0, err
}

func (q Queries) RequestedReAccepts(ctx context.Context, pool gorm.ConnPool, after time.Time, id string, limit int) (
	[]store.ReAcceptRequest, error,
) {
	return query(ctx, q, pool, requestedReAccepts, func(rows *sql.Rows, r *store.ReAcceptRequest) error {
		var at store.Stamp
		err := rows.Scan(&r.ID, &r.Channel, &r.Actor, &at)
		r.RequestedAt = at.Time
		return err
	}, q.form.Time(after), id, limit)
}

// walkGaps uses the gaps' primary key: the IDs ascend with time.
const walkGaps = `
SELECT id, channel, topic, "partition", from_offset, to_offset, reason, found_at FROM {gaps} WHERE id < $1 ORDER BY id DESC LIMIT $2`

func (q Queries) GapsBefore(ctx context.Context, pool gorm.ConnPool, id string, limit int) ([]models.Gap, error) {
	return query(ctx, q, pool, walkGaps, func(rows *sql.Rows, g *models.Gap) error {
		var found store.Stamp
		err := rows.Scan(&g.ID, &g.Channel, &g.Topic, &g.Partition, &g.FromOffset, &g.ToOffset, &g.Reason, &found)
		g.FoundAt = found.Time
		return err
	}, id, limit)
}
