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

// dieVariable makes the service end at once.
const dieVariable = "QUICKSTART_TEST_DIE"

// TestMain lets the test binary be the service too: the parent starts the
// program it is itself.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		if os.Getenv(dieVariable) != "" {
			os.Exit(3)
		}
		RunService()
		return
	}
	goleak.VerifyTestMain(m)
}

// figures runs the program and returns what it printed at the end. Whatever
// it makes must be gone by then.
func figures(t *testing.T, args ...string) map[string]float64 {
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

var figureLine = regexp.MustCompile(`(?m)^([a-z_-]+): ([0-9.]+)$`)

func parseFigures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, match := range figureLine.FindAllStringSubmatch(out, -1) {
		value, err := strconv.ParseFloat(match[2], 64)
		require.NoError(t, err)
		require.NotContains(t, found, match[1], "printed twice")
		found[match[1]] = value
	}
	return found
}

// requireWhole checks the figures that do not depend on chance, of 300 records.
func requireWhole(t *testing.T, got map[string]float64, kills int) {
	t.Helper()
	want := map[string]float64{
		"produced": 300, "duplicates_sent": 30, "accepted": 264, "duplicates": 30, "rejected": 6,
		"completed_book-revenue": 262, "completed_notify-customer": 263, "poisoned": 3, "kills": float64(kills), "lost": 0, "doubled": 0,
	}
	for name, value := range want {
		require.Contains(t, got, name)
		require.Equal(t, value, got[name], name)
	}
	for _, name := range []string{"retried", "reruns", "seconds"} {
		require.Contains(t, got, name)
	}
	require.LessOrEqual(t, got["retried"], 12.0)
}

func TestLedgerBalances(t *testing.T) {
	got := figures(t, "-n", "300", "-seed", "1")
	requireWhole(t, got, 0)
	require.Equal(t, 12.0, got["retried"])
}

func TestLedgerBalancesAlthoughTheServiceIsKilled(t *testing.T) {
	requireWhole(t, figures(t, "-n", "300", "-crash", "2", "-seed", "2"), 2)
}

func TestLedgerBalancesOnRealServers(t *testing.T) {
	kafka := os.Getenv("INBOX_TEST_KAFKA")
	if kafka == "" {
		testenv.LeaveOut(t, "Kafka", "INBOX_TEST_KAFKA")
	}
	requireWhole(t, figures(t, "-n", "300", "-crash", "1", "-seed", "3", "-postgres", testenv.PostgresDSN(t), "-kafka", kafka), 1)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "examples", "./quickstart", "-n", "300", "-crash", "1")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireWhole(t, parseFigures(t, string(out)), 1)
}

func TestServiceThatEndsByItselfFailsTheRun(t *testing.T) {
	scratchtest.Temporary(t)
	t.Setenv(dieVariable, "1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, unbalanced, run(t.Context(), []string{"-n", "20"}, &stdout, &stderr), "%s", stdout.String())
	require.Contains(t, stderr.String(), "the service has ended by itself (exit status 3)")
	require.Contains(t, stdout.String(), "kept:")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	temporary := scratchtest.Temporary(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var stderr bytes.Buffer
	require.Equal(t, unbalanced, run(ctx, []string{"-n", "5000"}, scratchtest.WhenWritten(func(line string) {
		if strings.HasPrefix(line, "produced") && !strings.Contains(line, " accepted 0,") {
			cancel(errors.New("Ctrl-C"))
		}
	}), &stderr))
	require.Contains(t, stderr.String(), errInterrupted.Error())
	scratchtest.RequireEmpty(t, temporary)
}

func TestBadFlagsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"-n is 0, allowed is 1 or more":       {"-n", "0"},
		"-crash is -1, allowed is 0 to 50":    {"-crash", "-1"},
		"-crash is 51, allowed is 0 to 50":    {"-crash", "51"},
		`unknown argument "please"`:           {"please"},
		"flag provided but not defined: -sed": {"-sed", "1"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, misused, run(t.Context(), args, &stdout, &stderr))
		require.Contains(t, stderr.String(), want)
		require.Empty(t, stdout.String())
	}
}
