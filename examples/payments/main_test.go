package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// figures are what the program prints at the end.
func figures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	names := []string{"payments", "applied", "lost", "doubled", "duplicates", "kills", "calls_again"}
	if strings.Contains(out, "markers in Redis") {
		names = append(names, "reruns")
	}
	return demotest.Figures(t, out, names...)
}

// requireWhole checks the figures that do not depend on chance.
func requireWhole(t *testing.T, got map[string]float64, payments, kills float64) {
	t.Helper()
	require.Greater(t, got["duplicates"], payments, "each payment is sent three times on average")
	if kills >= float64(len(points)) {
		require.Positive(t, got["calls_again"], "workers were killed in the handler")
	}
	want := map[string]float64{"payments": payments, "applied": payments, "lost": 0, "doubled": 0,
		"duplicates": got["duplicates"], "kills": kills, "calls_again": got["calls_again"]}
	if again, redis := got["reruns"]; redis {
		want["reruns"] = again
		require.LessOrEqual(t, again, got["calls_again"])
	}
	require.Equal(t, want, got)
}

// small has each of the points twice.
var small = []string{"-messages", "200", "-crash", "8", "-seed", "4"}

func TestDuplicatePaymentsApplyOnceWhileWorkersAreKilled(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		requireWhole(t, figures(t, demotest.Balances(t, command.Run, append(small, demotest.On(server)...)...)), 200, 8)
	})
}

func TestRedisRepeatsEffectsOnlyAfterKills(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		address, _ := testenv.Redis(t)
		out := demotest.Balances(t, command.Run, append(append(small, demotest.On(server)...), "-redis", address)...)
		got := figures(t, out)
		requireWhole(t, got, 200, 8)
		kills := strings.Count(out, string(afterHandler))
		require.Positive(t, kills, "workers are killed between the effects and the marker")
		require.GreaterOrEqual(t, got["reruns"], float64(kills))
		keys := regexp.MustCompile(`markers in Redis under (payments_[0-9a-f]+:\*)`).FindStringSubmatch(out)
		require.NotNil(t, keys, "%s", out)
		requireNoKeys(t, address, keys[1])
	})
}

// requireNoKeys fails if a run left keys behind.
func requireNoKeys(t *testing.T, address, pattern string) {
	t.Helper()
	options, err := redis.ParseURL(address)
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer func() { require.NoError(t, client.Close()) }()
	left, err := client.Keys(t.Context(), pattern).Result()
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	requireWhole(t, figures(t, demotest.GoRun(t, "payments", "-messages", "100", "-crash", "1")), 100, 1)
}

func TestUnexpectedWorkerExitFailsTheRun(t *testing.T) {
	demotest.RequireExitNoticed(t, command.Run, `worker-\d`, "-messages", "20", "-crash", "0")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	demotest.RequireInterruptible(t, command.Run, func(line string) bool {
		return strings.Contains(line, "killed itself")
	})
}

func TestBadFlagsAreRefused(t *testing.T) {
	demotest.RequireRefused(t, command.Run, map[string][]string{
		"-messages = 0: must be 1 to 100000":  {"-messages", "0"},
		"-workers = 0: must be 1 to 20":       {"-workers", "0"},
		"-crash = 51: must be 0 to 50":        {"-crash", "51"},
		"-crash = 8: must be 0 to 5":          {"-messages", "20"},
		`unknown argument "please"`:           {"please"},
		"flag provided but not defined: -sed": {"-sed", "1"},
	})
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	s, _, err := command.Parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, Settings{Messages: 1000, Workers: 3, Kills: 8}, s)
	s, _, err = command.Parse([]string{"-redis", "localhost:6379"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "redis://localhost:6379", s.Redis)
}
