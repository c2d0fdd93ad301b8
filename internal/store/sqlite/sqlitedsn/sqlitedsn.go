// Package sqlitedsn opens SQLite files by a DSN, with the driver in Go: no C compiler is needed.
package sqlitedsn

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/sqlitefile"
	"github.com/gorm-inbox/inbox/internal/store/sqlite/sqlitedialect"
)

// DSN takes a URL, or the path of a file.
var DSN = dialect.DSN{
	Dialect:   sqlitedialect.Dialect,
	Form:      "file:… or the path of a file",
	Takes:     func(dsn string) bool { return scheme.MatchString(dsn) || file.MatchString(dsn) },
	Dialector: dialector,
	Explain:   func(err error) error { return err },
}

var (
	scheme = regexp.MustCompile(`^(?i)file:`)
	// file is strict, because errors name the file: a password must not be taken for one.
	file = regexp.MustCompile(`^(\.{0,2}/|[\w.-]+(/[\w.-]+)*\.(db|sqlite3?)(\?|$))`)
)

// dialector adds the settings with which a connection waits for other writers, unless the DSN sets them.
func dialector(dsn string, opening dialect.Opening) (gorm.Dialector, error) {
	path, query, _ := strings.Cut(dsn, "?")
	parameters, err := url.ParseQuery(query)
	if err == nil && scheme.MatchString(path) { // a URL, unlike a bare path
		path, err = url.PathUnescape(strings.TrimPrefix(path[len("file:"):], "//"))
	}
	if err != nil {
		return nil, dialect.DSNError(fmt.Sprintf("the DSN: %s", err))
	}
	memory := parameters.Get("mode") == "memory"
	if opening.Create && !memory {
		if err := sqlitefile.Create(path); err != nil {
			return nil, fmt.Errorf("open SQLite: %w", err)
		}
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !memory {
		// Without this check SQLite would create an empty file.
		return nil, fmt.Errorf("open SQLite: file %q does not exist", path)
	}
	pragmas := strings.Join(parameters["_pragma"], " ")
	for name, value := range map[string]string{
		"busy_timeout": fmt.Sprint(opening.Timeout.Milliseconds()), "foreign_keys": "1",
	} {
		if !strings.Contains(pragmas, name) {
			parameters.Add("_pragma", name+"("+value+")")
		}
	}
	if !parameters.Has("_txlock") {
		parameters.Set("_txlock", "immediate")
	}
	// Escape the path again, because SQLite would end it at an unescaped #.
	escaped := url.URL{Path: path}
	return sqlite.Dialector{DriverName: "sqlite", DSN: "file:" + escaped.EscapedPath() + "?" + parameters.Encode()}, nil
}
