package main

import (
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// mysqlDSN takes what gorm.io/driver/mysql takes. Other databases' DSNs are read beside their dialects. This one is
// here, because the module of the inbox does not need MySQL's driver, so its users do not download it.
var mysqlDSN = dialect.DSN{
	Dialect:   mysqldialect.Dialect,
	Form:      "…@tcp(host:port)/database",
	Takes:     mysqlForm.MatchString,
	Dialector: mysqlDialector,
	Explain: func(err error) error {
		if refused := (*driver.MySQLError)(nil); errors.As(err, &refused) && slices.Contains(quotesSetting, refused.Number) {
			return badParameter
		}
		if strings.HasPrefix(err.Error(), "unknown collation") { // an error of the driver, which has no type
			return badParameter
		}
		return err
	},
}

const badParameter = dialect.DSNError("the DSN sets something that the server does not know: check its parameters")

// quotesSetting are the errors in which the server quotes the name or the value of a setting: unknown, without a
// parser's sense, of another type, or not allowed.
var quotesSetting = []uint16{1193, 1064, 1232, 1231, 1115, 1273}

// mysqlForm requires what no other database's DSN has: a user, or a network with an address, before the last slash.
var mysqlForm = regexp.MustCompile(`^(?s)(.*@((tcp[46]?|unix)(\([^()]*\))?)?|(tcp[46]?|unix)\([^()]*\))/[^/]*$`)

// mysqlDialector connects with a parsed configuration. Times are in UTC, whatever the DSN says of them.
func mysqlDialector(dsn string, opening dialect.Opening) (gorm.Dialector, error) {
	config, err := driver.ParseDSN(dsn)
	if err != nil { // it may quote a part of the password
		return nil, dialect.DSNError("the DSN is not of the form …@tcp(host:port)/database?name=value: " +
			"the host needs its parentheses, and a slash in a value is %2F")
	}
	if config.DBName == "" {
		return nil, dialect.DSNError("the DSN names no database: …@tcp(host:port)/database")
	}
	config.ParseTime, config.Loc, config.InterpolateParams = true, time.UTC, true
	config.Logger = &driver.NopLogger{} // what goes wrong is an error of the call, too
	if config.Timeout == 0 {
		config.Timeout = opening.Timeout
	}
	if config.ConnectionAttributes == "" {
		config.ConnectionAttributes = "program_name:" + opening.Program
	}
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, dialect.DSNError("the DSN's parameters do not fit together, such as those of TLS")
	}
	// The version is not read: it would be the first query, without a limit.
	return mysql.New(mysql.Config{Conn: sql.OpenDB(connector), SkipInitializeWithVersion: true}), nil
}
