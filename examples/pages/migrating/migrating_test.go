package migrating

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestEachMigrationMethodCreatesTheTables(t *testing.T) {
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
func TestTablesWithoutVersionAreAdopted(t *testing.T) {
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

func run(t *testing.T, db *gorm.DB, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, db.Exec(string(text)).Error)
}
