package base

import (
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
)

// WindowRow is a row of a window: one to claim, the last of a full window, or both.
type WindowRow struct {
	store.Place
	IsLast, IsOurs bool
}

// ScanWindowRow reads a WindowRow whose time is one of PostgreSQL's.
func ScanWindowRow(rows *sql.Rows, r *WindowRow) error {
	return rows.Scan(&r.Due, &r.StatusID, &r.IsLast, &r.IsOurs)
}

// WindowOf returns the window that begins after a place and has these rows.
func WindowOf(after *store.Place, rows []WindowRow) store.Window {
	w := store.Window{After: after}
	for _, r := range rows {
		if r.IsLast {
			w.End = &r.Place
		}
		if r.IsOurs {
			w.StatusIDs = append(w.StatusIDs, r.StatusID)
		}
	}
	return w
}
