package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// granted is an inbox under names of its own. Its roles have the rights that the printed script
// grants.
type granted struct {
	t                                          *testing.T
	owner, application, operator, reader, lena string // DSNs
	lenasRole                                  string
}

func newGranted(t *testing.T) granted {
	dsn := testenv.PostgresDSN(t)
	owner, asOwner := testenv.Role(t, dsn)
	application, asApplication := testenv.Role(t, dsn)
	operator, asOperator := testenv.Role(t, dsn)
	reader, asReader := testenv.Role(t, dsn)
	lena, asLena := testenv.Role(t, dsn) // an operator with a login of her own
	testenv.Grant(t, dsn, operator, lena)
	// Lena's sessions act as the operator role. The audit names her login.
	testenv.Run(t, dsn, fmt.Sprintf("ALTER ROLE %s SET role = %s", lena, operator))
	testenv.Run(t, dsn, "CREATE SCHEMA orders AUTHORIZATION "+owner)
	g := granted{t, asOwner, asApplication, asOperator, asReader, asLena, lena}
	require.Zero(t, g.run(asOwner, "migrate", "up", "--inbox", "test").code)
	for range 2 { // the script may be run repeatedly
		printed := runWith(t, t.Context(), nil, "", "grants", "--schema", "orders", "--prefix", "in_",
			"--application", application, "--operator", operator, "--reader", reader)
		require.Zero(t, printed.code, printed.errOut)
		testenv.Run(t, asOwner, printed.out)
	}
	return g
}

// run runs a command as a role.
func (g granted) run(as string, args ...string) result {
	g.t.Helper()
	return runWith(g.t, g.t.Context(), map[string]string{dsnVariable: as, schemaVariable: "orders", prefixVariable: "in_",
		actorVariable: "alice"}, "", args...)
}

func (g granted) done(as string, args ...string) result {
	g.t.Helper()
	out := g.run(as, args...)
	require.Zero(g.t, out.code, "%v: %s", args, out.errOut)
	return out
}

// refused runs a command that must fail for lack of rights.
func (g granted) refused(as string, args ...string) {
	g.t.Helper()
	out := g.run(as, args...)
	require.Equal(g.t, exitFailed, out.code, "%v: %s", args, out.out)
	require.Contains(g.t, out.errOut, "permission denied", "%v", args)
}

func TestGrantsSufficeForEachRole(t *testing.T) {
	t.Parallel()
	g := newGranted(t)
	poisons := func(_ context.Context, m inboxtest.Bytes) error {
		if m.ID != "fine" {
			return handler.Poison(errors.New("boom"))
		}
		return nil
	}
	ib, err := inbox.New("test", testenv.OpenPostgres(t, g.application), inboxtest.Brisk(),
		inbox.Configure(func(o *inbox.Options) {
			o.Schema = "orders"
			o.TablePrefix = "in_"
		}),
		inboxtest.Handlers(inboxtest.Do(failing, poisons, handler.LegacyKeys("before")),
			inboxtest.Tx(fine, func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil })))
	require.NoError(t, err)
	end := inboxtest.Start(t, ib)
	inboxtest.Accept(t, ib, "fine", "a", "b", "c")
	var poisoned []models.HandlerStatus
	inboxtest.Eventually(t, func() bool {
		require.NoError(t, ib.DB().Clauses(ib.Tables()).Where("is_poisoned").Order("message_id").Find(&poisoned).Error)
		return len(poisoned) == 3
	}, "three messages are poisoned")
	require.NoError(t, ib.Pause(t.Context(), fine))
	require.NoError(t, ib.Resume(t.Context(), fine))
	end()
	_, err = ib.Cleanup(t.Context())
	require.NoError(t, err)

	record := "00000000-0000-7000-8000-000000000001"
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Create(&models.RejectedMessage{ID: record, Channel: "c",
		Topic: "orders", Timestamp: inboxtest.Noon,
		Value: []byte("x"), Headers: "[]", Reason: "bad", RejectedAt: inboxtest.Noon}).Error)

	for _, args := range [][]string{{"status"}, {"list"}, {"failures"}, {"handlers"}, {"handler", failing}, {"workers"}, {"locks"}, {"gaps"},
		{"markers", "a"}, {"audit"}, {"migrate", "status"}} {
		g.done(g.reader, args...)
		g.done(g.operator, args...)
	}
	for _, args := range [][]string{
		{"show", "a"}, {"rejected", "list"}, {"rejected", "show", record},
		{"rejected", "accept", record}, {"rejected", "delete", record, "--confirm", record}, {"pause", failing}, {"resume", failing},
		{"retry", poisoned[0].ID}, {"delete", "b", "--confirm", "b"}, {"discard", poisoned[2].ID},
		{"cleanup", "--retention", "30d", "--yes"},
	} {
		g.refused(g.reader, args...)
		g.done(g.operator, args...)
	}
	g.refused(g.operator, "migrate", "up", "--inbox", "test", "--prefix", "others_")

	g.done(g.lena, "show", "a", "--actor", "somebody else")
	require.Contains(t, g.done(g.reader, "audit", "--limit", "1").out, g.lenasRole, "the row names the login")
}

func TestRolesCanDoNothingBeyondTheirGrants(t *testing.T) {
	t.Parallel()
	g := newGranted(t)
	audit := `INSERT INTO orders.in_audit (id, actor, action, target, detail, occurred_at) VALUES (gen_random_uuid(), 'eve', 'view', 'x', '{}', now())`
	for as, statements := range map[string][]string{
		g.application: {`UPDATE orders.in_messages SET content = ''`, `UPDATE orders.in_meta SET value = ''`,
			`UPDATE orders.in_rejected_messages SET value = ''`},
		g.operator: {`INSERT INTO orders.in_messages (id) VALUES ('m')`, `UPDATE orders.in_messages SET content = ''`,
			`INSERT INTO orders.in_handler_statuses (id) VALUES (NULL)`,
			`UPDATE orders.in_workers SET pid = 1`, `DELETE FROM orders.in_markers`,
			`UPDATE orders.in_rejected_messages SET reason = ''`},
		g.reader: {`SELECT content FROM orders.in_messages`, `SELECT serialized_properties FROM orders.in_messages`,
			`SELECT ordering_key FROM orders.in_messages`,
			`SELECT key FROM orders.in_rejected_messages`, `SELECT value FROM orders.in_rejected_messages`,
			`SELECT headers FROM orders.in_rejected_messages`,
			audit, `DELETE FROM orders.in_messages`, `UPDATE orders.in_handlers SET paused = true`,
			`DELETE FROM orders.in_locks`},
	} {
		db := testenv.OpenPostgres(t, as)
		for _, table := range []string{"messages", "handler_statuses", "rejected_messages", "gaps", "locks", "workers",
			"handlers", "markers", "audit", "meta"} {
			statements = append(statements, fmt.Sprintf(`TRUNCATE orders.in_%s CASCADE`, table),
				fmt.Sprintf(`DROP TABLE orders.in_%s`, table),
				fmt.Sprintf(`ALTER TABLE orders.in_%s ADD COLUMN x int`, table))
		}
		for _, statement := range append(statements, `UPDATE orders.in_audit SET actor = 'bob'`,
			`DELETE FROM orders.in_audit`, `CREATE TABLE orders.x (a int)`) {
			var refused *pgconn.PgError
			require.ErrorAs(t, db.Exec(statement).Error, &refused, statement)
			require.Equal(t, "42501", refused.Code, statement)
		}
	}
}

// grantedOnMySQL makes an inbox under names of its own on the server that a variable names, and DSNs of accounts with
// the rights that the printed script grants.
func grantedOnMySQL(t *testing.T, variable string) (
	tables models.Naming, application string, run func(as string, args ...string) result, operator, reader string,
) {
	t.Helper()
	owner := testenv.MySQLDSN(t, variable)
	tables = models.Naming{Schema: "inbox_" + strings.ReplaceAll(uuid.NewString(), "-", ""), Prefix: "in_"}
	t.Cleanup(func() { require.NoError(t, testenv.RunMySQL(owner, "DROP DATABASE IF EXISTS "+tables.Schema)) })
	run = func(as string, args ...string) result {
		return runWith(t, t.Context(), map[string]string{dsnVariable: as, schemaVariable: tables.Schema, prefixVariable: "in_",
			actorVariable: "alice"}, "", args...)
	}
	out := run(owner, "migrate", "up", "--inbox", "test")
	require.Zero(t, out.code, out.errOut)
	at := func(dsn string) string { // accounts need a database to connect to: that of the tables
		dsn, err := testenv.OnMySQLDatabase(dsn, tables.Schema)
		require.NoError(t, err)
		return dsn
	}
	app, application := testenv.MySQLAccount(t, owner)
	ops, operator := testenv.MySQLAccount(t, owner)
	read, reader := testenv.MySQLAccount(t, owner)
	for range 2 { // the script may be run repeatedly
		printed := runWith(t, t.Context(), nil, "", "grants", "--dialect", "mysql", "--schema", tables.Schema, "--prefix", "in_",
			"--application", app, "--operator", ops, "--reader", read+"@%")
		require.Zero(t, printed.code, printed.errOut)
		require.NoError(t, testenv.RunMySQL(owner, (models.Migration{SQL: printed.out}).Statements()...))
	}
	return tables, at(application), run, at(operator), at(reader)
}

func TestGrantsSufficeForEachAccountOfMySQL(t *testing.T) {
	for name, variable := range map[string]string{"MariaDB": testenv.MariaDBVariable, "MySQL": testenv.MySQLVariable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkGrantsSufficeForEachAccount(t, variable)
		})
	}
}

func checkGrantsSufficeForEachAccount(t *testing.T, variable string) {
	tables, application, run, operator, reader := grantedOnMySQL(t, variable)
	done := func(as string, args ...string) result {
		t.Helper()
		out := run(as, args...)
		require.Zero(t, out.code, "%v: %s", args, out.errOut)
		return out
	}
	refused := func(as string, args ...string) {
		t.Helper()
		out := run(as, args...)
		require.Equal(t, exitFailed, out.code, "%v: %s", args, out.out)
		require.Contains(t, out.errOut, "denied", "%v", args)
	}
	poisons := func(_ context.Context, m inboxtest.Bytes) error {
		if m.ID != "fine" {
			return handler.Poison(errors.New("boom"))
		}
		return nil
	}
	ib, err := inbox.New("test", testenv.OpenMySQL(t, application), inboxtest.Brisk(),
		inbox.Configure(func(o *inbox.Options) { o.Schema, o.TablePrefix = tables.Schema, tables.Prefix }),
		inboxtest.Handlers(inboxtest.Do(failing, poisons, handler.LegacyKeys("before")),
			inboxtest.Tx(fine, func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil })))
	require.NoError(t, err)
	end := inboxtest.Start(t, ib)
	inboxtest.Accept(t, ib, "fine", "a", "b", "c")
	inboxtest.Accept(t, ib, "fine", "a") // duplicates
	var poisoned []models.HandlerStatus
	inboxtest.Eventually(t, func() bool {
		require.NoError(t, ib.DB().Clauses(ib.Tables()).Where("is_poisoned").Order("message_id").Find(&poisoned).Error)
		return len(poisoned) == 3
	}, "three messages are poisoned")
	require.NoError(t, ib.Pause(t.Context(), fine))
	require.NoError(t, ib.Resume(t.Context(), fine))
	end()
	_, err = ib.Cleanup(t.Context())
	require.NoError(t, err)

	record := "00000000-0000-7000-8000-000000000001"
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Create(&models.RejectedMessage{ID: record, Channel: "c",
		Topic: "orders", Timestamp: inboxtest.Noon,
		Value: []byte("x"), Headers: "[]", Reason: "bad", RejectedAt: inboxtest.Noon}).Error)
	for _, args := range [][]string{{"status"}, {"list"}, {"failures"}, {"handlers"}, {"handler", failing}, {"workers"}, {"locks"},
		{"gaps"}, {"markers", "a"}, {"audit"}, {"migrate", "status"}} {
		done(reader, args...)
		done(operator, args...)
	}
	for _, args := range [][]string{
		{"show", "a"}, {"rejected", "list"}, {"rejected", "show", record},
		{"rejected", "accept", record}, {"rejected", "delete", record, "--confirm", record}, {"pause", failing}, {"resume", failing},
		{"retry", poisoned[0].ID}, {"delete", "b", "--confirm", "b"}, {"discard", poisoned[2].ID},
		{"cleanup", "--retention", "30d", "--yes"},
	} {
		refused(reader, args...)
		done(operator, args...)
	}
	refused(operator, "migrate", "up", "--inbox", "test", "--prefix", "others_")

	messages := tables.Schema + ".in_messages"
	for as, statements := range map[string][]string{
		application: {"UPDATE " + messages + " SET content = ''", "UPDATE " + tables.Schema + ".in_meta SET value = ''"},
		operator:    {"INSERT INTO " + messages + " (id) VALUES ('m')", "UPDATE " + messages + " SET content = ''"},
		reader:      {"SELECT content FROM " + messages, "DELETE FROM " + messages},
	} {
		db := testenv.OpenMySQL(t, as)
		for _, statement := range append(statements, "UPDATE "+tables.Schema+".in_audit SET actor = 'bob'",
			"DELETE FROM "+tables.Schema+".in_audit", "TRUNCATE "+messages, "DROP TABLE "+messages,
			"ALTER TABLE "+messages+" ADD COLUMN x int", "CREATE TABLE "+tables.Schema+".x (a int)") {
			require.ErrorContains(t, db.Exec(statement).Error, "denied", statement)
		}
	}
}

func TestGrantsNameRoles(t *testing.T) {
	for _, args := range [][]string{{"grants", "--dialect", "sqlite", "--reader", "r"}, {"grants", "--dialect", "mysql"},
		{"grants", "--dialect", "mysql", "--reader", "@%"}, {"grants"}, {"grants", "--application", "public"},
		{"grants", "--reader", "r", "--schema", "a b"}} {
		require.Equal(t, exitMisuse, runWith(t, t.Context(), nil, "", args...).code, "%v", args)
	}
}

func TestGrantsAreOfTheDatabaseThatTheDSNNames(t *testing.T) {
	for dsn, quote := range map[string]string{"": `"`, "postgres://h/d": `"`, "u@tcp(h)/d": "`"} {
		printed := runWith(t, t.Context(), map[string]string{dsnVariable: dsn}, "", "grants", "--reader", "r")
		require.Contains(t, printed.out, quote+"inbox_messages"+quote, dsn)
	}
}

// TestMigrateCreatesAPrivateSQLiteFile proves contract 3.4: SQLite by itself would create
// files that everybody may read.
func TestMigrateCreatesAPrivateSQLiteFile(t *testing.T) {
	dsn := testenv.SQLiteDSN(t)
	env := map[string]string{dsnVariable: dsn, actorVariable: "alice"}
	require.Zero(t, runWith(t, t.Context(), env, "", "migrate", "up", "--inbox", "test").code)
	db := testenv.OpenSQLite(t, dsn)
	inboxtest.RequirePrivate(t, db)
}
