package postgres

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
	"github.com/gorm-inbox/inbox/models"
)

// readClaims runs a claim. Claims read more rows than anything else, and database/sql copies each of their columns
// twice and allocates for nearly every one. So pgx itself reads them if the connection is pgx's and nothing wraps it
// that should see the statement, such as tracing or GORM's prepared statements. The result is the same. A statement
// that has not reached the server is run again through database/sql.
func readClaims(
	ctx context.Context, pool gorm.ConnPool, most int, statement string, args ...any,
) (claims []store.Claim, err error) {
	err = store.RunAlone(ctx, pool, func(ctx context.Context, pool gorm.ConnPool) (err error) {
		if db, ok := pool.(*sql.DB); ok {
			claims, err = readNative(ctx, db, most, statement, args)
			if !errors.Is(err, pgxtx.ErrUnavailable) {
				return store.WithContextError(ctx, err)
			}
		}
		claims, err = store.Query(ctx, pool, statement, scanClaim, args...)
		return err
	})
	return claims, err
}

// fewClaims is how many claims are read before there is room for as many as were asked for.
const fewClaims = 64

func readNative(
	ctx context.Context, db *sql.DB, most int, statement string, args []any,
) (claims []store.Claim, err error) {
	var row claimRow
	targets := row.targets()
	err = pgxtx.Query(ctx, db, statement, args, func(rows pgx.Rows) error {
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		if len(claims) == fewClaims { // a claim that finds so many usually finds as many as it asks for
			claims = slices.Grow(claims, max(most-fewClaims, 0))
		}
		claims = append(claims, row.claim())
		return nil
	})
	return claims, err
}

// claimRow is the buffer for the rows of a claim, one after the other. Equal values of consecutive rows share one
// string.
type claimRow struct {
	id                                                                      pgtype.UUID
	messageID                                                               string
	handlerKey, transportName, messageType, source, contentType, properties repeated
	namespace                                                               repeated
	version                                                                 int64
	errorCount, abandonedCount, interruptedCount, requeuedCount             int
	messageBytes                                                            int
	createdAt, due, receivedAt                                              pgtype.Timestamptz
	laneHandler, laneKey                                                    pgtype.Int8
	number                                                                  int64
	content, orderingKey                                                    []byte
}

// targets returns the scan targets in the order of claimResultSQL.
func (r *claimRow) targets() []any {
	return []any{&r.id, &r.messageID, &r.handlerKey, &r.version, &r.errorCount, &r.abandonedCount, &r.interruptedCount,
		&r.requeuedCount, &r.messageBytes, &r.createdAt, &r.due, &r.laneHandler, &r.laneKey, &r.number, &r.namespace,
		&r.transportName, &r.messageType, &r.source, &r.content, &r.contentType, &r.properties, &r.orderingKey, &r.receivedAt}
}

func (r *claimRow) claim() store.Claim {
	c := store.Claim{
		Ref: store.Ref{
			StatusID: uuid.UUID(r.id.Bytes).String(), MessageNumber: r.number, MessageID: r.messageID,
			HandlerKey: r.handlerKey.text, Version: r.version,
			ErrorCount: r.errorCount, AbandonedCount: r.abandonedCount, InterruptedCount: r.interruptedCount,
			Lane: base.LaneColumns{Handler: sql.NullInt64(r.laneHandler), Key: sql.NullInt64(r.laneKey)}.Lane(),
		},
		RequeuedCount: r.requeuedCount, MessageBytes: r.messageBytes,
		CreatedAt: r.createdAt.Time.UTC(), Due: r.due.Time.UTC(),
	}
	if r.receivedAt.Valid { // else the message's row is gone
		c.Message = &models.Message{
			ID: r.messageID, Namespace: r.namespace.text, Number: models.MessageNumber(r.number),
			TransportName: r.transportName.text, Type: r.messageType.text, Source: r.source.text,
			Content: base.Filled(r.content), ContentType: r.contentType.text, SerializedProperties: r.properties.text,
			OrderingKey: r.orderingKey, ReceivedAt: r.receivedAt.Time.UTC(),
		}
	}
	return c
}

// repeated is a text column whose value usually equals the previous row's. NULL becomes empty.
type repeated struct{ text string }

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(value []byte) error {
	if string(value) != r.text {
		r.text = string(value)
	}
	return nil
}
