package store

import (
	"encoding/json"
	"fmt"
	"time"
)

// sqlite implements Store for SQLite 3.35 and later, with any driver. Lists go
// in as JSON. Every transaction begins with a write, so that it waits for its
// turn by busy_timeout: one that reads first and writes later fails with
// SQLITE_BUSY_SNAPSHOT, which no timeout helps against.
//
// Parameters are numbered ?1, ?2: drivers disagree about the others.
type sqlite struct{ database }

func newSQLite(tables database) *sqlite { return &sqlite{tables} }

func (s *sqlite) SingleWriter() bool { return true }

// SQLiteTime is a time as this package stores it on SQLite: UTC text of fixed
// width, so that it sorts. Use it for every time in a statement of one's own.
func SQLiteTime(t time.Time) string {
	return t.UTC().Format("2006-01-02 15:04:05.000000") + "+00:00"
}

// jsonList makes an argument for json_each. Text must have passed CheckText:
// JSON would replace invalid UTF-8.
func jsonList(list any) (string, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode arguments: %w", err)
	}
	return string(text), nil
}
