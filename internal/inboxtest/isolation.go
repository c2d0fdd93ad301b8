package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// UnstatedIsolation records from now on which statements change an inbox's tables on PostgreSQL at
// another isolation level than READ COMMITTED. The returned function lists them.
func UnstatedIsolation(t testing.TB, db *gorm.DB) (statements func() []string) {
	t.Helper()
	Exec(t, db, "CREATE TABLE unstated (level text, statement text)")
	Exec(t, db, `CREATE FUNCTION note_isolation() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('transaction_isolation') <> 'read committed' THEN
			INSERT INTO unstated VALUES (current_setting('transaction_isolation'), current_query());
		END IF;
		RETURN NULL;
	END $$`)
	Exec(t, db, `DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'inbox\_%' LOOP
			EXECUTE format('CREATE TRIGGER note_isolation AFTER INSERT OR UPDATE OR DELETE ON %I FOR EACH STATEMENT EXECUTE FUNCTION note_isolation()', name);
		END LOOP;
	END $$`)
	return func() (found []string) {
		require.NoError(t, db.Raw("SELECT DISTINCT level || ': ' || statement FROM unstated").Scan(&found).Error)
		return found
	}
}
