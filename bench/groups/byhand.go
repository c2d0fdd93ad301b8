package groups

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/bench/effects"
	"github.com/gorm-inbox/inbox/bench/peers/byhand"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/handlertx"
)

// acceptByHand stores messages with store, one of the two ways.
func acceptByHand(handlers, full, quick, connections int,
	store func(context.Context, *byhand.Inbox, []byhand.Message, []byhand.Status) error,
) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		ib, err := byhand.Open(ctx, env.DSN, connections)
		if err != nil {
			return nil, err
		}
		messages, statuses := byhand.Rows(n, handlers)
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return store(ctx, ib, messages, statuses) },
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n*handlers, 0) },
			Close: ib.Close,
		}, nil
	}
}

func gormOneByOne(ctx context.Context, ib *byhand.Inbox, messages []byhand.Message, statuses []byhand.Status) error {
	return ib.AcceptOneByOne(ctx, messages, statuses, 8)
}

func gormInBatches(ctx context.Context, ib *byhand.Inbox, messages []byhand.Message, statuses []byhand.Status) error {
	return ib.AcceptInBatches(ctx, messages, statuses, acceptBatch, acceptConnections)
}

// processByHand processes pending messages with process, which calls the given handler for each
// message.
func processByHand(
	full, quick int, process func(context.Context, *byhand.Inbox, func(id string, content []byte) error) error,
) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		ib, err := loadedByHand(ctx, env, n)
		if err != nil {
			return nil, err
		}
		var handled atomic.Int64
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return process(ctx, ib, func(string, []byte) error {
					handled.Add(1)
					return nil
				})
			},
			Check: func(ctx context.Context) error {
				if handled.Load() != int64(n) {
					return fmt.Errorf("%d handler calls, expected %d", handled.Load(), n)
				}
				return ib.CheckStored(ctx, n, n, n)
			},
			Close: ib.Close,
		}, nil
	}
}

func transactionalByHand(goroutines, full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		if err := effects.Create(ctx, env.DSN); err != nil {
			return nil, err
		}
		ib, err := loadedByHand(ctx, env, n)
		if err != nil {
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return ib.TransactionEach(ctx, goroutines, func(tx *gorm.DB, id string, _ []byte) error {
					return tx.Exec(effects.Insert, id).Error
				})
			},
			Check: func(ctx context.Context) error {
				if err := effects.Check(ctx, env.DSN, n); err != nil {
					return err
				}
				return ib.CheckStored(ctx, n, n, n)
			},
			Close: ib.Close,
		}, nil
	}
}

// insertAlone does nothing but what the handlers do: it inserts rows, so many in each transaction of
// the inbox's own kind. With savepoints, each row has its own, sent together with the row.
func insertAlone(goroutines, together, full, quick int, savepoints bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(full, quick)
		if err := effects.Create(ctx, env.DSN); err != nil {
			return nil, err
		}
		ib, err := byhand.Open(ctx, env.DSN, goroutines)
		if err != nil {
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				g, ctx := errgroup.WithContext(ctx)
				g.SetLimit(goroutines)
				for from := 0; from < n; from += together {
					ids := make([]string, min(together, n-from))
					for i := range ids {
						ids[i] = strconv.Itoa(from + i)
					}
					g.Go(func() error { return insertTogether(ctx, ib.DB, ids, savepoints, nil) })
				}
				return g.Wait()
			},
			Check: func(ctx context.Context) error { return effects.Check(ctx, env.DSN, n) },
			Close: ib.Close,
		}, nil
	}
}

// insertTogether inserts a row for each ID in a transaction, in which last is called at the end.
func insertTogether(ctx context.Context, db *gorm.DB, ids []string, savepoints bool,
	last func(context.Context, gorm.ConnPool) error,
) error {
	t, err := handlertx.BeginUntil(ctx, db, time.Minute, sql.LevelDefault)
	if err != nil {
		return err
	}
	defer t.Rollback()
	for _, id := range ids {
		if savepoints {
			if err := handlertx.SteerLater(t.Ctx, t.DB, "SAVEPOINT one_row"); err != nil {
				return err
			}
		}
		if err := t.DB.WithContext(ctx).Exec(effects.Insert, id).Error; err != nil {
			return err
		}
		if savepoints {
			if err := handlertx.SteerLater(t.Ctx, t.DB, "RELEASE SAVEPOINT one_row"); err != nil {
				return err
			}
		}
	}
	if last != nil {
		if err := last(ctx, t.DB.Statement.ConnPool); err != nil {
			return err
		}
	}
	return t.Commit()
}

func loadedByHand(ctx context.Context, env *trial.Env, n int) (*byhand.Inbox, error) {
	ib, err := byhand.Open(ctx, env.DSN, 16)
	if err != nil {
		return nil, err
	}
	if err := ib.Load(ctx, n); err != nil {
		ib.Close()
		return nil, err
	}
	if err := env.Analyze(ctx); err != nil {
		ib.Close()
		return nil, err
	}
	return ib, nil
}
