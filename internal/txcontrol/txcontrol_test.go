package txcontrol_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the "sqlite" driver

	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
	"github.com/gorm-inbox/inbox/internal/txcontrol"
)

var (
	postgres = pgdialect.Dialect.Syntax
	sqlite   = sqlitedialect.Dialect.Syntax
	mysql    = mysqldialect.Dialect.Syntax
	both     = []*txcontrol.Syntax{postgres, sqlite}
)

func boundaries(text string, dialect *txcontrol.Syntax) (found []string) {
	for _, c := range dialect.Find(text) {
		if c.Kind == txcontrol.Boundary {
			found = append(found, c.Words)
		}
	}
	return found
}

func TestTransactionBoundariesAreFound(t *testing.T) {
	for _, text := range []string{
		"COMMIT", "commit", " \t\r\n\fCoMmIt ; ", "COMMIT WORK", "COMMIT AND CHAIN", "END", "END TRANSACTION", "ROLLBACK",
		"rollback;", "ROLLBACK WORK",
		"ROLLBACK TRANSACTION", "ABORT", "BEGIN", "BEGIN IMMEDIATE", "START TRANSACTION", "PREPARE TRANSACTION 'x'",
		"prepare\n--\ntransaction 'x'",
		"-- comment\nCOMMIT", "/* comment */COMMIT", "/* ; */ ; COMMIT", ";;COMMIT", "SELECT 1;COMMIT",
		"SELECT 'it''s';COMMIT", `SELECT ";";COMMIT`,
		"SELECT 1 -- ;\n;COMMIT", "SAVEPOINT a; ROLLBACK", "ROLLBACK TO a; ROLLBACK",
		"SELECT CASE WHEN true THEN 1 END; COMMIT", "COMMIT--", "COMMIT/* */",
		"CREATE TABLE trigger_log (a int); COMMIT",
	} {
		for _, dialect := range both {
			require.Len(t, boundaries(text, dialect), 1, "%q", text)
		}
	}
	for text, dialect := range map[string]*txcontrol.Syntax{
		"/* /* nested */ */ COMMIT":          postgres,
		"/* /* not nested */ COMMIT":         sqlite,
		`SELECT E'\'; COMMIT; --'; COMMIT`:   postgres,
		"SELECT '\\'; COMMIT":                sqlite,
		"SELECT $$;$$; COMMIT":               postgres,
		"SELECT $a$ $b$ ; $a$; COMMIT":       postgres,
		"SELECT a$$; COMMIT; SELECT b$$":     postgres,
		"SELECT $1; COMMIT":                  postgres,
		"SELECT [;]; COMMIT":                 sqlite,
		"SELECT `;`; COMMIT":                 sqlite,
		"SELECT 1 -- comment\r;COMMIT":       postgres,
		"\uFEFFCOMMIT":                       sqlite,
		"DO $$ BEGIN NULL; END $$; COMMIT":   postgres,
		"SELECT 1e'x\\'; COMMIT; --'; ABORT": postgres,
		"CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; SELECT 1; END; COMMIT":      sqlite,
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; COMMIT": postgres,
		"CREATE OR REPLACE PROCEDURE p() LANGUAGE sql BEGIN ATOMIC SELECT 1; END; COMMIT":                      postgres,
		"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$; COMMIT":                  postgres,
		"CREATE TEMP TRIGGER IF NOT EXISTS begin AFTER INSERT ON t BEGIN SELECT 1; END; COMMIT":                sqlite,
	} {
		require.Len(t, boundaries(text, dialect), 1, "%q", text)
	}
}

func TestStatementsThatCommitImplicitlyAreFoundOnMySQL(t *testing.T) {
	for _, text := range []string{
		"COMMIT", "begin", "START TRANSACTION", "ROLLBACK", "ROLLBACK AND CHAIN", "XA END 'x'", "SET autocommit = 1",
		"CREATE TABLE t (a int)", "create unique index i on t (a)", "CREATE OR REPLACE VIEW v AS SELECT 1", "CREATE AGGREGATE FUNCTION f",
		"DROP TABLES t", "DROP TABLE IF EXISTS t", "ALTER TABLE t ADD b int", "RENAME TABLE t TO u", "TRUNCATE t", "GRANT ALL ON a.* TO b",
		"LOCK TABLES t READ", "UNLOCK TABLES", "ANALYZE TABLE t", "OPTIMIZE TABLE t", "REPAIR TABLE t", "CHECK TABLE t", "FLUSH TABLES",
		"SET PASSWORD = 'x'", "USE other", "CALL p()", "call other.p(1)", "SET @@autocommit = 1", "SET SESSION autocommit = ON", "SET @@session.autocommit = 1",
		"SET @a = 1, @b = 2, @c = 3, @d = 4, @e = 5, `autocommit` = 1", "EXECUTE IMMEDIATE 'COMMIT'", "EXECUTE s",
		"SET STATEMENT max_statement_time = 1 FOR CREATE TABLE t (a int)",
		"BEGIN NOT ATOMIC COMMIT; END", "IF 1 THEN COMMIT; END IF", "a: LOOP COMMIT; LEAVE a; END LOOP",
		"# comment\nCOMMIT", "-- comment\nCOMMIT", "/* comment */ COMMIT", "#\n#\nDROP TABLE t",
		"/*! COMMIT */", "/*!50000COMMIT*/", "/*!80000 COMMIT */", "/*M! COMMIT */", "/*M!100100 COMMIT*/", "/*!*/ COMMIT", "/*! DROP */ TABLE t",
		"DROP /*! TABLE */ t", "/* a *//*! COMMIT */", "SELECT 1 /*! ; COMMIT */", "SELECT 1; /*!50000 COMMIT */",
		"SELECT 1 /*!99999 ' */; COMMIT", "SELECT 1 /*M!999999 /* */; COMMIT",
		`SELECT 'it\'s'; COMMIT`, `SELECT "\""; COMMIT`, `SELECT '\\'; COMMIT`, "SELECT `\\`; COMMIT", "SELECT 'a''b'; COMMIT",
		"SELECT 1 # '\n; COMMIT", "SELECT 1 -- '\n; COMMIT", "SELECT 2--1; COMMIT", "SELECT 2--'; COMMIT;' ; COMMIT",
	} {
		require.NotEmpty(t, boundaries(text, mysql), "%q", text)
	}
	for _, text := range []string{
		"SELECT 1", "INSERT INTO t VALUES ('; COMMIT')", `SELECT '\'; COMMIT'`, `SELECT "\"; COMMIT"`, "SELECT `; COMMIT`",
		"SELECT 1 # ; COMMIT", "# COMMIT", "SELECT 1 -- ; COMMIT", "/* ; COMMIT */ SELECT 1", "/*+ ; */ SELECT 1",
		"SELECT /*+ MAX_EXECUTION_TIME(1) */ 1", "SELECT /*! STRAIGHT_JOIN */ 1 FROM t", "INSERT /*!50000 INTO */ t VALUES (1)",
		"CREATE TEMPORARY TABLE t (a int)", "DROP TEMPORARY TABLE t", "DROP PREPARE s", "SET @a = 1", "SET NAMES utf8mb4", "SELECT used, called FROM t",
		"SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK WORK TO SAVEPOINT a", "RELEASE SAVEPOINT a", "UPDATE t SET autocommit = 1",
		"EXPLAIN SELECT 1", "SHOW CREATE TABLE t", "SELECT dropped, created FROM t", "REPLACE INTO t VALUES (1)", "DO SLEEP(0)",
	} {
		require.Empty(t, boundaries(text, mysql), "%q", text)
	}
}

func TestOtherStatementsAreNotReported(t *testing.T) {
	for _, text := range []string{
		"", ";", "SELECT 1", "INSERT INTO t VALUES ('; COMMIT')", `SELECT "; COMMIT"`, "-- ; COMMIT", "/* ; COMMIT */",
		"SELECT ';' -- '\n; SELECT 'COMMIT'",
		"SAVEPOINT a", "SAVEPOINT commit", "RELEASE a", "RELEASE SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a",
		"rollback transaction to savepoint a",
		"UPDATE t SET begin = 1", "SELECT commit FROM t", "EXPLAIN COMMIT", "PREPARE p AS SELECT 1", "committed",
		"END_OF_DAY", "DELETE FROM t; SELECT 1", `"COMMIT"`,
		"INSERT INTO t VALUES ('unterminated; COMMIT",
	} {
		for _, dialect := range both {
			require.Empty(t, boundaries(text, dialect), "%q", text)
		}
	}
	for text, dialect := range map[string]*txcontrol.Syntax{
		"SELECT $$; COMMIT; $$":                                  postgres,
		"SELECT $q$; COMMIT; $$ ; $q$":                           postgres,
		`SELECT E'\'; COMMIT; --'`:                               postgres,
		`SELECT e'\\''; COMMIT; --'`:                             postgres,
		"/* /* ; */ ; COMMIT */":                                 postgres,
		"DO $$ BEGIN COMMIT; END $$":                             postgres,
		"SELECT [; COMMIT]":                                      sqlite,
		"SELECT `; COMMIT`":                                      sqlite,
		"CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 1; END": sqlite,
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC; END":      postgres,
	} {
		require.Empty(t, boundaries(text, dialect), "%q", text)
	}
}

func TestSavepointsAreNamed(t *testing.T) {
	for _, dialect := range both {
		require.Equal(t, []txcontrol.Control{
			{Kind: txcontrol.Savepoint, Words: "SAVEPOINT A", Name: "A"},
			{Kind: txcontrol.RollbackTo, Words: "ROLLBACK TO", Name: "A"},
			{Kind: txcontrol.RollbackTo, Words: "ROLLBACK TRANSACTION", Name: "A"},
			{Kind: txcontrol.Release, Words: "RELEASE SAVEPOINT", Name: "A"},
			{Kind: txcontrol.Release, Words: `RELEASE "b"`, Name: "b"},
		}, dialect.Find(`savepoint a; SELECT 1; rollback to savepoint a; ROLLBACK TRANSACTION TO a; release savepoint a; RELEASE "b"`))
	}
}

func sets(text string, dialect *txcontrol.Syntax) bool {
	return slices.ContainsFunc(dialect.Find(text), func(c txcontrol.Control) bool { return c.Kind == txcontrol.Setting })
}

func TestSettingStatementsAreFound(t *testing.T) {
	for _, text := range []string{
		"SET LOCAL ROLE a", " set search_path = a", "-- why\nRESET ROLE", "SELECT 1; SET CONSTRAINTS ALL DEFERRED", "reset all;",
		"SET TRANSACTION READ ONLY", "DO $$ BEGIN END $$", "CALL p()", "SELECT set_config('a.b', 'c', true)",
		"WITH x AS (SELECT pg_catalog.SET_CONFIG($1, $2, true)) SELECT 1 FROM x", `SELECT "set_config"('a.b', 'c', true)`,
		"INSERT INTO a_b_c VALUES (_set_config('', '', true))", "set_config",
	} {
		require.True(t, sets(text, postgres), "%q", text)
		require.False(t, sets(text, sqlite), "%q: it has no such settings", text)
	}
	for _, text := range []string{
		"", ";", "_", "SELECT 1", "UPDATE t SET role = 1", "settle", "SELECT 'x; SET ROLE a'", "INSERT INTO set_conf VALUES (1)",
		"INSERT INTO t VALUES ($1) ON CONFLICT DO UPDATE SET a = 1; SELECT 2", "SAVEPOINT a_b; ROLLBACK TO SAVEPOINT a_b", "et_config",
		"SELECT current_setting('a.b')", `SELECT $$;SET$$; SELECT ";SET"`,
	} {
		require.False(t, sets(text, postgres), "%q", text)
	}
}

// FuzzTransactionEndsAreFound asks SQLite itself which texts end or begin a transaction,
// and checks that each one is found.
func FuzzTransactionEndsAreFound(f *testing.F) {
	for _, text := range []string{
		"COMMIT", "SELECT 1;END", "/*/*;*/ROLLBACK", "-- \r;\nCOMMIT", "SELECT '''';COMMIT", "SELECT [']'];COMMIT",
		"\uFEFFCOMMIT", "SELECT \"\"\"\";ROLLBACK",
		"CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END; COMMIT",
		"CREATE TRIGGER begin AFTER INSERT ON t BEGIN SELECT 1; END; COMMIT", "SAVEPOINT a; ROLLBACK TO a",
		"ROLLBACK TRANSACTION TO a", "SELECT $a$;COMMIT;$a$", "SELECT e'\\';COMMIT",
	} {
		f.Add(text)
	}
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, db.Close()) })
	f.Fuzz(func(t *testing.T, text string) {
		for _, dialect := range both {
			for _, c := range dialect.Find(text) {
				require.NotEmpty(t, c.Words)
			}
		}
		upper := strings.ToUpper(text)
		for _, other := range []string{"ATTACH", "PRAGMA", "VACUUM", "\x00", "RAISE"} {
			if strings.Contains(upper, other) {
				t.Skip("reaches beyond the transaction, or is cut off")
			}
		}
		if strings.Contains(upper, "OR") && strings.Contains(upper, "ROLLBACK") || strings.Contains(upper, "CONFLICT") {
			t.Skip("a constraint may roll back")
		}
		ctx := context.Background()
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "BEGIN")
		require.NoError(t, err)
		_, _ = conn.ExecContext(ctx, text)
		_, still := conn.ExecContext(ctx, "BEGIN") // refused inside a transaction
		_, err = conn.ExecContext(ctx, "ROLLBACK")
		require.NoError(t, err)
		if still == nil {
			require.NotEmpty(t, boundaries(text, sqlite), "it has ended the transaction")
		}
	})
}

func BenchmarkFind(b *testing.B) {
	text := "INSERT INTO orders (id, customer, total, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING id"
	for b.Loop() {
		_ = postgres.Find(text)
	}
}
