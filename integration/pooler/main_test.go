// Package pooler proves that an inbox works through PgBouncer in transaction
// mode, where each transaction may run on another connection of the server.
package pooler

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pooled is a new database and the way to it through a pooler of its own.
func pooled(t *testing.T, options servers.PgBouncerOptions) (direct, through string) {
	t.Helper()
	direct = testenv.PostgresDSN(t)
	options.Server = direct
	pooler, err := servers.StartPgBouncer(options)
	switch {
	case err == nil:
	case os.Getenv(testenv.RequireVariable) == "1":
		t.Fatalf("a pooler of its own is required (%s=1): %v", testenv.RequireVariable, err)
	default:
		t.Skipf("LEFT OUT: a pooler of its own cannot be started: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, pooler.Close()) })
	return direct, pooler.DSN(direct)
}
