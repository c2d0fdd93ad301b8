package idempotent

// FindsIDs reports whether options say where the ID of a message comes from, or
// that one without ID may pass. Where they do not, the ID that the transport
// found counts, and messages without one can be refused before any handler is
// asked.
func FindsIDs(opts ...Option) bool {
	c := config{Options: DefaultOptions()}.with(opts)
	return c.AllowMissingID || c.hasID || c.keyBy != nil || c.recordBy != nil
}
