package models_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/models"
)

// shape describes every table of a database, one fact per line.
func shape(t *testing.T, db *gorm.DB) []string {
	t.Helper()
	if db.Dialector.Name() == "postgres" {
		return postgresShape(t, db)
	}
	return sqliteShape(t, db)
}

func postgresShape(t *testing.T, db *gorm.DB) []string {
	return lines(t, db, `
		SELECT format('%s column %s %s null=%s default=%s identity=%s', c.relname, a.attname,
			format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
		UNION ALL
		SELECT format('%s constraint %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
		FROM pg_constraint WHERE connamespace = 'public'::regnamespace
		UNION ALL
		SELECT format('%s index %s', tablename, indexdef) FROM pg_indexes WHERE schemaname = 'public'
		UNION ALL
		SELECT format('%s options %s', relname, array_to_string(reloptions, ','))
		FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND reloptions IS NOT NULL
		ORDER BY 1`)
}

// sqliteShape asks SQLite for the tables as it understood them. Only the text has index expressions
// and predicates.
func sqliteShape(t *testing.T, db *gorm.DB) []string {
	found := lines(t, db, `
		SELECT m.name || ' column ' || c.name || ' ' || lower(c.type) || ' null=' || (NOT c."notnull") ||
			' default=' || COALESCE(c.dflt_value, '-') || ' pk=' || c.pk
		FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'
		UNION ALL
		SELECT m.name || ' fk ' || f."from" || '->' || f."table" || '.' || f."to" || ' ' || f.on_delete || ' ' || f.on_update
		FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f WHERE m.type = 'table'
		UNION ALL
		SELECT m.name || ' index ' || i.name || ' unique=' || i."unique" || ' origin=' || i.origin || ' partial=' || i.partial ||
			' ' || (SELECT group_concat(COALESCE(x.name, '(expression)') || ':' || x."desc" || x.coll) FROM pragma_index_xinfo(i.name) x WHERE x.key)
		FROM sqlite_master m JOIN pragma_index_list(m.name) i WHERE m.type = 'table'
		ORDER BY 1`)
	noise := regexp.MustCompile("[`\"\\s]+|(?i)if not exists")
	for _, text := range lines(t, db,
		`SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name`) {
		found = append(found, strings.ToLower(noise.ReplaceAllString(text, "")))
	}
	return found
}

func lines(t *testing.T, db *gorm.DB, query string) []string {
	t.Helper()
	var found []string
	require.NoError(t, db.Raw(query).Scan(&found).Error)
	return found
}

// runSQL executes the plain files as psql or sqlite3 would: statement by statement, without
// Migrate.
func runSQL(t *testing.T, db *gorm.DB, naming models.Naming) {
	t.Helper()
	migrations, err := models.SQL(db.Dialector.Name(), naming)
	require.NoError(t, err)
	for _, migration := range migrations {
		for _, statement := range migration.Statements() {
			require.NoError(t, db.Exec(statement).Error, fmt.Sprintf("%s: %s", migration.Name, statement))
		}
	}
}
