package groups

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/models"
)

const (
	noneWaiting = "nothing else pending"
	manyWaiting = "200,000 retries due in an hour"
)

// Waiting measures whether retries that are not due yet slow down other work.
func Waiting() trial.Group {
	return trial.Group{
		Name: "waiting", Unit: "status",
		About: "alone, and beside 200,000 statuses (with -quick 20,000) that failed once and are due in an hour",
		Variants: []trial.Variant{
			{Name: noneWaiting, New: waiting(0, 0)},
			{Name: manyWaiting, New: waiting(200_000, 20_000)},
		},
		Lines: []trial.Line{trial.Ratio("process_200k_waiting_vs_none", manyWaiting, noneWaiting, 0.90).Times(2)},
	}
}

func waiting(full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, processOptions()...)
		if err != nil {
			return nil, err
		}
		if n := env.Scale(full, quick); n > 0 {
			if err := preloadWaiting(ctx, ib, env.DSN, n); err != nil {
				ib.Close()
				return nil, err
			}
		}
		return processing(ctx, env, ib, ours.Messages(env.Scale(100_000, 15_000)))
	}
}

// preloadWaiting adds n statuses that have failed and wait for their next attempt.
func preloadWaiting(ctx context.Context, ib *ours.Inbox, dsn string, n int) error {
	m := ours.OrderedMessages(1)[0]
	if _, err := ib.Accept(ctx, m); err != nil {
		return err
	}
	// Set the columns as a claim and a failure do, but with a longer delay. The copies are a
	// millisecond apart, so the first is due some minutes before the last.
	err := ib.DB.WithContext(ctx).Clauses(ib.Tables()).Model(&models.HandlerStatus{}).Where("message_id = ?", m.ID).Updates(map[string]any{
		"error_count": 1, "last_error": "connection refused", "next_attempt_at": time.Now().Add(time.Hour),
		"version": gorm.Expr("version + 2"),
	}).Error
	if err != nil {
		return fmt.Errorf("have a status wait: %w", err)
	}
	return ib.Preload(ctx, dsn, m.ID, n-1, false)
}
