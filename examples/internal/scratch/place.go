// Package scratch is what the examples that can be run stand on: a place for
// their data that is gone when they end, the worker processes, and a command
// that says whether a ledger balances. What a user would copy is in the examples.
package scratch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gorm.io/gorm"
)

// Place is where one run keeps its data: a directory and, unless the SQLite
// file in it is the database, a PostgreSQL schema of its own.
type Place struct {
	// Run is the run's name, for whatever else it makes: letters and digits.
	Run string
	Dir string
	// DSN leads to the run's own tables.
	DSN string
	// DB is the parent's own pool, to read what others have done.
	DB *gorm.DB

	program Program
	server  string // the DSN that was given; empty for SQLite
	schema  string // empty until it exists
}

// Program is whose place it is and how it opens databases.
type Program struct {
	Name string
	// File is the name of its SQLite file.
	File string
	// Open opens a pool on a DSN, as the package's Open does.
	Open func(dsn string) (*gorm.DB, error)
}

// Place makes an empty place; server is a PostgreSQL DSN or empty.
func (program Program) Place(ctx context.Context, server string) (*Place, error) {
	dir, err := os.MkdirTemp("", "inbox-"+program.Name+"-")
	if err != nil {
		return nil, err
	}
	p := &Place{program: program, Run: fmt.Sprintf("%x", time.Now().UnixNano()), Dir: dir,
		DSN: SQLiteDSN(filepath.Join(dir, program.File))}
	if server != "" {
		p.server = server
		schema := program.Name + "_" + p.Run
		if p.DSN, err = withSearchPath(server, schema); err == nil {
			err = p.administer(ctx, "CREATE SCHEMA "+schema)
		}
		if err == nil {
			p.schema = schema
		}
	}
	if err == nil {
		p.DB, err = program.Open(p.DSN)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close(ctx, false))
	}
	return p, nil
}

// withSearchPath makes connections see the schema's tables only.
func withSearchPath(dsn, schema string) (string, error) {
	if !strings.Contains(dsn, "://") {
		return dsn + " search_path=" + schema, nil
	}
	address, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the PostgreSQL DSN is not a URL") // which may hold a password
	}
	query := address.Query()
	query.Set("search_path", schema)
	address.RawQuery = query.Encode()
	return address.String(), nil
}

func (p *Place) administer(ctx context.Context, statement string) error {
	db, err := p.program.Open(p.server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = db.WithContext(ctx).Exec(statement).Error
	return errors.Join(err, Close(db))
}

// File is a file of the place.
func (p *Place) File(name string) string { return filepath.Join(p.Dir, name) }

// String says where the data is.
func (p *Place) String() string {
	if p.schema != "" {
		return fmt.Sprintf("PostgreSQL schema %s, other files in %s", p.schema, p.Dir)
	}
	return "SQLite in " + p.Dir
}

// Close closes the database and, unless it is to be kept, removes the place.
func (p *Place) Close(ctx context.Context, keep bool) error {
	var problems []error
	if p.DB != nil {
		problems = append(problems, Close(p.DB))
	}
	if !keep {
		if p.schema != "" {
			problems = append(problems, p.administer(ctx, "DROP SCHEMA "+p.schema+" CASCADE"))
		}
		problems = append(problems, os.RemoveAll(p.Dir))
	}
	return errors.Join(problems...)
}
