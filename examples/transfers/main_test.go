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

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/examples/internal/scratchtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// dieVariable makes the workers end at once.
const dieVariable = "TRANSFERS_TEST_DIE"

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
	temporary := scratchtest.Temporary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &stdout, &stderr)
	require.Equal(t, balanced, status, "%s%s%s", stdout.String(), stderr.String(), scratchtest.Logs(temporary))
	scratchtest.RequireEmpty(t, temporary)
	return parseFigures(t, stdout.String())
}

// figureLines are the last of the output, in this order and nothing else.
var figureLines = regexp.MustCompile(`(?:^|\n)expected: (\d+)\neffects: (\d+)\nlost: (\d+)\ndoubled: (\d+)\nout_of_order: (\d+)\nkills: (\d+)\nreruns: (\d+)\n$`)

func parseFigures(t *testing.T, out string) map[string]int {
	t.Helper()
	found := figureLines.FindStringSubmatch(out)
	require.NotNil(t, found, "%s", out)
	figures := map[string]int{}
	for i, name := range []string{"expected", "effects", "lost", "doubled", "out_of_order", "kills", "reruns"} {
		value, err := strconv.Atoi(found[i+1])
		require.NoError(t, err)
		figures[name] = value
	}
	return figures
}

// requireWhole checks the figures that do not depend on chance.
func requireWhole(t *testing.T, got map[string]int, transfers, kills int) {
	t.Helper()
	reruns := got["reruns"]
	require.Equal(t, map[string]int{"expected": transfers, "effects": transfers, "lost": 0, "doubled": 0, "out_of_order": 0, "kills": kills, "reruns": reruns}, got)
	require.Positive(t, reruns, "some transfers fail at first, so the handler must have been called again")
}

func TestTransfersAreBookedOnceAndInOrderAlthoughWorkersAreKilled(t *testing.T) {
	for name, database := range map[string]func(t *testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"-postgres", testenv.PostgresDSN(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			args := append(database(t), "-transfers", "300", "-accounts", "20", "-kills", "2", "-seed", "3")
			requireWhole(t, figures(t, args...), 300, 2)
		})
	}
}

func TestTransfersAreBookedOneCommitEach(t *testing.T) {
	requireWhole(t, figures(t, "-transfers", "150", "-accounts", "20", "-workers", "2", "-kills", "0", "-group", "1", "-seed", "2"), 150, 0)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "examples", "./transfers", "-transfers", "300", "-kills", "1")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD=", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireWhole(t, parseFigures(t, string(out)), 300, 1)
}

func TestWorkerThatEndsByItselfFailsTheRun(t *testing.T) {
	scratchtest.Temporary(t)
	t.Setenv(dieVariable, "1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, unbalanced, run(t.Context(), []string{"-transfers", "20"}, &stdout, &stderr), "%s", stdout.String())
	require.Regexp(t, `worker-\d has ended by itself \(exit status 3\)`, stderr.String())
	require.Contains(t, stdout.String(), "kept:")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	temporary := scratchtest.Temporary(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var stderr bytes.Buffer
	require.Equal(t, unbalanced, run(ctx, nil, scratchtest.WhenWritten(func(line string) {
		if strings.HasPrefix(line, "accepted") && !strings.HasPrefix(line, "accepted 0 ") {
			cancel(errors.New("Ctrl-C"))
		}
	}), &stderr))
	require.Contains(t, stderr.String(), errInterrupted.Error())
	scratchtest.RequireEmpty(t, temporary)
}

func TestBadFlagsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"-transfers is 0, allowed is 1 to 1000000": {"-transfers", "0"},
		"-accounts is 1, allowed is 2 to 100000":   {"-accounts", "1"},
		"-workers is 0, allowed is 1 to 20":        {"-workers", "0"},
		"-kills is 51, allowed is 0 to 50":         {"-kills", "51"},
		"-group is 0, allowed is 1 to 100":         {"-group", "0"},
		`unknown argument "please"`:                {"please"},
		"flag provided but not defined: -sed":      {"-sed", "1"},
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
	require.Equal(t, Settings{Transfers: 10_000, Accounts: 100, Workers: 3, Kills: 5, Group: 10}, s)
}
