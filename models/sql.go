package models

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/gorm-inbox/inbox/internal/dialects"
)

// Migration is one numbered step of the schema as plain SQL.
type Migration struct {
	// Version is the schema's version after this step, counting from 1.
	Version int
	// Name is the file's name, for example "0001_inbox.sql".
	Name string
	// SQL is the whole file with its names filled in, ready for psql or sqlite3. Migrate executes the same text.
	SQL string

	hash string // of the file, which has no names yet
}

// Statements splits the SQL after each line that ends with a semicolon, without the comments, for drivers that take one
// statement at a time. The text after the last semicolon is a statement too.
func (m Migration) Statements() []string {
	var statements []string
	var current []string
	for _, line := range strings.Split(m.SQL, "\n") {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "--") {
			continue
		}
		current = append(current, line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			statements = append(statements, strings.Join(current, "\n"))
			current = nil
		}
	}
	if len(current) > 0 {
		statements = append(statements, strings.Join(current, "\n"))
	}
	return statements
}

// SQL returns the migrations of a dialect ("postgres" or "sqlite", as GORM names them) for tables of naming, in order
// (contract 3.4). It does not access a database. Another dialect, or a schema on SQLite, is an error.
func SQL(dialect string, naming Naming) ([]Migration, error) {
	if err := naming.Validate(); err != nil {
		return nil, err
	}
	of, err := dialects.Named(dialect)
	switch {
	case err != nil:
		return nil, err
	case naming.Schema != "" && of.CreateSchema == nil:
		return nil, fmt.Errorf("schema %q: %s has no schemas, use a table prefix", naming.Schema, of.Title)
	}
	schema := ""
	if naming.Schema != "" {
		schema = of.Quoted(naming.Schema) + "."
	}
	entries, err := of.Migrations.ReadDir("migrations") // sorted by name
	if err != nil {
		return nil, fmt.Errorf("read migrations of %s: %w", dialect, err)
	}
	migrations := make([]Migration, 0, len(entries))
	for i, entry := range entries {
		text, err := of.Migrations.ReadFile("migrations/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", entry.Name(), err)
		}
		number, _, _ := strings.Cut(entry.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s of %s: number %04d expected", entry.Name(), dialect, i+1)
		}
		hash := hashOf(string(text))
		names := strings.NewReplacer("${schema}", schema, "${prefix}", naming.prefix(), "${hash}", hash)
		migrations = append(migrations,
			Migration{Version: version, Name: entry.Name(), SQL: names.Replace(string(text)), hash: hash})
	}
	return migrations, nil
}

// hashOf identifies the statements of a migration: comments and white space do not count.
func hashOf(text string) string {
	words := strings.Fields(strings.Join(Migration{SQL: text}.Statements(), " "))
	sum := sha256.Sum256([]byte(strings.Join(words, " ")))
	return hex.EncodeToString(sum[:16])
}

// hashKey is the row of the meta table with the migration's hash.
func (m Migration) hashKey() string { return fmt.Sprintf("hash_%04d", m.Version) }
