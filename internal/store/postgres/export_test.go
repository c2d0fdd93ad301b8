package postgres

import "github.com/gorm-inbox/inbox/internal/store"

// SpeakToPgxFrom changes from how many bytes of content on a store's accepts speak
// to pgx itself.
func SpeakToPgxFrom(s store.Store, bytes int) { s.(*Store).large = bytes }
