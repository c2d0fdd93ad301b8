// Package pgdsn connects to PostgreSQL by a DSN.
package pgdsn

import (
	"errors"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
)

// DSN takes a URL, or keywords with values.
var DSN = dialect.DSN{
	Dialect:   pgdialect.Dialect,
	Form:      "postgres://… or host=…",
	Takes:     func(dsn string) bool { return scheme.MatchString(dsn) || keyword.MatchString(dsn) },
	Dialector: dialector,
	Explain: func(err error) error {
		if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "42704" {
			// The server quotes the setting, which may be the end of a password that has a space.
			return dialect.DSNError("the DSN sets something that the server does not know; if a value has a space, quote it")
		}
		return err
	},
}

var (
	scheme  = regexp.MustCompile(`^(?i)(postgres|postgresql):`)
	keyword = regexp.MustCompile(`^\s*[A-Za-z_]+\s*=`)
	// setting is what a setting of PostgreSQL can be named.
	setting = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?$`)
)

const (
	unquotedSpace = dialect.DSNError("the DSN is not of the form name=value name=value: quote a value with a space, as in password='a b'")
	// Errors of the parsers quote the part that they cannot parse, which may be a password.
	notURL = dialect.DSNError("the DSN is not a valid URL: escape special characters in user and password, for example @ as %40")
)

// dialector connects with a parsed configuration, so that no driver sees the DSN and puts it in an error.
func dialector(dsn string, opening dialect.Opening) (gorm.Dialector, error) {
	if _, err := url.Parse(dsn); err != nil && !keyword.MatchString(dsn) {
		return nil, notURL
	}
	if name, rest, isURL := strings.Cut(dsn, "://"); isURL && scheme.MatchString(dsn) {
		dsn = strings.ToLower(name) + "://" + rest // pgx takes other cases for keywords
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		text := afterQuote(err.Error())
		if strings.Contains(text, "keyword/value") { // it quotes the end of a value, which may be a password
			return nil, unquotedSpace
		}
		return nil, dialect.DSNError("the DSN: " + text)
	}
	for name := range config.RuntimeParams {
		if !setting.MatchString(name) { // the same
			return nil, unquotedSpace
		}
	}
	if strings.Contains(config.Host, "@") { // connection errors name the host, which here contains part of the password
		return nil, notURL
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = opening.Timeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = opening.Program
	}
	return postgres.New(postgres.Config{Conn: stdlib.OpenDB(*config)}), nil
}

// afterQuote removes the DSN that pgx puts at the start of its errors.
func afterQuote(text string) string {
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		return text[i+len("`: "):]
	}
	return "it cannot be parsed"
}
