package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the "sqlite" driver: no C compiler needed

	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/sqlitefile"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// maxConnections is the pool size. No command needs more connections.
const maxConnections = 4

// database is the database that the DSN names.
type database struct {
	*gorm.DB
	naming models.Naming
	pool   *sql.DB
}

func (a *app) naming() models.Naming { return models.Naming{Schema: a.schema, Prefix: a.prefix} }

// open opens the database. It creates a missing SQLite file only if create is true.
func (a *app) open(ctx context.Context, create bool) (*database, error) {
	if a.dsn == "" {
		return nil, misuse("no database: set %s or --dsn, see \"inboxctl help connecting\"", dsnVariable)
	}
	if err := a.naming().Validate(); err != nil {
		return nil, misuse("%w", err)
	}
	kind, dialector, err := a.dialector(create)
	if err != nil {
		return nil, err
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", kind, err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", kind, err)
	}
	pool.SetMaxOpenConns(maxConnections)
	d := &database{DB: db, naming: a.naming(), pool: pool}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err = pool.PingContext(ctx)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "42704" {
		// The server quotes the setting, which may be the end of a password that has a space.
		err = misuse("the DSN sets something that the server does not know; if a value has a space, quote it")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", kind, err), d.close())
	}
	return d, nil
}

func (d *database) close() error {
	if err := d.pool.Close(); err != nil {
		return fmt.Errorf("close the database: %w", err)
	}
	return nil
}

func (a *app) dialector(create bool) (kind string, dialector gorm.Dialector, err error) {
	switch a.dialectName() {
	case "postgres":
		dialector, err = a.postgres()
		return "PostgreSQL", dialector, err
	case "sqlite":
		dialector, err = a.sqlite(create)
		return "SQLite", dialector, err
	}
	// The DSN is not quoted, because it may contain a password.
	return "", nil, misuse("the DSN must begin with postgres:// or file:, or be host=… or the path of a file, see \"inboxctl help connecting\"")
}

var (
	dsnScheme = regexp.MustCompile(`^(?i)(postgres|postgresql|file):`)
	// dsnParameter is what a setting of PostgreSQL can be named.
	dsnParameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?$`)
	dsnKeyword   = regexp.MustCompile(`^\s*[A-Za-z_]+\s*=`)
	// dsnFile is strict, because errors name the file: a password must not be taken for one.
	dsnFile = regexp.MustCompile(`^(\.{0,2}/|[\w.-]+(/[\w.-]+)*\.(db|sqlite3?)(\?|$))`)
)

// dialectName returns the DSN's dialect as GORM and models.SQL name it, or "" if the DSN is
// neither. A DSN has the forms that GORM's drivers take: a URL, keywords with values, or a file.
func (a *app) dialectName() string {
	scheme := dsnScheme.FindStringSubmatch(a.dsn)
	switch {
	case scheme != nil && strings.EqualFold(scheme[1], "file"):
		return "sqlite"
	case scheme != nil, dsnKeyword.MatchString(a.dsn):
		return "postgres"
	case dsnFile.MatchString(a.dsn):
		return "sqlite"
	}
	return ""
}

// postgres connects with a parsed configuration, so that no driver sees the DSN and puts it in an
// error.
func (a *app) postgres() (gorm.Dialector, error) {
	notURL := func() error {
		// The error quotes the part that it cannot parse, which may be a password.
		return misuse("the DSN is not a valid URL: escape special characters in user and password, for example @ as %%40")
	}
	if _, err := url.Parse(a.dsn); err != nil && !dsnKeyword.MatchString(a.dsn) {
		return nil, notURL()
	}
	dsn := a.dsn
	if scheme, rest, isURL := strings.Cut(dsn, "://"); isURL && dsnScheme.MatchString(dsn) {
		dsn = strings.ToLower(scheme) + "://" + rest // pgx takes other cases for keywords
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		text := afterQuote(err.Error())
		if strings.Contains(text, "keyword/value") { // it quotes the end of a value, which may be a password
			return nil, misuse(unquotedSpace)
		}
		return nil, misuse("the DSN: %s", text)
	}
	for name := range config.RuntimeParams {
		if !dsnParameter.MatchString(name) { // the same
			return nil, misuse(unquotedSpace)
		}
	}
	if strings.Contains(config.Host, "@") { // connection errors name the host, which here contains part of the password
		return nil, notURL()
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = a.timeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "inboxctl"
	}
	return postgres.New(postgres.Config{Conn: stdlib.OpenDB(*config)}), nil
}

const unquotedSpace = "the DSN is not of the form name=value name=value: quote a value with a space, as in password='a b'"

// afterQuote removes the DSN that pgx puts at the start of its errors.
func afterQuote(text string) string {
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		return text[i+len("`: "):]
	}
	return "it cannot be parsed"
}

// sqlite adds the settings with which a connection waits for other writers, unless the DSN sets
// them.
func (a *app) sqlite(create bool) (gorm.Dialector, error) {
	file, query, _ := strings.Cut(a.dsn, "?")
	parameters, err := url.ParseQuery(query)
	if err == nil && dsnScheme.MatchString(file) { // a URL, unlike a bare path
		file, err = url.PathUnescape(strings.TrimPrefix(file[len("file:"):], "//"))
	}
	if err != nil {
		return nil, misuse("the DSN: %w", err)
	}
	memory := parameters.Get("mode") == "memory"
	if create && !memory {
		if err := sqlitefile.Create(file); err != nil {
			return nil, fmt.Errorf("open SQLite: %w", err)
		}
	} else if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && !memory {
		// Without this check SQLite would create an empty file.
		return nil, fmt.Errorf("open SQLite: file %q does not exist", file)
	}
	pragmas := strings.Join(parameters["_pragma"], " ")
	for name, value := range map[string]string{"busy_timeout": fmt.Sprint(a.timeout.Milliseconds()), "foreign_keys": "1"} {
		if !strings.Contains(pragmas, name) {
			parameters.Add("_pragma", name+"("+value+")")
		}
	}
	if !parameters.Has("_txlock") {
		parameters.Set("_txlock", "immediate")
	}
	// Escape the path again, because SQLite would end it at an unescaped #.
	escaped := url.URL{Path: file}
	return sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + escaped.EscapedPath() + "?" + parameters.Encode()}, nil
}

// with runs a command's work on the inbox that the flags name.
func (a *app) with(
	ctx context.Context, work func(ctx context.Context, o *ops.Ops) error, configure ...func(o *ops.Options),
) error {
	return a.withDatabase(ctx, func(ctx context.Context, o *ops.Ops, _ *database) error {
		return work(ctx, o)
	}, configure...)
}

// audited is like with, for work that is audited under an actor's name.
func (a *app) audited(
	ctx context.Context, work func(ctx context.Context, o *ops.Ops) error, configure ...func(o *ops.Options),
) error {
	if err := a.checkActor(); err != nil {
		return err
	}
	return a.with(ctx, work, configure...)
}

func (a *app) withDatabase(
	ctx context.Context, work func(ctx context.Context, o *ops.Ops, d *database) error, configure ...func(o *ops.Options),
) error {
	d, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	o, err := a.ops(d, configure...)
	if err == nil {
		err = o.CheckSchema(ctx)
	}
	if err == nil {
		err = work(ctx, o, d)
	}
	return errors.Join(err, d.close())
}

// ops opens the inbox. It uses the default redaction of common secrets, because the application's
// own hook is not available here.
func (a *app) ops(d *database, configure ...func(o *ops.Options)) (*ops.Ops, error) {
	first := func(o *ops.Options) { o.Naming, o.StatementTimeout = d.naming, a.timeout }
	last := func(o *ops.Options) { o.Redact = redaction.New(o.Redact).Then(redact.Common).Hook() }
	return ops.New(d.DB, slices.Concat([]func(*ops.Options){first}, configure, []func(*ops.Options){last})...)
}

// print writes a result for programs, or as text with the given function.
func (a *app) print(v any, text func()) error {
	if a.structured() {
		return a.writeStructured(v)
	}
	text()
	return a.results.err
}

// stepTimeout is the longest time that one step of an action may take.
func (a *app) stepTimeout() time.Duration { return 2 * a.timeout }
