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

// requestColumns are without long arguments: a replay's may be a whole payload, and requests are polled.
const requestColumns = `CAST(id AS text), kind, target, CASE WHEN {octets}argument{/octets} <= 4000 THEN argument ELSE '' END, actor, requested_at, taken_by, taken_at, ended_at, result, problem`

// These use the primary key, but for openRequests and deleteRequests, which use requests_requested_at. An argument is
// of no use once its request has ended, and may have a payload, so it does not outlive that.
const (
	addRequest = `
INSERT INTO {worker requests} (id, kind, target, argument, actor, requested_at, taken_by, result, problem)
VALUES ($1{as ID}, $2, $3, $4, $5, $6, '', '', '')`

	openRequests = `
SELECT ` + requestColumns + ` FROM {worker requests}
WHERE (requested_at, id) > ($1, $2) AND kind {= any text} AND taken_at IS NULL ORDER BY requested_at, id LIMIT $4`

	takeRequest = `
UPDATE {worker requests} SET taken_by = $2, taken_at = $3 WHERE id = $1{as ID} AND taken_at IS NULL AND requested_at > $4`

	requestArgument = `SELECT argument FROM {worker requests} WHERE id = $1{as ID}`

	endRequest = `
UPDATE {worker requests} SET result = $2, problem = $3, ended_at = $4, argument = '' WHERE id = $1{as ID} AND ended_at IS NULL`

	loadRequest = `SELECT ` + requestColumns + ` FROM {worker requests} WHERE id = $1{as ID}`

	deleteRequests = `
DELETE FROM {worker requests} WHERE id IN (
	SELECT id FROM {worker requests} WHERE requested_at < $1 ORDER BY requested_at, id LIMIT $2
)`
)

func (q Queries) AddRequest(ctx context.Context, pool gorm.ConnPool, r models.Request) error {
	_, err := q.exec(ctx, pool, addRequest, r.ID, r.Kind, r.Target, r.Argument, r.Actor, q.form.Time(r.RequestedAt))
	return err
}

func (q Queries) OpenRequests(ctx context.Context, pool gorm.ConnPool, kinds []string, after time.Time, id string,
	limit int) ([]models.Request, error) {
	return query(ctx, q, pool, openRequests, scanRequest, q.form.Time(after), id, base.JSONList(kinds), limit)
}

func (q Queries) TakeRequest(ctx context.Context, pool gorm.ConnPool, id, takenBy string, since, now time.Time) (
	bool, error,
) {
	changed, err := q.exec(ctx, pool, takeRequest, id, takenBy, q.form.Time(now), q.form.Time(since))
	return changed > 0, err
}

func (q Queries) RequestArgument(ctx context.Context, pool gorm.ConnPool, id string) (string, error) {
	scan := func(rows *sql.Rows, text *string) error { return rows.Scan(text) }
	text, err := one(ctx, q, pool, requestArgument, scan, id)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

func (q Queries) EndRequest(ctx context.Context, pool gorm.ConnPool, id, result, problem string, now time.Time) error {
	_, err := q.exec(ctx, pool, endRequest, id, result, problem, q.form.Time(now))
	return err
}

func (q Queries) LoadRequest(ctx context.Context, pool gorm.ConnPool, id string) (*models.Request, error) {
	return one(ctx, q, pool, loadRequest, scanRequest, id)
}

func (q Queries) DeleteRequests(ctx context.Context, before time.Time, limit int) (int64, error) {
	return q.exec(ctx, q.db.Pool(ctx), deleteRequests, q.form.Time(before), limit)
}

func scanRequest(rows *sql.Rows, r *models.Request) error {
	var requested, taken, ended store.Stamp
	err := rows.Scan(&r.ID, &r.Kind, &r.Target, &r.Argument, &r.Actor, &requested, &r.TakenBy, &taken, &ended, &r.Result,
		&r.Problem)
	r.RequestedAt, r.TakenAt, r.EndedAt = requested.Time, taken.Pointer(), ended.Pointer()
	return err
}
