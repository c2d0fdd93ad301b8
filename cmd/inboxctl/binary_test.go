package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// build compiles the program without cgo, for users who have no C compiler.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "inboxctl")
	command := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

func TestProgramWorksWithoutC(t *testing.T) {
	program := build(t)
	for dialect, dsn := range map[string]string{"sqlite": testenv.SQLiteDSN(t), "postgres": testenv.PostgresDSN(t)} {
		t.Run(dialect, func(t *testing.T) {
			for _, args := range [][]string{{"migrate", "up", "--inbox", "test"}, {"status"}, {"audit", "-o", "json"}} {
				command := exec.CommandContext(t.Context(), program, args...)
				command.Env = []string{dsnVariable + "=" + dsn, actorVariable + "=alice"}
				out, err := command.CombinedOutput()
				require.NoError(t, err, "%v: %s", args, out)
			}
		})
	}
	command := exec.CommandContext(t.Context(), program, "nope")
	var exit *exec.ExitError
	require.ErrorAs(t, command.Run(), &exit)
	require.Equal(t, exitMisuse, exit.ExitCode())
	t.Run("Ctrl-C ends the dashboard", func(t *testing.T) { interruptDashboard(t, program) })
	t.Run("Ctrl-C", func(t *testing.T) { interruptBulk(t, program) })
}

func interruptDashboard(t *testing.T, program string) {
	dsn := testenv.SQLiteDSN(t)
	env := []string{dsnVariable + "=" + dsn, actorVariable + "=alice"}
	migrate := exec.CommandContext(t.Context(), program, "migrate", "up", "--inbox", "test")
	migrate.Env = env
	out, err := migrate.CombinedOutput()
	require.NoError(t, err, string(out))
	command := exec.CommandContext(t.Context(), program, "dashboard", "--listen", "127.0.0.1:0")
	command.Env = env
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	said := bufio.NewScanner(stdout)
	for said.Scan() && said.Text() != "Press Ctrl-C to stop it." {
	}
	require.NoError(t, said.Err())
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	require.NoError(t, command.Wait(), "its exit code is 0")
}

// interruptBulk blocks a chunk with a row lock, which SQLite does not have.
func interruptBulk(t *testing.T, program string) {
	dsn := testenv.PostgresDSN(t)
	r := newRig(t, &inboxtest.Database{Dialect: "postgres", DB: testenv.OpenPostgres(t, dsn)})
	r.poisoned("boom", "a", "b", "c")

	begin := func(t *testing.T) (command *exec.Cmd, said *bufio.Scanner, free func()) {
		held := r.d.DB.Begin()
		require.NoError(t, held.Error)
		t.Cleanup(func() { held.Rollback() }) // after a failure, so that the next test gets the rows
		require.NoError(t, held.Clauses(clause.Locking{Strength: "UPDATE"}).Find(&[]models.HandlerStatus{}, "handler_key = ?",
			failing).Error)
		command = exec.CommandContext(t.Context(), program, "retry", "--matching", "--handler", failing, "--yes", "--chunk",
			"1", "--timeout", "30s")
		command.Env = []string{dsnVariable + "=" + dsn, actorVariable + "=alice"}
		errOut, err := command.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		inboxtest.Eventually(t, func() bool { return waitsForALock(t, r.d.DB) }, "a chunk waits for the row")
		require.NoError(t, command.Process.Signal(syscall.SIGINT))
		said = bufio.NewScanner(errOut)
		for said.Scan() && !strings.Contains(said.Text(), "Stopping after the current chunk") {
		}
		require.NoError(t, said.Err())
		return command, said, func() { require.NoError(t, held.Rollback().Error) }
	}
	rest := func(said *bufio.Scanner) (lines []string) {
		for said.Scan() {
			lines = append(lines, said.Text())
		}
		return lines
	}
	left := func() (n int64) {
		require.NoError(t, r.d.DB.Model(&models.HandlerStatus{}).Where("is_poisoned").Count(&n).Error)
		return n
	}

	t.Run("a second one ends it at once", func(t *testing.T) {
		command, said, free := begin(t)
		require.NoError(t, command.Process.Signal(syscall.SIGINT))
		rest(said)
		err := command.Wait()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, syscall.SIGINT, exit.Sys().(syscall.WaitStatus).Signal())
		// The server rolls back when it notices that the client is gone. Terminating the session
		// makes it do so now.
		inboxtest.Exec(t, r.d.DB,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'inboxctl' AND datname = current_database()")
		inboxtest.Eventually(t, func() bool { return !waitsForALock(t, r.d.DB) }, "the chunk is undone")
		free()
		require.EqualValues(t, 3, left())
	})
	t.Run("one finishes the chunk", func(t *testing.T) {
		command, said, free := begin(t)
		free()
		require.Contains(t, strings.Join(rest(said), "\n"), "stopped: 1 of 3 retried; run the same command to continue")
		err := command.Wait()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, exitPartly, exit.ExitCode())
		require.EqualValues(t, 2, left())
	})
}

func waitsForALock(t *testing.T, db *gorm.DB) bool {
	t.Helper()
	var n int64
	require.NoError(t,
		db.Raw("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'inboxctl' AND wait_event_type = 'Lock' AND datname = current_database()").Scan(&n).Error)
	return n > 0
}
