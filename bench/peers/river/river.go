package river

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/gorm-inbox/inbox/bench/effects"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// args are the arguments of every job. River stores arguments as JSON, in which bytes are base64.
type args struct {
	Payload []byte `json:"payload"`
}

// Kind implements river.JobArgs.
func (args) Kind() string { return "bench" }

// River is a client with a database of its own.
type River struct {
	client    *river.Client[pgx.Tx]
	pool      *pgxpool.Pool
	completed atomic.Int64
	started   bool
	counting  sync.WaitGroup
}

// Open migrates the database and creates a client without starting it.
func Open(ctx context.Context, dsn string, s Settings) (_ *River, err error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	if s.Connections > 0 {
		cfg.MaxConns = int32(s.Connections)
	}
	r := &River{}
	if r.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if err := r.open(ctx, s); err != nil {
		r.pool.Close()
		return nil, err
	}
	return r, nil
}

func (r *River) open(ctx context.Context, s Settings) error {
	driver := riverpgxv5.New(r.pool)
	silent := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: silent})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{pool: r.pool, transactional: s.Transactional, started: s.Started})
	r.client, err = river.NewClient(driver, &river.Config{
		FetchCooldown: s.Cooldown, FetchPollInterval: s.Poll, Logger: silent,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: s.Workers}}, Workers: workers,
	})
	return err
}

// Close stops the client and closes the pool.
func (r *River) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if r.started {
		_ = r.client.StopAndCancel(ctx)
	}
	r.counting.Wait()
	r.pool.Close()
}

// Start starts the client. It counts completed jobs with a subscription, as "river bench" does,
// because events are sent after the completion is stored.
func (r *River) Start(ctx context.Context, jobs int) error {
	// The channel has room for every completion. Events that do not fit are dropped, and then
	// Completed would never return.
	events, cancel := r.client.SubscribeConfig(&river.SubscribeConfig{ChanSize: jobs,
		Kinds: []river.EventKind{river.EventKindJobCompleted}})
	if err := r.client.Start(context.WithoutCancel(ctx)); err != nil {
		cancel()
		return err
	}
	r.started = true
	r.counting.Add(1)
	go func() {
		defer r.counting.Done()
		defer cancel()
		for range events { // until the client stops
			r.completed.Add(1)
		}
	}()
	return nil
}

// Completed waits until that many jobs are stored as completed.
func (r *River) Completed(ctx context.Context, n int) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for r.completed.Load() < int64(n) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d completed: %w", r.completed.Load(), n, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// Insert is one of River's methods to insert many jobs.
type Insert func(*River, context.Context, []river.InsertManyParams) error

// InsertMany is the ordinary method. InsertManyFast uses COPY.
var (
	InsertMany Insert = func(r *River, ctx context.Context, jobs []river.InsertManyParams) error {
		_, err := r.client.InsertMany(ctx, jobs)
		return err
	}
	InsertManyFast Insert = func(r *River, ctx context.Context, jobs []river.InsertManyParams) error {
		_, err := r.client.InsertManyFast(ctx, jobs)
		return err
	}
)

// InsertOne inserts one job with this payload.
func (r *River) InsertOne(ctx context.Context, payload []byte) error {
	_, err := r.client.Insert(ctx, args{Payload: payload}, nil)
	return err
}

// InsertAll inserts n jobs in batches on several connections at once.
func (r *River) InsertAll(ctx context.Context, insert Insert, n, batch, connections int) error {
	return trial.InBatches(ctx, n, batch, connections, func(ctx context.Context, from, to int) error {
		jobs := make([]river.InsertManyParams, to-from)
		for i := range jobs {
			jobs[i] = river.InsertManyParams{Args: args{Payload: ours.Payload}}
		}
		return insert(r, ctx, jobs)
	})
}

// CheckStored returns an error unless the table has these numbers of jobs, with the whole payload,
// and of completed jobs, each after one attempt.
func (r *River) CheckStored(ctx context.Context, jobs, completed int) error {
	var all, whole, done int
	err := r.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE length(decode(args->>'payload', 'base64')) = $1),
		count(*) FILTER (WHERE state = 'completed' AND attempt = 1 AND finalized_at IS NOT NULL) FROM river_job`, ours.PayloadBytes).Scan(&all, &whole, &done)
	if err != nil {
		return err
	}
	if all != jobs || whole != jobs || done != completed {
		return fmt.Errorf("river: %d jobs, %d with their payload, %d completed; expected %d and %d completed", all, whole,
			done, jobs, completed)
	}
	return nil
}

type worker struct {
	river.WorkerDefaults[args]
	pool          *pgxpool.Pool
	transactional bool
	started       func(payload []byte)
}

// Work does nothing, or completes its job as example_complete_job_within_tx_test.go does.
func (w *worker) Work(ctx context.Context, job *river.Job[args]) (err error) {
	if w.started != nil {
		w.started(job.Args.Payload)
	}
	if !w.transactional {
		return nil
	}
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := tx.Rollback(ctx); e != nil && !errors.Is(e, pgx.ErrTxClosed) {
			err = errors.Join(err, e)
		}
	}()
	if _, err := tx.Exec(ctx, effects.InsertPgx, strconv.FormatInt(job.ID, 10)); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
