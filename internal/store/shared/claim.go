package shared

import (
	"cmp"
	"database/sql"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/internal/store"
)

// SortClaims is not left to the database: it would copy every message once more
// to sort rows that come nearly in order.
func SortClaims(claims []store.Claim) {
	slices.SortFunc(claims, func(a, b store.Claim) int {
		return cmp.Or(strings.Compare(a.HandlerKey, b.HandlerKey), a.Due.Compare(b.Due), strings.Compare(a.StatusID, b.StatusID))
	})
}

// ScanSibling scans a status of a message under another key.
func ScanSibling(rows *sql.Rows, s *store.Sibling) error {
	var lane LaneColumns
	err := rows.Scan(&s.MessageNumber, &s.StatusID, &s.MessageID, &s.HandlerKey, &s.Version, &s.Locator, &s.ErrorCount, &s.AbandonedCount,
		&lane.Handler, &lane.Key, &s.Processing, &s.Poisoned, &s.Completed, &s.Outcome)
	s.Lane = lane.Lane()
	return err
}
