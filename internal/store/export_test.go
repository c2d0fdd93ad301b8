package store

// SpeakToPgxFrom changes from how many bytes of content on a store's accepts speak
// to pgx itself; those that cannot do not.
func SpeakToPgxFrom(s Store, bytes int) {
	if p, ok := s.(*postgres); ok {
		p.large = bytes
	}
}
