package gormstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/idempotenttest"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// doomed is the environment variable of a process that is to be killed. It has the dialect, the DSN
// and the message ID that the process runs.
const doomed = "GORMSTORE_TEST_DOOMED"

func TestMain(m *testing.M) {
	if os.Getenv(doomed) != "" {
		die()
	}
	// GORM never ends the goroutine of its cache of prepared statements.
	testenv.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// die runs a message, prints that it is within the body, and waits to be killed.
func die() {
	dialector := postgres.Open(os.Getenv(doomed + "_DSN"))
	if os.Getenv(doomed) == "mysql" {
		dialector = mysql.Open(os.Getenv(doomed + "_DSN"))
	}
	if os.Getenv(doomed) == "sqlite" {
		dialector = sqlite.Dialector{DriverName: "sqlite", DSN: os.Getenv(doomed + "_DSN")}
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		panic(err)
	}
	s, err := gormstore.New(db)
	if err != nil {
		panic(err)
	}
	key := idempotent.Key{MessageID: os.Getenv(doomed + "_ID"), HandlerKey: os.Getenv(doomed + "_KEY")}
	_, err = s.Run(context.Background(), idempotent.Run{Key: key, Retention: time.Hour}, func(ctx context.Context) error {
		if os.Getenv(doomed+"_EFFECT") != "" {
			if err := effect(key.MessageID, nil)(ctx); err != nil {
				return err
			}
		}
		fmt.Println("in the body")
		_, err := os.Stdin.Read(make([]byte, 1)) // until it is killed
		return err
	})
	panic(fmt.Sprint("it was not killed: ", err))
}

// crash runs the message in a process that is killed in its body.
func crash(t *testing.T, dialect, dsn string, r idempotent.Run, more ...string) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program)
	child.Env = append(append(os.Environ(), doomed+"="+dialect, doomed+"_DSN="+dsn, doomed+"_ID="+r.Key.MessageID, doomed+
		"_KEY="+r.Key.HandlerKey), more...)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "in the body\n", line)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
}

func conform(t *testing.T, dialect string, connect func(t *testing.T) (db *gorm.DB, dsn string)) {
	t.Parallel() // much of it waits
	idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
		db, dsn := connect(t)
		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, ""))
		own := struct{ clock.System }{} // a test's, for the suite looks into the future
		f := idempotenttest.Fixture{Store: open(t, db, func(o *gormstore.Options) { o.Clock = own }), Waits: 10 * time.Second}
		if dialect == "sqlite" {
			f.Notices = 9 * time.Second // after busy_timeout, and before LockTimeout
		}
		if dsn != "" {
			f.Crash = func(t *testing.T, r idempotent.Run) { crash(t, dialect, dsn, r) }
		}
		return f
	})
}

func TestConformanceOnPostgres(t *testing.T) {
	conform(t, "postgres", func(t *testing.T) (*gorm.DB, string) {
		dsn := testenv.PostgresDSN(t)
		return testenv.OpenPostgres(t, dsn), dsn
	})
}

// This is what GORM's own cache of prepared statements does.
func TestConformanceOnPostgresByPreparedStatements(t *testing.T) {
	conform(t, "postgres", func(t *testing.T) (*gorm.DB, string) {
		return testenv.Open(t, postgres.Open(testenv.PostgresDSN(t)), gorm.Config{PrepareStmt: true}), ""
	})
}

// This is how a client uses a transaction pooler, which keeps no prepared statements.
func TestConformanceOnPostgresBySimpleProtocol(t *testing.T) {
	conform(t, "postgres", func(t *testing.T) (*gorm.DB, string) {
		return testenv.Open(t, bySimpleProtocol(testenv.PostgresDSN(t)), gorm.Config{}), ""
	})
}

func TestConformanceOnSQLite(t *testing.T) {
	conform(t, "sqlite", func(t *testing.T) (*gorm.DB, string) {
		dsn := testenv.BusyTimeout(testenv.SQLiteDSN(t), 5*time.Second)
		return testenv.OpenSQLite(t, dsn), dsn
	})
}

// Without immediate transactions the marker, which is the first statement, waits for the write
// lock.
func TestConformanceOnSQLiteByDeferredTransactions(t *testing.T) {
	testenv.Long(t)
	conform(t, "sqlite", func(t *testing.T) (*gorm.DB, string) {
		dsn, _ := strings.CutSuffix(testenv.BusyTimeout(testenv.SQLiteDSN(t), 5*time.Second), "&_txlock=immediate")
		return testenv.OpenSQLite(t, dsn), dsn
	})
}

func TestProcessKilledInItsBodyLeavesNeitherMarkerNorEffect(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		for _, id := range []string{"1", "2"} {
			crash(t, d.Dialect, d.DSN(), run(id), doomed+"_EFFECT=1")
		}
		r.have()
		r.handled(r.store, "1")
		r.have("1")
	})
}
