package byhand

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// lockPending uses the index hand_statuses_pending for the scan and the messages' primary key for
// the join.
const lockPending = `SELECT s.id, m.id, m.content FROM hand_statuses s JOIN hand_messages m ON m.id = s.message_id
	WHERE s.completed_at IS NULL AND NOT s.is_poisoned ORDER BY s.id LIMIT $1 FOR UPDATE OF s SKIP LOCKED`

// SkipLocked is the queue that articles build on SKIP LOCKED. It locks a batch, runs the handlers,
// marks all rows and commits, all in one open transaction. A crash repeats the batch, and while
// handlers run, vacuum cannot remove newer dead rows. It returns when nothing is pending.
func (ib *Inbox) SkipLocked(ctx context.Context, workers, batch int, run func(id string, content []byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for {
				n, err := ib.skipLockedBatch(ctx, batch, run)
				if err != nil || n == 0 {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func (ib *Inbox) skipLockedBatch(
	ctx context.Context, batch int, run func(id string, content []byte) error,
) (n int, err error) {
	err = pgx.BeginFunc(ctx, ib.Pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockPending, batch)
		if err != nil {
			return err
		}
		var done [][16]byte
		var status uuid.UUID
		var id string
		var content []byte
		_, err = pgx.ForEachRow(rows, []any{&status, &id, &content}, func() error {
			done = append(done, status)
			return run(id, content)
		})
		if err != nil || len(done) == 0 {
			return err
		}
		n = len(done)
		_, err = tx.Exec(ctx, `UPDATE hand_statuses SET completed_at = now() WHERE id = ANY($1)`, done)
		return err
	})
	return n, err
}
