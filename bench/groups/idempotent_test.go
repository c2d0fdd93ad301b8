package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestEachIdempotentVariantDoesItsWorkAndItsCheckNoticesOneRowLessOrMore(t *testing.T) {
	g := Idempotent()
	for _, v := range kinds(t, g) {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			env := &trial.Env{Lab: &trial.Lab{Tiny: true, Log: io.Discard}, DSN: testenv.PostgresDSN(t)}
			one, err := v.New(ctx, env)
			require.NoError(t, err)
			defer one.Close()
			require.Error(t, one.Check(ctx), "the check passes before the work is done")
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
			doubled := one.Values["doubled_per_1000"]

			conn, err := pgx.Connect(ctx, env.DSN)
			require.NoError(t, err)
			defer conn.Close(ctx)
			change := func(statement string) {
				tag, err := conn.Exec(ctx, statement)
				require.NoError(t, err)
				require.Positive(t, tag.RowsAffected(), statement)
			}
			change(`INSERT INTO bench_effects (unit) SELECT min(unit) FROM bench_effects`)
			if v.Name == "check, run, mark without one, 8 at once" {
				require.NoError(t, one.Check(ctx))
				require.InDelta(t, doubled+1000.0/300, one.Values["doubled_per_1000"], 1e-6)
			} else {
				require.Zero(t, doubled)
				require.Error(t, one.Check(ctx), "the check does not notice an effect more")
			}
			change(`DELETE FROM bench_effects WHERE id = (SELECT max(id) FROM bench_effects)`)
			require.NoError(t, one.Check(ctx))
			markers := "inbox_markers"
			if v.Name != g.Variants[0].Name {
				markers = "hand_processed"
			}
			change(`UPDATE ` + markers + ` SET message_id = 'gone' WHERE message_id = (SELECT min(message_id) FROM ` + markers + `)`)
			require.Error(t, one.Check(ctx), "the check does not notice a marker less")
			change(`UPDATE ` + markers + ` SET message_id = (SELECT min(unit) FROM bench_effects) WHERE message_id = 'gone'`)
			require.NoError(t, one.Check(ctx))
			change(`DELETE FROM bench_effects WHERE unit = (SELECT max(unit) FROM bench_effects)`)
			require.Error(t, one.Check(ctx), "the check does not notice an effect less")
		})
	}
}

func TestEachIdempotentRedisVariantDoesItsWorkOnce(t *testing.T) {
	g := IdempotentRedis()
	url, _ := testenv.Redis(t)
	lab := &trial.Lab{Tiny: true, Log: io.Discard, Redis: url}
	shared, err := g.Shared(t.Context(), lab)
	require.NoError(t, err)
	for _, v := range kinds(t, g) {
		t.Run(v.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			one, err := v.New(ctx, &trial.Env{Lab: lab, Shared: shared})
			require.NoError(t, err)
			defer one.Close()
			require.Error(t, one.Check(ctx), "the check passes before the work is done")
			require.NoError(t, one.Run(ctx))
			require.NoError(t, one.Check(ctx))
			require.Zero(t, one.Values["doubled_per_1000"])
			require.NoError(t, one.Run(ctx)) // all of it again: known
			require.NoError(t, one.Check(ctx))
		})
	}
	require.NoError(t, shared.Close())
}

func TestRedisCheckNoticesAnEffectMoreAndAMarkerLess(t *testing.T) {
	url, _ := testenv.Redis(t)
	r, err := newRedisTrial(&trial.Env{Lab: &trial.Lab{Tiny: true}, Shared: &benchRedis{url: url}}, 8)
	require.NoError(t, err)
	missing := ""
	one := r.trial(8, r.effect, func(_ context.Context, id string) (bool, error) { return id != missing, nil })
	defer one.Close()
	require.Error(t, one.Check(t.Context()))
	seen := map[string]bool{}
	for _, id := range r.ids {
		if !seen[id] {
			require.NoError(t, r.effect(t.Context(), id))
		}
		seen[id] = true
	}
	require.NoError(t, one.Check(t.Context()))
	missing = r.ids[0]
	require.Error(t, one.Check(t.Context()), "a marker less")
	missing = ""
	require.NoError(t, r.effect(t.Context(), r.ids[0]))
	require.Error(t, one.Check(t.Context()), "an effect more")
}

func TestDeliveriesComeTwiceNowAndThenAndAgainAfterAFailure(t *testing.T) {
	d := newDeliveries(10)
	require.Len(t, d.ids, 12)
	require.Equal(t, d.ids[0], d.ids[1])
	require.Equal(t, d.ids[6], d.ids[7])
	var calls atomic.Int64
	require.NoError(t, d.to(t.Context(), 1, func(context.Context, string) error {
		if calls.Add(1) == 3 {
			return errors.New("not now")
		}
		return nil
	}))
	require.EqualValues(t, 13, calls.Load())
	d.calls.Store(11)
	require.Equal(t, map[string]float64{"doubled_per_1000": 200, "reruns_per_1000": 100, "refused_per_1000": 100}, d.figures(12))
	require.ErrorContains(t, d.to(t.Context(), 1, func(context.Context, string) error { return errors.New("never") }), fmt.Sprintf("failed %d times: never", mostTries))
}
