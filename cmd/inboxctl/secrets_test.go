package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestPasswordsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(testenv.PostgresDSN(t))
	require.NoError(t, err)
	at := server.Host + server.Path
	const secret = "hunter2"
	for _, dsn := range []string{
		"postgres://app:hunter2@" + server.Host + "/there_is_no_such_database?sslmode=disable",
		"postgres://nobody:hunter2@" + at + "?sslmode=disable",
		"postgres://nobody@" + at + "?sslmode=disable&password=hunter2",
		"postgres://postgres:hunter2@" + at + "?sslmode=disable", // no tables
		"postgres://postgres:hunter2@127.0.0.1:1/d",
		"postgres://postgres:hunter2@127.0.0.1:1/d?sslmode=nonsense",
		"postgres://postgres@127.0.0.1:1/d?sslmode=nonsense&password=hunter2",
		"postgres://postgres@127.0.0.1:1/d?sslpassword=hunter2&sslkey=/nowhere&sslcert=/nowhere",
		"postgres://postgres:hunter2@127.0.0.1:x/d",
		"postgres://postgres:hunter2%zz@127.0.0.1:1/d",
		"postgres://postgres:hunter2/with/slashes@127.0.0.1:1/d",
		"postgres://postgres:#hunter2@127.0.0.1:1/d",
		"postgres://postgres:?hunter2@127.0.0.1:1/d",
		"postgres://postgres:a@hunter2@127.0.0.1:1/d",
		"postgres://postgres:a:hunter2@127.0.0.1:1/d",
		"postgres://postgres:hunter2 x@127.0.0.1:1/d",
		"postgres://postgres:\x7fhunter2@127.0.0.1:1/d",
		"postgres://:hunter2@/?host=/nowhere",
		"mysql://root:hunter2@127.0.0.1/d",
		"host=127.0.0.1 port=1 user=postgres password=hunter2",
		"file:///nowhere/x.db?_auth_pass=hunter2&password=hunter2",
		"host=127.0.0.1 port=1 user=postgres password='hunter2",
		"host=127.0.0.1 port=x password=hunter2",
		"host=127.0.0.1 port=1 password=a hunter2 b=c",
		"host=" + strings.Replace(server.Host, ":", " port=", 1) + " user=postgres password=a hunter2=c",
		"host=127.0.0.1 port=1 password=a hunter2",
		"app:hunter2@tcp(127.0.0.1:1)/orders",
		"app:hunter2@127.0.0.1:1/orders",
		"app:hunter2@tcp(127.0.0.1:1/orders",
		"app:a@hunter2@tcp(127.0.0.1:1)/orders",
		"app:a/hunter2@tcp(127.0.0.1:1)/orders",
		"app:a(hunter2@tcp(127.0.0.1:1)/orders",
		"app:a?hunter2@tcp(127.0.0.1:1)/orders",
		"app:hunter2@hunter2(127.0.0.1:1)/orders",
		"app:hunter2@unix(/nowhere)/orders",
		"app:hunter2@/",
		"app:hunter2@tcp(127.0.0.1:1)/orders?tls=hunter2",
		"app:hunter2@tcp(127.0.0.1:1)/orders?timeout=hunter2",
		"app:hunter2@tcp(127.0.0.1:1)/orders?loc=hunter2",
		"app:hunter2@tcp(127.0.0.1:1)/orders?parseTime=hunter2",
		"app:hunter2@tcp(127.0.0.1:1)/orders?x=a/hunter2",
		"hunter2",
	} {
		dsn := strings.ReplaceAll(dsn, "hunter2", secret)
		env := map[string]string{dsnVariable: dsn, actorVariable: "alice"}
		for name, out := range map[string]result{
			"environment": runWith(t, t.Context(), env, "", "status", "--timeout", "2s"),
			"flag": runWith(t, t.Context(), map[string]string{actorVariable: "alice"}, "", "migrate", "status", "--dsn",
				dsn, "--timeout", "2s", "-o", "json"),
			"help": runWith(t, t.Context(), env, "", "status", "--help"),
		} {
			require.NotContains(t, out.out+out.errOut, secret, "%s: %s", name, dsn)
			require.Equal(t, name == "help", out.code == exitDone, "%s: %s", name, dsn)
		}
		if !strings.Contains(dsn, "://") || strings.Contains(dsn, " ") || strings.HasPrefix(dsn, "file:") ||
			strings.Contains(dsn, "sslpassword") {
			continue
		}
		// The DSN is mistyped, so that it is taken for an argument or a command.
		for _, args := range [][]string{{dsn}, {"status", dsn}, {"show", "a", dsn}, {"status", "--dns", dsn},
			{"status", "--limit=" + dsn}, {"list", "--from", dsn}} {
			out := runWith(t, t.Context(), env, "", args...)
			require.Equal(t, exitMisuse, out.code, "%v", args)
			require.NotContains(t, out.out+out.errOut, secret, "%v", args)
		}
	}
}

func TestPasswordsOfMySQLAreNeverPrinted(t *testing.T) {
	t.Parallel()
	server := testenv.MySQLDSN(t, testenv.MariaDBVariable)
	if !strings.Contains(server, "?") {
		server += "?parseTime=true"
	}
	_, at, _ := strings.Cut(server, "@")
	for _, dsn := range []string{
		"nobody:hunter2@" + at,
		"nobody:a@hunter2/@" + at,
		server + "&hunter2=1",
		server + "&sql_mode=hunter2",
		server + "&collation=hunter2",
		"nobody:hunter2@" + strings.Replace(at, "/", "/there_is_no_such_database", 1),
	} {
		env := map[string]string{dsnVariable: dsn, actorVariable: "alice"}
		for _, args := range [][]string{{"status"}, {"migrate", "up", "--inbox", "test"}} {
			out := runWith(t, t.Context(), env, "", args...)
			require.NotEqual(t, exitDone, out.code, dsn)
			require.NotContains(t, out.out+out.errOut, "hunter2", dsn)
		}
	}
}

// pgx reads only URLs in lower case, and takes others for keywords.
func TestDSNSchemeIsCaseInsensitive(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	_, rest, _ := strings.Cut(dsn, "://")
	for _, scheme := range []string{"POSTGRES", "PostgreSQL"} {
		out := runWith(t, t.Context(), map[string]string{dsnVariable: scheme + "://" + rest}, "", "migrate", "up", "--inbox", "shop")
		require.Equal(t, exitDone, out.code, out.errOut)
	}
}

func TestErrorsNameTheProblemOfTheDatabase(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]struct {
		code int
		text string
	}{
		"":            {exitMisuse, "no database: set INBOX_DSN or --dsn"},
		"mysql://x/y": {exitMisuse, "must be postgres://… or host=…, or file:…"},
		"host=127.0.0.1 port=1 user=a dbname=d TimeZone=UTC": {exitFailed,
			"connect to PostgreSQL: failed to connect to `user=a database=d`: 127.0.0.1:1"},
		"/nowhere/y.db":               {exitFailed, `file "/nowhere/y.db" does not exist`},
		"nowhere/z.db?x=1":            {exitFailed, `file "nowhere/z.db" does not exist`},
		"postgres://a:%zz@h/d":        {exitMisuse, "special characters in user and password"},
		"postgres://a@h/d?sslmode=no": {exitMisuse, "sslmode is invalid"},
		"postgres://a@127.0.0.1:1/d": {exitFailed,
			"connect to PostgreSQL: failed to connect to `user=a database=d`: 127.0.0.1:1"},
		"file:/nowhere/x.db":                       {exitFailed, `file "/nowhere/x.db" does not exist`},
		"file:" + t.TempDir():                      {exitFailed, "SQLite"},
		"app:x@127.0.0.1:1/d":                      {exitMisuse, "or …@tcp(host:port)/database"},
		"app:x@tcp(127.0.0.1:1)/":                  {exitMisuse, "the DSN names no database"},
		"app:x@tcp(127.0.0.1:1)/d?loc=Europe/Rome": {exitMisuse, "must be"},
		"app:x@tcp(127.0.0.1:1)/d?parseTime=maybe": {exitMisuse, "the DSN is not of the form"},
		"app:x@tcp(127.0.0.1:1)/d":                 {exitFailed, "connect to MySQL: dial tcp 127.0.0.1:1: connect: connection refused"},
	} {
		out := runWith(t, t.Context(), map[string]string{dsnVariable: dsn}, "", "status")
		require.Equal(t, want.code, out.code, "%s: %s", dsn, out.errOut)
		require.Contains(t, out.errOut, want.text)
		require.Empty(t, out.out)
	}
}
