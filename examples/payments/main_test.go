package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// dieVariable makes the workers end at once.
const dieVariable = "PAYMENTS_TEST_DIE"

// TestMain lets the test binary be a worker too: the parent starts the program
// it is itself.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		if os.Getenv(dieVariable) != "" {
			os.Exit(3)
		}
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// figures runs the program and returns what it printed at the end. Whatever it
// makes must be gone by then.
func figures(t *testing.T, args ...string) map[string]int {
	t.Helper()
	figures, _ := output(t, args...)
	return figures
}

func output(t *testing.T, args ...string) (figures map[string]int, out string) {
	t.Helper()
	temporary := scratchtest.Temporary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &stdout, &stderr)
	require.Equal(t, balanced, status, "%s%s%s", stdout.String(), stderr.String(), scratchtest.Logs(temporary))
	scratchtest.RequireEmpty(t, temporary)
	return parseFigures(t, stdout.String()), stdout.String()
}

// figureLines are the last of the output, in this order and nothing else.
var figureLines = regexp.MustCompile(`(?:^|\n)payments: (\d+)\napplied: (\d+)\nlost: (\d+)\ndoubled: (\d+)\nduplicates: (\d+)\nkills: (\d+)\nreruns: (\d+)\n(?:applied_again: (\d+)\n)?$`)

func parseFigures(t *testing.T, out string) map[string]int {
	t.Helper()
	found := figureLines.FindStringSubmatch(out)
	require.NotNil(t, found, "%s", out)
	figures := map[string]int{}
	for i, name := range []string{"payments", "applied", "lost", "doubled", "duplicates", "kills", "reruns", "applied_again"} {
		if found[i+1] == "" {
			continue
		}
		value, err := strconv.Atoi(found[i+1])
		require.NoError(t, err)
		figures[name] = value
	}
	return figures
}

// requireWhole checks the figures that do not depend on chance.
func requireWhole(t *testing.T, got map[string]int, payments, kills int) {
	t.Helper()
	require.Greater(t, got["duplicates"], payments, "each payment is sent three times on average")
	if kills > 0 { // a fast run may be over before all of them
		require.Positive(t, got["kills"])
		require.LessOrEqual(t, got["kills"], kills)
	}
	if got["kills"] >= len(points) {
		require.Positive(t, got["reruns"], "workers were killed in the handler")
	}
	want := map[string]int{"payments": payments, "applied": payments, "lost": 0, "doubled": 0, "duplicates": got["duplicates"], "kills": got["kills"], "reruns": got["reruns"]}
	if again, redis := got["applied_again"]; redis {
		want["applied_again"] = again
		require.LessOrEqual(t, again, got["reruns"])
	}
	require.Equal(t, want, got)
}

// small has each of the points twice.
var small = []string{"-messages", "200", "-crash", "8", "-seed", "3"}

func TestPaymentsAreAppliedOnceAlthoughTheyComeAgainAndWorkersAreKilled(t *testing.T) {
	for name, database := range map[string]func(t *testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"-postgres", testenv.PostgresDSN(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			requireWhole(t, figures(t, append(database(t), small...)...), 200, 8)
		})
	}
}

func TestRedisAppliesAgainOnlyWhatAKillExplains(t *testing.T) {
	for name, database := range map[string]func(t *testing.T) []string{
		"books in SQLite":     func(*testing.T) []string { return nil },
		"books in PostgreSQL": func(t *testing.T) []string { return []string{"-postgres", testenv.PostgresDSN(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := testenv.Redis(t)
			got, out := output(t, append(append(database(t), "-redis", address), small...)...)
			requireWhole(t, got, 200, 8)
			require.Positive(t, got["applied_again"], "two workers were killed between the effects and the marker")
			keys := regexp.MustCompile(`markers in Redis under (payments_[0-9a-f]+:\*)`).FindStringSubmatch(out)
			require.NotNil(t, keys, "%s", out)
			requireNoKeys(t, address, keys[1])
		})
	}
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
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "examples", "./payments", "-messages", "100", "-crash", "1")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD=", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireWhole(t, parseFigures(t, string(out)), 100, 1)
}

func TestWorkerThatEndsOtherwiseFailsTheRun(t *testing.T) {
	scratchtest.Temporary(t)
	t.Setenv(dieVariable, "1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, unbalanced, run(t.Context(), []string{"-messages", "20", "-crash", "0"}, &stdout, &stderr), "%s", stdout.String())
	require.Regexp(t, `worker-\d has ended by itself \(exit status 3\)`, stderr.String())
	require.Contains(t, stdout.String(), "kept:")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	temporary := scratchtest.Temporary(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var stderr bytes.Buffer
	require.Equal(t, unbalanced, run(ctx, nil, scratchtest.WhenWritten(func(line string) {
		if strings.Contains(line, "killed itself") {
			cancel(errors.New("Ctrl-C"))
		}
	}), &stderr))
	require.Contains(t, stderr.String(), errInterrupted.Error())
	scratchtest.RequireEmpty(t, temporary)
}

func TestBadFlagsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"-messages is 0, allowed is 1 to 100000": {"-messages", "0"},
		"-workers is 0, allowed is 1 to 20":      {"-workers", "0"},
		"-crash is 51, allowed is 0 to 50":       {"-crash", "51"},
		"-crash is 8, allowed is 0 to 5":         {"-messages", "20"},
		`unknown argument "please"`:              {"please"},
		"flag provided but not defined: -sed":    {"-sed", "1"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, misused, run(t.Context(), args, &stdout, &stderr))
		require.Contains(t, stderr.String(), want)
		require.Empty(t, stdout.String())
	}
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	s, err := parse(nil, new(bytes.Buffer))
	require.NoError(t, err)
	s.Seed = 0
	require.Equal(t, Settings{Messages: 1000, Workers: 3, Kills: 8}, s)
	s, err = parse([]string{"-redis", "localhost:6379"}, new(bytes.Buffer))
	require.NoError(t, err)
	require.Equal(t, "redis://localhost:6379", s.Redis)
}
