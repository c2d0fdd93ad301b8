// Package programtest runs examples that are programs with servers of their own, until a signal ends them.
package programtest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// roleVariable makes the test binary the program.
const roleVariable = "INBOX_EXAMPLE_PROGRAM"

// Main is the TestMain of an example: it lets the test binary be the program, in
// a process of its own.
func Main(m *testing.M, main func()) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Database is an empty database on PostgreSQL with the rows, and their tables, that
// the program needs.
func Database(t *testing.T, rows ...any) (dsn string, db *gorm.DB) {
	t.Helper()
	dsn = testenv.PostgresDSN(t)
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	for _, row := range rows {
		require.NoError(t, db.AutoMigrate(row))
		require.NoError(t, db.Create(row).Error)
	}
	return dsn, db
}

// Start runs the program; out gets what it prints. To stop tells it to end, and
// the test fails unless it does so in good order.
func Start(t *testing.T, out io.Writer, dsn string, brokers []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), roleVariable+"=yes", "DATABASE_URL="+dsn, "KAFKA_BROKERS="+strings.Join(brokers, ","))
	cmd.Stdout, cmd.Stderr = out, t.Output() // the latter is shown if the test fails
	require.NoError(t, cmd.Start())
	return func() {
		t.Helper()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}
}
