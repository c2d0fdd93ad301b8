package models_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestMissingTablesNameTheInboxesThatAreThere proves contract 3.4: who has named a wrong schema or prefix reads which
// inboxes there are before anything about making one.
func TestMissingTablesNameTheInboxesThatAreThere(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		check := func(naming models.Naming) string {
			err := models.CheckTables(t.Context(), db, naming)
			require.ErrorIs(t, err, models.ErrSchemaMissing)
			before, create, found := strings.Cut(err.Error(), "Only for a new inbox: ")
			require.True(t, found, err)
			require.Contains(t, create, "migrate up")
			require.NotContains(t, before, "igrate")
			return before
		}
		text := check(models.Naming{Prefix: "in_"})
		require.Contains(t, text, `(table prefix "in_"): looked in `)
		require.Contains(t, text, map[string]string{"sqlite": "file /", "postgres": "(search path: public)"}[db.Name()])
		require.Contains(t, text, "It has no inbox at all. Is it the right database?")

		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{Prefix: "Shop_"}, "orders"))
		require.NoError(t, db.Exec(`CREATE TABLE other_handler_statuses (a int)`).Error)
		require.NoError(t, db.Exec(`CREATE TABLE other_meta (a int)`).Error)
		text = check(models.Naming{Prefix: "in_"})
		require.Regexp(t, `It has other inboxes: "orders" \((schema "public", )?table prefix "Shop_"\)\. Is one of these meant\?`, text)

		for i := range 12 {
			require.NoError(t, models.Migrate(t.Context(), db, models.Naming{Prefix: fmt.Sprintf("many_%02d_", i)}, "many"))
		}
		text = check(models.Naming{Prefix: "in_"})
		require.Contains(t, text, "many_08_")
		require.NotContains(t, text, "many_09_")
		require.Contains(t, text, ", more. Is one of these meant?")
	})
}

func TestMissingTablesNameInboxesOfOtherSchemas(t *testing.T) {
	db := testenv.Postgres(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{Schema: "billing"}, "billing"))
	err := models.CheckTables(t.Context(), db, models.Naming{Schema: "orders"})
	require.ErrorContains(t, err, `(schema "orders", table prefix "inbox_"): looked in database`)
	require.ErrorContains(t, err, `"billing" (schema "billing", table prefix "inbox_")`)

	const role = "inbox_test_elsewhere"
	require.NoError(t, db.Exec("DROP ROLE IF EXISTS "+role).Error)
	require.NoError(t, db.Exec("CREATE ROLE "+role).Error)
	t.Cleanup(func() { require.NoError(t, db.Exec("DROP ROLE "+role).Error) })
	require.NoError(t, db.Connection(func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("SET ROLE "+role).Error)
		defer tx.Exec("RESET ROLE")
		err = models.CheckTables(t.Context(), tx, models.Naming{Schema: "orders"})
		require.ErrorContains(t, err, `an inbox whose name this role may not read (schema "billing"`)
		return nil
	}))
}
