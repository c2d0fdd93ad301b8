package models_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// onEveryDialect runs a test with a function that makes fresh databases.
func onEveryDialect(t *testing.T, run func(t *testing.T, fresh func() *gorm.DB)) {
	t.Run("SQLite", func(t *testing.T) { run(t, func() *gorm.DB { return testenv.SQLite(t) }) })
	t.Run("PostgreSQL", func(t *testing.T) {
		_ = testenv.PostgresDSN(t) // without a server this whole test is skipped, and not only a subtest
		run(t, func() *gorm.DB { return testenv.Postgres(t) })
	})
}

// TestMigratePlainSQLAndAutoMigrateAgree proves contract 3.4: Migrate, the plain SQL and
// AutoMigrate make the same tables.
func TestMigratePlainSQLAndAutoMigrateAgree(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		migrated, plain, auto := fresh(), fresh(), fresh()
		require.NoError(t, models.Migrate(t.Context(), migrated, models.Naming{}, "orders"))
		runSQL(t, plain, models.Naming{})
		require.NoError(t, auto.AutoMigrate(models.All()...))

		expected := shape(t, migrated)
		require.Greater(t, len(expected), 60)
		require.Equal(t, expected, shape(t, plain))

		// GORM cannot express storage parameters. This is the only exception.
		exceptions := map[string]bool{"inbox_handler_statuses options fillfactor=40,autovacuum_vacuum_scale_factor=0.01,vacuum_index_cleanup=on": true}
		var comparable []string
		for _, fact := range expected {
			if !exceptions[fact] {
				comparable = append(comparable, fact)
			}
		}
		require.Equal(t, comparable, shape(t, auto))

		// A second AutoMigrate, and one over migrated tables, changes nothing.
		require.NoError(t, auto.AutoMigrate(models.All()...))
		require.Equal(t, comparable, shape(t, auto))
		require.NoError(t, migrated.AutoMigrate(models.All()...))
		require.Equal(t, expected, shape(t, migrated))
	})
}

func TestMigrateAdoptsExistingTables(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		for name, prepare := range map[string]func(*gorm.DB){
			"plain SQL":   func(db *gorm.DB) { runSQL(t, db, models.Naming{}) },
			"AutoMigrate": func(db *gorm.DB) { require.NoError(t, db.AutoMigrate(models.All()...)) },
			"Migrate":     func(db *gorm.DB) { require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders")) },
		} {
			db := fresh()
			prepare(db)
			before := shape(t, db)
			require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"), name)
			require.Equal(t, before, shape(t, db), name)
			require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"), name)
		}
	})
}

// TestFiveReplicasMigrateConcurrently proves contract 3.4: five replicas start at once.
func TestFiveReplicasMigrateConcurrently(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		for _, err := range racetest.Together(5, func(int) error {
			return models.Migrate(t.Context(), db, models.Naming{}, "orders")
		}) {
			require.NoError(t, err)
		}
		require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"))
	})
}

func TestMigrateIsAtomic(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		// It has the table's columns, and can have no index.
		require.NoError(t, db.Exec(`CREATE VIEW inbox_audit AS SELECT 1 AS id, 2 AS actor, 3 AS action, 4 AS target,
			5 AS detail, 6 AS occurred_at, 7 AS database_role`).Error)
		require.ErrorContains(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"), "0001_inbox.sql")
		require.False(t, db.Migrator().HasTable("inbox_messages"))
		require.NoError(t, db.Exec(`DROP VIEW inbox_audit`).Error)
		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"))
	})
}

func TestMigrateIsCancelledByItsContext(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		db := fresh()
		require.ErrorIs(t, models.Migrate(ctx, db, models.Naming{}, "orders"), context.Canceled)
		require.False(t, db.Migrator().HasTable("inbox_messages"))
	})
}

// TestCheckSchemaNamesTheProblemAndTheCommand proves contract 3.3, 3.4.
func TestCheckSchemaNamesTheProblemAndTheCommand(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		check := func(name string) error { return models.CheckSchema(t.Context(), db, models.Naming{}, name) }

		err := check("orders")
		require.ErrorIs(t, err, models.ErrSchemaMissing)
		require.ErrorContains(t, err, "set option Migrate")
		require.ErrorContains(t, err, `"inbox_"`)

		require.NoError(t, db.AutoMigrate(models.All()...))
		require.ErrorIs(t, check("orders"), models.ErrSchemaMissing, "tables without a version")

		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"))
		require.NoError(t, check("orders"))
		err = check("billing")
		require.ErrorIs(t, err, models.ErrOtherInbox)
		require.ErrorContains(t, err, "orders")
		require.ErrorContains(t, err, "billing")
		require.ErrorIs(t, models.Migrate(t.Context(), db, models.Naming{}, "billing"), models.ErrOtherInbox)
		require.ErrorIs(t, check(""), models.ErrOtherInbox)

		set := func(version string) {
			require.NoError(t, db.Model(&models.Meta{}).Where(`"key" = ?`, "schema_version").Update("value", version).Error)
		}
		set("0")
		require.ErrorIs(t, check("orders"), models.ErrSchemaMissing)
		set("99") // a newer replica has migrated already
		require.NoError(t, check("orders"))
		set("one")
		require.ErrorContains(t, check("orders"), `"one" in inbox_meta is not a number`)
	})
}

// Contract 3.4.
func TestTablesOfAnotherCommitAreRefused(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		naming := models.Naming{Prefix: "Shop_"}
		for name, change := range map[string]string{
			"another hash": `UPDATE "Shop_meta" SET "value" = '0' WHERE "key" = 'hash_0001'`,
			"no hash":      `DELETE FROM "Shop_meta" WHERE "key" = 'hash_0001'`,
			"no column":    `ALTER TABLE "Shop_handler_statuses" DROP COLUMN "attempts"`,
		} {
			db := fresh()
			require.NoError(t, models.Migrate(t.Context(), db, naming, "orders"))
			require.NoError(t, db.Exec(change).Error)
			runSQL(t, db, naming) // as the error suggests for tables that are missing
			for _, err := range []error{models.CheckSchema(t.Context(), db, naming, "orders"),
				models.CheckTables(t.Context(), db, naming), models.Migrate(t.Context(), db, naming, "orders")} {
				require.ErrorIs(t, err, models.ErrSchemaOld, name)
				require.ErrorContains(t, err, `(table prefix "Shop_")`)
				require.ErrorContains(t, err, "delete the rows schema_version and hash_0001 of Shop_meta")
			}
			if name == "no column" {
				require.ErrorContains(t, models.CheckTables(t.Context(), db, naming), "Shop_handler_statuses lacks attempts")
				continue
			}
			require.NoError(t, db.Exec(`DELETE FROM "Shop_meta" WHERE "key" IN ('schema_version', 'hash_0001')`).Error)
			require.NoError(t, models.Migrate(t.Context(), db, naming, "orders"), "once they are right")
			require.NoError(t, models.CheckSchema(t.Context(), db, naming, "orders"))
		}
	})
}

func TestStartNamesEveryMissingTable(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"))
		require.NoError(t, db.Migrator().DropTable("inbox_gaps", "inbox_audit"))
		for _, err := range []error{models.CheckSchema(t.Context(), db, models.Naming{}, "orders"),
			models.Migrate(t.Context(), db, models.Naming{}, "orders")} {
			require.ErrorIs(t, err, models.ErrSchemaMissing)
			require.ErrorContains(t, err, "there is no inbox_audit, inbox_gaps beside inbox_meta")
		}
		require.False(t, db.Migrator().HasTable("inbox_gaps"), "what it held is not silently replaced by nothing")
	})
}

// Contract 3.4.
func TestMigrateRefusesATableOfTheApplication(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		require.NoError(t, db.Exec(`CREATE TABLE "Inbox_messages" ("id" integer PRIMARY KEY, "number" integer, "subject" text)`).Error)
		if db.Dialector.Name() == "postgres" { // where names differ by case
			require.NoError(t, db.Exec(`ALTER TABLE "Inbox_messages" RENAME TO "inbox_messages"`).Error)
		}
		before := shape(t, db)
		err := models.Migrate(t.Context(), db, models.Naming{}, "orders")
		require.ErrorContains(t, err, "inbox_messages lacks namespace, transport_name, type")
		require.ErrorContains(t, err, "set option TablePrefix")
		require.Equal(t, before, shape(t, db))
		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{Prefix: "in_"}, "orders"))
	})
}

// CREATE TABLE creates in the first schema of the path, whatever the others have.
func TestMigrateIgnoresLaterSchemasOfTheSearchPath(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	first := testenv.OpenPostgres(t, dsn)
	require.NoError(t, first.Exec(`CREATE TABLE inbox_messages (id integer); CREATE SCHEMA mine`).Error)
	db := testenv.OpenPostgres(t, dsn+"&search_path=mine,public")
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"))
	require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"))
	require.NoError(t, models.Migrate(t.Context(), first, models.Naming{Schema: "mine"}, "orders"))

	require.NoError(t, first.Exec(`ALTER TABLE mine.inbox_meta SET SCHEMA public`).Error)
	require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"))
}

func TestMigrateFinishesTablesMadeByHand(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		migrations, err := models.SQL(fresh().Dialector.Name(), models.Naming{})
		require.NoError(t, err)
		statements := migrations[0].Statements()
		for _, ran := range []int{1, len(statements) / 2, len(statements) - 1} {
			db := fresh()
			for _, statement := range statements[:ran] {
				require.NoError(t, db.Exec(statement).Error)
			}
			require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"), ran)
			require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"), ran)
		}
	})
}

// Contract 3.4: tables of one commit have one hash, whatever they are called.
func TestHashOfTheTablesIsIndependentOfTheirNames(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		namings := []models.Naming{{}, {Prefix: "in_"}}
		if db.Dialector.Name() == "postgres" {
			namings = append(namings, models.Naming{Schema: "shop"})
		}
		hashes := map[string]bool{}
		for _, naming := range namings {
			require.NoError(t, models.Migrate(t.Context(), db, naming, "orders"))
			var row models.Meta
			require.NoError(t, db.Clauses(naming).Where(`"key" = ?`, "hash_0001").First(&row).Error)
			hashes[row.Value] = true
		}
		require.Len(t, hashes, 1)
	})
}

func TestPlainSQLIsNamedByTheFirstStart(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		runSQL(t, db, models.Naming{})
		require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, ""))
		require.NoError(t, models.CheckSchema(t.Context(), db, models.Naming{}, ""))
		require.ErrorIs(t, models.CheckSchema(t.Context(), db, models.Naming{}, "orders"), models.ErrOtherInbox)
	})
}

// TestInboxesUnderDifferentNamesShareADatabase proves contract 3.4: two inboxes share a database.
func TestInboxesUnderDifferentNamesShareADatabase(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		namings := []models.Naming{{}, {Prefix: "Billing_"}}
		if db.Dialector.Name() == "postgres" {
			namings = append(namings, models.Naming{Schema: "Shop"}, models.Naming{Schema: "user", Prefix: "order_"})
		}
		for i, naming := range namings {
			name := string(rune('a' + i))
			require.NoError(t, models.Migrate(t.Context(), db, naming, name))
			require.NoError(t, db.Table(naming.Handlers()).Create(&models.Handler{HandlerKey: name}).Error)
		}
		for i, naming := range namings {
			name := string(rune('a' + i))
			require.NoError(t, models.CheckSchema(t.Context(), db, naming, name))
			var keys []string
			require.NoError(t, db.Table(naming.Handlers()).Pluck("handler_key", &keys).Error)
			require.Equal(t, []string{name}, keys)
		}
	})
}

// Of a key of several columns GORM sorts by the table's first column, so ID must stay the first.
func TestFirstAndLastSortStatusesByID(t *testing.T) {
	db := testenv.SQLite(t)
	for order, find := range map[string]func(tx *gorm.DB) *gorm.DB{
		"`id`":      func(tx *gorm.DB) *gorm.DB { return tx.First(&models.HandlerStatus{}) },
		"`id` DESC": func(tx *gorm.DB) *gorm.DB { return tx.Last(&models.HandlerStatus{}) },
	} {
		require.Contains(t, db.ToSQL(find), " ORDER BY `inbox_handler_statuses`."+order+" LIMIT 1")
	}
}
