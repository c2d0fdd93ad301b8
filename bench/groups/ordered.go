package groups

import (
	"context"
	"fmt"
	"strconv"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

const (
	fewOrdered  = "2,000 pending in 1,000 lanes"
	manyOrdered = "200,000 pending in 10,000 lanes"
	freeLanes   = "ten lanes, nothing else pending"
	besideLane  = "ten lanes beside 100,000 statuses behind a poisoned one"
	oneLane     = "one lane with 50,000 pending"
)

// Ordered measures an ordered handler. What is pending has been analyzed, so that PostgreSQL knows how
// much it is.
func Ordered() trial.Group {
	return trial.Group{
		Name: "ordered", Unit: "status",
		About: "the first 2,000 statuses of an ordered handler with the default options (with -quick of a tenth of what is " +
			"pending); the run begins while rows behind others in their lanes are still to be marked",
		Variants: []trial.Variant{
			{Name: fewOrdered, New: ordered(2_000, 1_000, 2_000)},
			{Name: manyOrdered, New: ordered(200_000, 10_000, 2_000)},
			{Name: freeLanes, New: besideBlocked(0)},
			{Name: besideLane, New: besideBlocked(100_000)},
			{Name: oneLane, New: ordered(50_000, 1, 2_000)},
		},
		Lines: []trial.Line{
			trial.Ratio("ordered_200k_vs_2k_pending", manyOrdered, fewOrdered, 0.90).Times(2),
			trial.Ratio("one_blocked_lane_100k_vs_none", besideLane, freeLanes, 0.90).Times(2),
			trial.Rate("one_lane_50k_rate", oneLane, 0),
		},
	}
}

// openOrdered opens an inbox with one ordered handler that does nothing.
func openOrdered(ctx context.Context, env *trial.Env) (*ours.Inbox, error) {
	return ours.OpenWith(ctx, env.DSN, func(called func()) []*inbox.HandlerSpec {
		return []*inbox.HandlerSpec{inbox.Func("bench-handler-1", func(context.Context, handler.Message[[]byte]) error {
			called()
			return nil
		}, handler.Ordered())}
	})
}

// laneMessages makes n messages in so many lanes, in turn.
func laneMessages(n, lanes int, prefix string) []handler.RawMessage {
	messages := ours.OrderedMessages(n)
	for i := range messages {
		messages[i].OrderingKey = []byte(prefix + strconv.Itoa(i%lanes))
	}
	return messages
}

// ordered processes the first of many pending statuses. Those after them may be processed, too.
func ordered(pending, lanes, first int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := openOrdered(ctx, env)
		if err != nil {
			return nil, err
		}
		n := env.Scale(pending, pending/10)
		lanes, first := min(lanes, n), min(first, n/2)
		messages := laneMessages(n, lanes, "lane-")
		t, err := processAccepted(ctx, env, ib, messages, func(ctx context.Context) error {
			return checkFirst(ctx, ib, n, first)
		})
		if err != nil {
			return nil, err
		}
		t.Count, t.Run = first, completing(ib, first)
		return t, nil
	}
}

// checkFirst returns an error unless all messages have a status of which enough are completed.
func checkFirst(ctx context.Context, ib *ours.Inbox, pending, first int) error {
	statuses := gorm.G[models.HandlerStatus](ib.DB, ib.Tables())
	stored, err := statuses.Count(ctx, "*")
	if err != nil {
		return err
	}
	completed, err := statuses.Where("completed_at IS NOT NULL").Count(ctx, "*")
	if err != nil {
		return err
	}
	if stored != int64(pending) || completed < int64(first) {
		return fmt.Errorf("statuses %d, completed %d; expected %d, at least %d", stored, completed, pending, first)
	}
	return nil
}

// besideBlocked processes 2,000 statuses in ten lanes, beside a lane whose first status is poisoned
// and in which the others wait.
func besideBlocked(waiting int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := openOrdered(ctx, env)
		if err != nil {
			return nil, err
		}
		n, all := env.Scale(2_000, 1_000), 0
		if waiting := env.Scale(waiting, waiting/10); waiting > 0 {
			if err := blockLane(ctx, env, ib, waiting); err != nil {
				ib.Close()
				return nil, err
			}
			all = waiting + 1
		}
		return processAccepted(ctx, env, ib, laneMessages(n, 10, "free-"), func(ctx context.Context) error {
			return checkFirst(ctx, ib, all+n, n)
		})
	}
}

// blockLane fills a lane: the first status is poisoned, and n more wait.
func blockLane(ctx context.Context, env *trial.Env, ib *ours.Inbox, n int) error {
	messages := laneMessages(2, 1, "blocked-")
	states := []map[string]any{{"is_poisoned": true, "error_count": 1, "last_error": "failed"}, {"is_waiting": true}}
	for i, state := range states {
		if _, err := ib.Accept(ctx, messages[i]); err != nil {
			return err
		}
		err := ib.DB.WithContext(ctx).Clauses(ib.Tables()).Model(&models.HandlerStatus{}).
			Where("message_id = ?", messages[i].ID).Updates(state).Error
		if err != nil {
			return fmt.Errorf("block a lane: %w", err)
		}
	}
	return ib.Preload(ctx, env.DSN, messages[1].ID, n-1, true)
}
