// Package gue runs gue (github.com/vgarvardt/gue) as its users do. A job is locked, worked and
// deleted in one transaction.
package gue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	queue = "bench"
	kind  = "bench"
)

// table is gue's table with its index, which users create from migrations/schema.sql.
var table = []string{
	`CREATE TABLE gue_jobs (
		job_id text NOT NULL PRIMARY KEY, priority smallint NOT NULL, run_at timestamptz NOT NULL, job_type text NOT NULL, args bytea NOT NULL,
		error_count integer NOT NULL DEFAULT 0, last_error text, queue text NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL)`,
	`CREATE INDEX idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority)`,
}

// Gue is a client and a pool of workers.
type Gue struct {
	pool    *pgxpool.Pool
	client  *gue.Client
	workers *gue.WorkerPool
	worked  atomic.Int64
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open creates the table and a pool of workers with a connection each, without starting them. Of
// gue's two polling strategies it uses RunAtPollStrategy, which the table's index supports. Without
// priorities both mean the same. Nothing is logged, because gue logs only to a logger that it is
// given.
func Open(ctx context.Context, dsn string, workers int) (*Gue, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(workers + 2)
	g := &Gue{}
	if g.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if err := g.open(ctx, workers); err != nil {
		g.pool.Close()
		return nil, err
	}
	return g, nil
}

func (g *Gue) open(ctx context.Context, workers int) (err error) {
	for _, statement := range table {
		if _, err := g.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make the table: %w", err)
		}
	}
	if g.client, err = gue.NewClient(pgxv5.NewConnPool(g.pool)); err != nil {
		return err
	}
	work := func(context.Context, *gue.Job) error {
		g.worked.Add(1)
		return nil
	}
	g.workers, err = gue.NewWorkerPool(g.client, gue.WorkMap{kind: work}, workers, gue.WithPoolQueue(queue),
		gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	return err
}

// Close stops the workers and closes the pool.
func (g *Gue) Close() {
	if g.stop != nil {
		g.stop()
	}
	g.running.Wait()
	g.pool.Close()
}

// EnqueueAll enqueues n jobs in batches on several connections at once.
func (g *Gue) EnqueueAll(ctx context.Context, n, batch, connections int) error {
	return trial.InBatches(ctx, n, batch, connections, func(ctx context.Context, from, to int) error {
		jobs := make([]*gue.Job, to-from)
		for i := range jobs {
			jobs[i] = &gue.Job{Queue: queue, Type: kind, Args: ours.Payload}
		}
		return g.client.EnqueueBatch(ctx, jobs)
	})
}

// Work works n jobs and returns when the last is deleted.
func (g *Gue) Work(ctx context.Context, n int) error {
	var running context.Context
	running, g.stop = context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	g.running.Add(1)
	go func() {
		defer g.running.Done()
		failed <- g.workers.Run(running)
	}()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		if g.worked.Load() >= int64(n) { // the last jobs may not be deleted yet
			var empty bool
			if err := g.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM gue_jobs)`).Scan(&empty); err != nil || empty {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d worked: %w", g.worked.Load(), n, ctx.Err())
		case err := <-failed:
			return errors.Join(errors.New("the workers have stopped"), err)
		case <-ticker.C:
		}
	}
}

// Check returns an error unless the expected numbers of jobs are stored and have been worked.
func (g *Gue) Check(ctx context.Context, stored, worked int) error {
	var all int
	if err := g.pool.QueryRow(ctx, `SELECT count(*) FROM gue_jobs WHERE length(args) = $1 AND error_count = 0`,
		ours.PayloadBytes).Scan(&all); err != nil {
		return err
	}
	if all != stored || g.worked.Load() != int64(worked) {
		return fmt.Errorf("gue: %d jobs stored, %d worked; expected %d, %d", all, g.worked.Load(), stored, worked)
	}
	return nil
}
