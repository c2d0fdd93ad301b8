package shared

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
)

// counted is one row of both dialects' answers.
type counted struct {
	Key                                           string
	due, behind, processing, waiting, poisoned, n int
	oldest                                        store.Stamp
}

// ScanBacklog scans what was counted of a handler key.
func ScanBacklog(rows *sql.Rows, c *counted) error {
	return rows.Scan(&c.Key, &c.due, &c.behind, &c.processing, &c.n, &c.oldest, &c.waiting, &c.poisoned)
}

// Backlog judges what was counted up to most.
func (c counted) Backlog(most int) store.Backlog {
	return store.Backlog{
		HandlerKey: c.Key, Due: c.due, Waiting: c.behind + c.waiting, Processing: c.processing, Poisoned: c.poisoned, OldestDue: c.oldest.Time,
		Capped: c.n >= most || c.waiting >= most || c.poisoned >= most,
	}
}
