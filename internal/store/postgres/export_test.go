package postgres

import "github.com/gorm-inbox/inbox/internal/store"

// SpeakToPgxFrom sets the size of contents, in bytes, from which on a store's accepts call pgx
// directly.
func SpeakToPgxFrom(s store.Store, bytes int) { s.(*Store).large = bytes }
