package demotest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Run is the method of a demo.Command.
type Run = func(ctx context.Context, args []string, stdout, stderr io.Writer) (status int)

// exitVariable makes the workers exit at once.
const exitVariable = "INBOX_EXAMPLE_TEST_EXIT"

// Main is the TestMain of an example: it lets the test binary be a worker too, since the parent
// starts its own program.
func Main(m *testing.M, main func()) {
	if demo.IsWorker() {
		if os.Getenv(exitVariable) != "" {
			os.Exit(3)
		}
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// Balances runs a command, whose ledger must balance and which must leave nothing behind, and
// returns what it printed.
func Balances(t *testing.T, run Run, args ...string) (out string) {
	t.Helper()
	temporary := Temporary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &stdout, &stderr)
	require.Equal(t, demo.Balanced, status, "%s%s%s", stdout.String(), stderr.String(), Logs(temporary))
	RequireEmpty(t, temporary)
	return stdout.String()
}

// GoRun runs an example as a reader would, who has Go but no C compiler, and returns what it
// printed. It must succeed and leave nothing behind.
func GoRun(t *testing.T, example string, args ...string) (out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	temporary := t.TempDir()
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "-C", "examples", "./" + example}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PWD=", "TMPDIR="+temporary)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s%s", &stdout, &stderr)
	left, err := filepath.Glob(filepath.Join(temporary, "inbox-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	return stdout.String()
}

// RequireExitNoticed fails unless a command whose workers exit at once fails, says so in words that
// match, and keeps their logs.
func RequireExitNoticed(t *testing.T, run Run, says string, args ...string) {
	t.Helper()
	Temporary(t)
	t.Setenv(exitVariable, "1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, demo.Unbalanced, run(t.Context(), args, &stdout, &stderr), "%s", &stdout)
	require.Regexp(t, says+` has ended by itself \(exit status 3\)`, stderr.String())
	require.Contains(t, stdout.String(), "kept:")
}

// RequireInterruptible interrupts a command when it has printed a line of which now is true. It
// fails unless the command fails and leaves nothing behind.
func RequireInterruptible(t *testing.T, run Run, now func(line string) bool, args ...string) {
	t.Helper()
	temporary := Temporary(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var stderr bytes.Buffer
	status := run(ctx, args, writerFunc(func(line string) {
		if now(line) {
			cancel(errors.New("Ctrl-C"))
		}
	}), &stderr)
	require.Equal(t, demo.Unbalanced, status)
	require.Contains(t, stderr.String(), "interrupted")
	RequireEmpty(t, temporary)
}

// writerFunc is an io.Writer.
type writerFunc func(text string)

// Write implements io.Writer.
func (w writerFunc) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}

// RequireRefused fails unless a command refuses each list of arguments with the message that is its
// key, and does nothing else.
func RequireRefused(t *testing.T, run Run, wrong map[string][]string) {
	t.Helper()
	for says, args := range wrong {
		var stdout, stderr bytes.Buffer
		require.Equal(t, demo.Misused, run(t.Context(), args, &stdout, &stderr), says)
		require.Contains(t, stderr.String(), says)
		require.Empty(t, stdout.String(), says)
	}
}
