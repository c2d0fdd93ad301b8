package postgres

import (
	"github.com/gorm-inbox/inbox/internal/store"
)

// SpeakToPgxFrom changes from how many bytes of content on a store's accepts speak
// to pgx itself; those that cannot do not.
func SpeakToPgxFrom(s store.Store, bytes int) {
	if p, ok := s.(*Store); ok {
		p.large = bytes
	}
}
