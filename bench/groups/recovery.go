package groups

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/routine"
)

const (
	deadWorkers  = 10
	claimsOfEach = 5
	besideMany   = "10,000,000 pending"
)

// Recovery measures how long claims of dead workers wait for a sweep, which needs two.
func Recovery() trial.Group {
	return trial.Group{
		Name: "recovery", Unit: "claim",
		About: "50 claims of ten workers that were killed long ago, beside ten million statuses of a paused handler " +
			"(with -quick 200,000); two sweeps are ten seconds",
		Variants: []trial.Variant{{Name: besideMany, New: recovering(10_000_000, 200_000)}},
		Lines:    []trial.Line{trial.Value("recovery_10m_pending_s", besideMany, "released_s", 15)},
	}
}

// recovering fills the tables by plain inserts. The pending statuses need no messages, and come in the
// order of the index.
func recovering(full, quick int) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 2)
		if err != nil {
			return nil, err
		}
		pending, claims := env.Scale(full, quick), deadWorkers*claimsOfEach
		for _, statement := range []string{
			`ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`,
			`INSERT INTO inbox_handlers (handler_key, paused, updated_at) VALUES ('bench-handler-1', true, now())`,
			fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at)
				SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n, 'bench-handler-1',
					now() - interval '3 hours' + n * interval '1 millisecond' FROM generate_series(1, %d) n`, pending),
			fmt.Sprintf(`INSERT INTO inbox_workers (id, host, pid, handler_keys, started_at, heartbeat_at, health, consumers, database_role)
				SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'h', 1, '{}', now() - interval '2 hours',
					now() - interval '1 hour', '', '', session_user FROM generate_series(1, %d) n`, deadWorkers),
			fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, processing_started_at, worker_id, version)
				SELECT gen_random_uuid(), n, 'm' || n, 'bench-handler-2', now(), now(),
					('00000000-0000-7000-8000-' || lpad((n %% %d + 1)::text, 12, '0'))::uuid, 2 FROM generate_series(1, %d) n`, deadWorkers, claims),
			`VACUUM (ANALYZE) inbox_handler_statuses`,
		} {
			if err := ib.DB.WithContext(ctx).Exec(statement).Error; err != nil {
				ib.Close()
				return nil, fmt.Errorf("prepare recovery: %w", err)
			}
		}
		count := func(ctx context.Context, condition string) (n int, err error) {
			err = ib.DB.WithContext(ctx).Raw(`SELECT count(*) FROM inbox_handler_statuses WHERE ` + condition).Scan(&n).Error
			return n, err
		}
		t := &trial.Trial{Count: claims, Values: map[string]float64{}, Close: ib.Close}
		t.Run = func(ctx context.Context) error {
			began := time.Now()
			if err := ib.Start(ctx); err != nil {
				return err
			}
			for {
				left, err := count(ctx, `handler_key = 'bench-handler-2' AND completed_at IS NULL AND processing_started_at IS NOT NULL
					AND NOT is_poisoned AND NOT is_waiting`)
				if err != nil {
					return err
				}
				if left == 0 {
					t.Values["released_s"] = time.Since(began).Seconds()
					return nil
				}
				if !routine.Sleep(ctx, 50*time.Millisecond) {
					return ctx.Err()
				}
			}
		}
		t.Check = func(ctx context.Context) error {
			all, err := count(ctx, "true")
			if err == nil && all != pending+claims {
				err = fmt.Errorf("%d statuses are left of %d", all, pending+claims)
			}
			return err
		}
		return t, nil
	}
}
