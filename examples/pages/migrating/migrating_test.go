package migrating

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestEachWayMakesTheTables(t *testing.T) {
	for name, make := range map[string]func(ctx context.Context, db *gorm.DB) error{
		"Migrate":     migrate,
		"AutoMigrate": autoMigrate,
		"plain SQL": func(ctx context.Context, db *gorm.DB) error {
			var text strings.Builder
			if err := printSQL(&text, db.Dialector.Name(), models.Naming{}); err != nil {
				return err
			}
			for _, statement := range (models.Migration{SQL: text.String()}).Statements() {
				if err := db.WithContext(ctx).Exec(statement).Error; err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			for dialect, db := range map[string]*gorm.DB{"SQLite": fxtest.OpenDB(t), "PostgreSQL": testenv.Postgres(t)} {
				t.Run(dialect, func(t *testing.T) {
					require.ErrorIs(t, check(t.Context(), db), models.ErrSchemaMissing)
					require.NoError(t, make(t.Context(), db))
					require.NoError(t, check(t.Context(), db))
					require.NoError(t, migrate(t.Context(), db), "it can be repeated")
				})
			}
		})
	}
}

// A tool that compares structure runs no INSERT: the version is noted after it.
func TestTablesWithoutTheVersionAreTakenOver(t *testing.T) {
	db := testenv.Postgres(t)
	var text strings.Builder
	require.NoError(t, printSQL(&text, "postgres", models.Naming{}))
	for _, statement := range (models.Migration{SQL: text.String()}).Statements() {
		if !strings.HasPrefix(statement, "INSERT") {
			require.NoError(t, db.Exec(statement).Error)
		}
	}
	require.ErrorIs(t, check(t.Context(), db), models.ErrSchemaMissing)
	require.NoError(t, migrate(t.Context(), db))
	require.NoError(t, check(t.Context(), db))
	run(t, db, "parameters.sql")
}

// The page's rights are enough for a running inbox, and no more than needed.
func TestAnInboxRunsWithTheRightsOfThePage(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	owner := testenv.OpenPostgres(t, dsn)
	require.NoError(t, models.Migrate(t.Context(), owner, naming, "orders"))
	address, err := url.Parse(dsn)
	require.NoError(t, err)
	role := "app_" + regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(strings.TrimPrefix(address.Path, "/"), "")
	require.NoError(t, owner.Exec(fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role)).Error)
	t.Cleanup(func() {
		owner := testenv.OpenPostgres(t, dsn)
		require.NoError(t, owner.Exec("DROP OWNED BY "+role).Error)
		require.NoError(t, owner.Exec("DROP ROLE "+role).Error)
	})
	grants, err := os.ReadFile("grants.sql")
	require.NoError(t, err)
	for _, statement := range strings.Split(strings.TrimSpace(string(grants)), "\n") {
		require.NoError(t, owner.Exec(strings.ReplaceAll(statement, "TO app;", "TO "+role+";")).Error)
	}
	address.User = url.UserPassword(role, "secret")
	app, err := gorm.Open(postgres.Open(address.String()), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := app.DB()
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })

	done := make(chan string, 1)
	ib, err := inbox.New("orders", app, inbox.Schema(naming.Schema), inbox.Retention(1), inbox.Channel("c", inbox.On("t",
		inbox.Func("h", func(_ context.Context, m inbox.Message[[]byte]) error { done <- m.ID; return nil }))))
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	_, err = ib.Accept(t.Context(), inbox.RawMessage{Channel: "c", Type: "t", ID: "1"})
	require.NoError(t, err)
	require.Equal(t, "1", <-done)
	require.NoError(t, ib.Stop(t.Context()))
	_, err = ib.Cleanup(t.Context())
	require.NoError(t, err)
	require.Error(t, app.Exec("DROP TABLE shop.inbox_audit").Error)
}

func run(t *testing.T, db *gorm.DB, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, db.Exec(string(text)).Error)
}
