package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/models"
)

// Cleanup measures whether deleting old rows slows down new work.
func Cleanup() trial.Group {
	return trial.Group{
		Name: "cleanup", Unit: "message",
		About: "in tables where half a million messages have expired, alone and while a cleanup deletes them " +
			"(batches of 10,000, half a second apart, the default); deleted is in rows a second",
		Shared: newExpired,
		Variants: []trial.Variant{
			{Name: "no cleanup", New: besideCleanup(false)},
			{Name: "a cleanup meanwhile", New: besideCleanup(true)},
		},
	}
}

// expired is a database with more expired rows than all trials delete.
type expired struct{ database *server.Database }

const retention = 24 * time.Hour

// expiredMessages is large enough for fifty cleanup batches.
func expiredMessages(lab *trial.Lab) int { return lab.Scale(500_000, 100_000) }

func newExpired(ctx context.Context, lab *trial.Lab) (_ io.Closer, err error) {
	database, err := lab.Server.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	e := &expired{database}
	if err := e.fill(ctx, expiredMessages(lab)); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *expired) fill(ctx context.Context, n int) error {
	ib, err := ours.Open(ctx, e.database.DSN, 1)
	if err != nil {
		return err
	}
	defer ib.Close()
	id, err := ib.Template(ctx)
	if err != nil {
		return err
	}
	old := time.Now().Add(-2 * retention)
	for _, update := range []struct {
		rows    *gorm.DB
		columns []string
	}{
		{ib.DB.Clauses(ib.Tables()).Model(&models.Message{}).Where("id = ?", id), []string{"received_at"}},
		{ib.DB.Clauses(ib.Tables()).Model(&models.HandlerStatus{}).Where("message_id = ?", id), []string{"created_at", "completed_at"}},
	} {
		values := map[string]any{}
		for _, c := range update.columns {
			values[c] = old
		}
		if err := update.rows.WithContext(ctx).Updates(values).Error; err != nil {
			return fmt.Errorf("age a message: %w", err)
		}
	}
	return ib.Preload(ctx, e.database.DSN, id, n, false)
}

// Close drops the database.
func (e *expired) Close() error { return e.database.Drop() }

func besideCleanup(cleaning bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		dsn := env.Shared.(*expired).database.DSN
		ib, err := ours.Open(ctx, dsn, 1, append(processOptions(), inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = retention
			o.Cleanup.CleanupBatchSize = expiredMessages(env.Lab) / 50
		}))...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(100_000, 30_000)
		messages := ours.Messages(n)
		t := &trial.Trial{Count: n, Close: ib.Close, Values: map[string]float64{}}
		work := func(ctx context.Context) error {
			if err := ib.Start(ctx); err != nil {
				return err
			}
			if err := ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections); err != nil {
				return err
			}
			return ib.Completed(ctx, n)
		}
		t.Run = work
		if cleaning {
			t.Run = func(ctx context.Context) error {
				deleted, err := cleaningMeanwhile(ctx, ib, work)
				t.Values["deleted"] = deleted
				return err
			}
		}
		t.Check = func(ctx context.Context) error { return ib.CheckMessages(ctx, messages, n, n) }
		return t, nil
	}
}

// cleaningMeanwhile does the work during a cleanup, and returns how many rows per second the
// cleanup deleted. The cleanup must still be running when the work ends.
func cleaningMeanwhile(
	ctx context.Context, ib *ours.Inbox, work func(context.Context) error,
) (deleted float64, err error) {
	cleanup, end := context.WithCancel(ctx)
	defer end()
	type outcome struct {
		rows int64
		err  error
	}
	oldest, err := oldestMessage(ctx, ib)
	if err != nil {
		return 0, err
	}
	done := make(chan outcome, 1)
	began := time.Now()
	go func() {
		d, err := ib.Cleanup(cleanup)
		done <- outcome{d.Messages + d.Statuses, err}
	}()
	err = work(ctx)
	// A little work may end before the first batch does. Only the second says that the cleanup has
	// counted the first.
	for range 2 {
		if err == nil {
			oldest, err = awaitDeletion(ctx, ib, oldest)
		}
	}
	if err != nil {
		end()
		<-done
		return 0, err
	}
	took := time.Since(began)
	end()
	cleaned := <-done
	switch {
	case cleaned.err == nil:
		return 0, errors.New("the cleanup came to its end during the work: too few rows had expired")
	case !errors.Is(cleaned.err, context.Canceled):
		return 0, cleaned.err
	case cleaned.rows == 0:
		return 0, errors.New("the cleanup deleted nothing")
	}
	return float64(cleaned.rows) / took.Seconds(), nil
}

// oldestMessage returns the ID of the message that a cleanup deletes first.
func oldestMessage(ctx context.Context, ib *ours.Inbox) (id string, err error) {
	err = ib.DB.WithContext(ctx).Table(ib.Tables().Messages()).Select("id").Order("received_at, number").Limit(1).Scan(&id).Error
	return id, err
}

// awaitDeletion returns the next oldest message once the oldest is deleted.
func awaitDeletion(ctx context.Context, ib *ours.Inbox, oldest string) (next string, err error) {
	for {
		if next, err = oldestMessage(ctx, ib); err != nil || next != oldest {
			return next, err
		}
		if !routine.Sleep(ctx, time.Millisecond) {
			return next, ctx.Err()
		}
	}
}
