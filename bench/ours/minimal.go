package ours

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store/base"
)

// What follows are plain loops for comparison, on this inbox's tables and indexes. They leave out
// workers, fences, retries, reports and whatever else an inbox adds. All but EndToEndMinimal commit
// their claims before anything runs.

// claimMinimal uses the due index of the statuses and the unique index on the messages' numbers.
const claimMinimal = `WITH due AS MATERIALIZED (
		SELECT ctid FROM inbox_handler_statuses
		WHERE handler_key = 'bench-handler-1' AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting
			AND COALESCE(next_attempt_at, created_at) <= now()
			AND CASE WHEN processing_started_at IS NULL THEN true ELSE false END
		ORDER BY COALESCE(next_attempt_at, created_at), id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED),
	claimed AS (
		UPDATE inbox_handler_statuses SET processing_started_at = now(), version = version + 1
		WHERE ctid = ANY (ARRAY (SELECT ctid FROM due)) RETURNING id, message_number)
	SELECT c.id, m.id, m.content FROM claimed c JOIN inbox_messages m ON m.number = c.message_number`

// completeMinimal uses the index on open statuses. For the sub-select, see completionsSQL of
// internal/store/postgres.
const completeMinimal = `UPDATE inbox_handler_statuses
	SET completed_at = now(), outcome = 'processed', processing_started_at = NULL, version = version + 1
	WHERE id = ANY ((SELECT $1::uuid[])::uuid[]) AND ` + base.OpenSQL

// message is one whose status is claimed.
type message struct {
	status  [16]byte
	id      string
	content []byte
}

// ProcessMinimal claims, runs and completes batches on that many connections, until nothing is pending.
// Each call has a goroutine of its own and a deadline; atOnce of them run at once on each connection.
func (ib *Inbox) ProcessMinimal(ctx context.Context, pool *pgxpool.Pool, batch, connections, atOnce int) error {
	g, ctx := errgroup.WithContext(ctx)
	for range connections {
		g.Go(func() error {
			for {
				claimed, err := claimBatch(ctx, pool, batch)
				if err != nil || len(claimed) == 0 {
					return err
				}
				if err := ib.callEach(ctx, claimed, atOnce); err != nil {
					return err
				}
				if err := completeBatch(ctx, pool, claimed); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func claimBatch(ctx context.Context, pool *pgxpool.Pool, batch int) ([]message, error) {
	rows, err := pool.Query(ctx, claimMinimal, batch)
	if err != nil {
		return nil, err
	}
	claimed := make([]message, 0, batch)
	for rows.Next() {
		var c message
		if err := rows.Scan(&c.status, &c.id, &c.content); err != nil {
			return nil, err
		}
		claimed = append(claimed, c)
	}
	return claimed, rows.Err()
}

// callEach counts a call for each message, in goroutines of their own.
func (ib *Inbox) callEach(ctx context.Context, claimed []message, atOnce int) error {
	var calls errgroup.Group
	calls.SetLimit(atOnce)
	for _, m := range claimed {
		calls.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("%s: panic: %v", m.id, v)
				}
			}()
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			ib.Handled.Add(1)
			return ctx.Err()
		})
	}
	return calls.Wait()
}

func completeBatch(ctx context.Context, pool *pgxpool.Pool, done []message) error {
	tag, err := pool.Exec(ctx, completeMinimal, statusesOf(done))
	if err != nil {
		return err
	}
	return allCompleted(int(tag.RowsAffected()), done)
}

func statusesOf(messages []message) [][16]byte {
	ids := make([][16]byte, len(messages))
	for i, m := range messages {
		ids[i] = m.status
	}
	return ids
}

func allCompleted(n int, of []message) error {
	if n != len(of) {
		return fmt.Errorf("%d of %d completed", n, len(of))
	}
	return nil
}

// GroupsMinimal claims batches on one connection of the pool and divides them into groups, each of
// together messages. As many groups run at once as connections says. run runs the messages of a group
// in one transaction, and calls complete at its end.
func (ib *Inbox) GroupsMinimal(ctx context.Context, pool *pgxpool.Pool, batch, together, connections int,
	run func(ctx context.Context, ids []string, complete func(context.Context, gorm.ConnPool) error) error,
) error {
	g, ctx := errgroup.WithContext(ctx)
	groups := make(chan []message, batch/together)
	g.Go(func() error {
		defer close(groups)
		for {
			claimed, err := claimBatch(ctx, pool, batch)
			if err != nil || len(claimed) == 0 {
				return err
			}
			for group := range slices.Chunk(claimed, together) {
				select {
				case groups <- group:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	})
	for range connections {
		g.Go(func() error {
			for group := range groups {
				ids := make([]string, len(group))
				for i, m := range group {
					ids[i] = m.id
				}
				err := run(ctx, ids, func(ctx context.Context, tx gorm.ConnPool) error {
					result, err := tx.ExecContext(ctx, completeMinimal, statusesOf(group))
					if err != nil {
						return err
					}
					n, err := result.RowsAffected()
					return errors.Join(err, allCompleted(int(n), group))
				})
				if err != nil {
					return err
				}
				ib.Handled.Add(int64(len(group)))
			}
			return nil
		})
	}
	return g.Wait()
}

// EndToEndMinimal stores batches on that many connections and runs each message. One more connection
// completes the batches, two in a statement if the second is there. Nothing is claimed: another process
// would run the messages, too.
func (l *Loads) EndToEndMinimal(
	ctx context.Context, ib *Inbox, pool *pgxpool.Pool, batch, connections, atOnce int,
) error {
	done := make(chan []message, len(l.messages)/batch+1)
	completing, ctx := errgroup.WithContext(ctx)
	completing.Go(func() error {
		for finished := range done {
			select {
			case more := <-done:
				finished = append(finished, more...)
			default:
			}
			if err := completeBatch(ctx, pool, finished); err != nil {
				return err
			}
		}
		return nil
	})
	completing.Go(func() error {
		defer close(done)
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(connections)
		for from := 0; from < len(l.messages); from += batch {
			to := min(from+batch, len(l.messages))
			g.Go(func() error {
				if err := l.insert(ctx, pool, from, to); err != nil {
					return err
				}
				stored := make([]message, 0, to-from)
				for i := from; i < to; i++ {
					stored = append(stored, message{status: l.statuses[i][0].([16]byte), id: l.messages[i][0].(string)})
				}
				if err := ib.callEach(ctx, stored, atOnce); err != nil {
					return err
				}
				done <- stored
				return nil
			})
		}
		return g.Wait()
	})
	return completing.Wait()
}
