package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func testLab(t *testing.T, rounds int) *Lab {
	dsn := os.Getenv(testenv.PostgresVariable)
	if dsn == "" {
		testenv.LeaveOut(t, "PostgreSQL", testenv.PostgresVariable)
	}
	return &Lab{Server: server.Use(dsn), Rounds: rounds, Tiny: true, Log: io.Discard}
}

func TestRoundsRotateVariantsAndTrialsHaveFreshDatabases(t *testing.T) {
	var order []string
	seen := map[string]bool{}
	variant := func(name string) Variant {
		return Variant{Name: name, New: func(_ context.Context, env *Env) (*Trial, error) {
			require.False(t, seen[env.DSN])
			seen[env.DSN] = true
			return &Trial{
				Count: env.Scale(1_000_000, 100_000),
				Run: func(ctx context.Context) error {
					order = append(order, name)
					conn, err := pgx.Connect(ctx, env.DSN)
					if err != nil {
						return err
					}
					defer conn.Close(ctx)
					_, err = conn.Exec(ctx, "CREATE TABLE left_behind AS SELECT generate_series(1, 100)")
					return err
				},
				Check: func(context.Context) error { return nil },
			}, nil
		}}
	}
	r, err := testLab(t, 2).Run(t.Context(), Group{Name: "g", Variants: []Variant{variant("a"), variant("b")}})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "b", "a"}, order)
	for _, name := range []string{"a", "b"} {
		require.Len(t, r.Measures[name], 2)
		for _, m := range r.Measures[name] {
			require.Positive(t, m.Rate)
			require.Positive(t, m.WAL)
		}
	}
}

func TestNoVariantAlwaysRunsAfterTheSameOne(t *testing.T) {
	const n = 5
	var order []int
	for round := range 3 {
		seen := map[int]bool{}
		for i := range n {
			v := turn(round, i, n)
			seen[v] = true
			order = append(order, v)
		}
		require.Len(t, seen, n, "each once in a round")
	}
	require.Len(t, map[int]bool{order[0]: true, order[n]: true, order[2*n]: true}, 3, "each round begins with another")
	behind := map[[2]int]bool{}
	for i := range order[1:] {
		behind[[2]int{order[i], order[i+1]}] = true
	}
	for v := range n {
		others := 0
		for u := range n {
			if behind[[2]int{u, v}] {
				others++
			}
		}
		require.Greater(t, others, 1, "variant %d runs behind one alone: %v", v, order)
	}
}

func TestGroupWithoutDatabasesGetsNone(t *testing.T) {
	v := Variant{Name: "v", New: func(_ context.Context, env *Env) (*Trial, error) {
		require.Empty(t, env.DSN)
		return &Trial{Count: 1, Run: func(context.Context) error { return nil },
			Check: func(context.Context) error { return nil }}, nil
	}}
	_, err := testLab(t, 1).Run(t.Context(), Group{Name: "g", NoDatabase: true, Variants: []Variant{v}})
	require.NoError(t, err)
}

func TestWhatPostgresDoesIsNotMeasuredWhereNoTrialUsesIt(t *testing.T) {
	lab := testLab(t, 1)
	v := Variant{Name: "v", New: func(_ context.Context, env *Env) (*Trial, error) {
		require.Empty(t, env.DSN)
		return &Trial{Count: 1, Run: func(ctx context.Context) error {
			other, err := lab.Server.NewDatabase(ctx) // writes WAL
			return errors.Join(err, other.Drop())
		}, Check: func(context.Context) error { return nil }}, nil
	}}
	for noPostgres, measured := range map[bool]bool{true: false, false: true} {
		g := Group{Name: "g", NoDatabase: true, NoPostgres: noPostgres, Variants: []Variant{v}}
		r, err := lab.Run(t.Context(), g)
		require.NoError(t, err)
		m := r.Measures["v"][0]
		require.Equal(t, measured, m.WAL > 0)
		require.True(t, measured || m.ServerUs == 0)
	}
}

func TestEachLineCountsItsFurtherRounds(t *testing.T) {
	variant := func(name string) Variant {
		return Variant{Name: name, New: func(context.Context, *Env) (*Trial, error) {
			return &Trial{Count: 1, Run: func(context.Context) error { return nil },
				Check: func(context.Context) error { return nil }}, nil
		}}
	}
	lab := testLab(t, 3)
	lab.Tiny = false
	r, err := lab.Run(t.Context(), Group{Name: "g", About: "about", NoDatabase: true,
		Variants: []Variant{variant("a"), variant("b"), variant("c")},
		Lines:    []Line{Ratio("x", "a", "b", 0), Ratio("y", "a", "c", 0).Times(2)}})
	require.NoError(t, err)
	require.Equal(t, []int{6, 3, 6}, []int{len(r.Measures["a"]), len(r.Measures["b"]), len(r.Measures["c"])})
	require.Equal(t, "about; 6 rounds for `y`", r.Group.About)
	for _, line := range r.Group.Lines {
		_, err := line.Of(r)
		require.NoError(t, err)
	}
}

func TestPreparationGarbageIsCollectedBeforeTheTrial(t *testing.T) {
	var prepared, begun runtime.MemStats
	v := Variant{Name: "v", New: func(context.Context, *Env) (*Trial, error) {
		runtime.ReadMemStats(&prepared)
		return &Trial{Count: 1, Run: func(context.Context) error {
			runtime.ReadMemStats(&begun)
			return nil
		}, Check: func(context.Context) error { return nil }}, nil
	}}
	_, err := testLab(t, 1).Run(t.Context(), Group{Name: "g", Variants: []Variant{v}})
	require.NoError(t, err)
	require.Greater(t, begun.NumForcedGC, prepared.NumForcedGC)
}

func TestDeadlineEndsAHangingTrial(t *testing.T) {
	v := Variant{Name: "v", New: func(context.Context, *Env) (*Trial, error) {
		return &Trial{Count: 1, Check: func(context.Context) error { return nil }, Run: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return fmt.Errorf("1 of 2 completed: %w", ctx.Err())
			case <-t.Context().Done():
				return nil
			}
		}}, nil
	}}
	lab := testLab(t, 1)
	lab.Deadline = time.Millisecond
	_, err := lab.Run(t.Context(), Group{Name: "g", Variants: []Variant{v}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "g, v: not done after ")
	require.ErrorContains(t, err, "1 of 2 completed")
}

func TestFailedCheckEndsTheRun(t *testing.T) {
	missing := errors.New("a row is missing")
	closed := false
	v := Variant{Name: "v", New: func(context.Context, *Env) (*Trial, error) {
		return &Trial{Count: 1, Run: func(context.Context) error { return nil },
			Check: func(context.Context) error { return missing }, Close: func() { closed = true }}, nil
	}}
	_, err := testLab(t, 1).Run(t.Context(), Group{Name: "g", Variants: []Variant{v}})
	require.ErrorIs(t, err, missing)
	require.ErrorContains(t, err, "g, v")
	require.True(t, closed)
}

func TestPreparationErrorNamesItsGroup(t *testing.T) {
	_, err := testLab(t, 1).Run(t.Context(), Group{Name: "g", Shared: func(context.Context, *Lab) (io.Closer, error) {
		return nil, fmt.Errorf("no disk")
	}})
	require.EqualError(t, err, "g: prepare: no disk")
}
