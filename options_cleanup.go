package inbox

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/cleanup"
)

// Retention is how long completed statuses and finished messages are kept; 0
// keeps them for ever. It is also how far back duplicates are recognised: do
// not set it below the longest time after which a message may come again.
// Default 0.
func Retention(d time.Duration) Option { return func(c *config) { c.options.Cleanup.Retention = d } }

// CleanupInterval is the time between cleanups. Do not shorten it to keep
// tables small: Retention does that. Default 1 h.
func CleanupInterval(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.CleanupInterval = d }
}

// CleanupBatchSize bounds the rows one cleanup transaction looks at. Do not
// raise it on a busy database. Default 10,000.
func CleanupBatchSize(n int) Option {
	return func(c *config) { c.options.Cleanup.CleanupBatchSize = n }
}

// SweepMarkers deletes the markers of Inline channels, and of a gormstore on the
// inbox's tables, once they have expired. Cleanup then waits until the Inline
// channels have caught up, as it does for others (contract 6.5). Do not use it where the marker store is swept by
// other means, or where redeliveries may come later than the handlers' retention. Default off
// (contract 6.6).
func SweepMarkers() Option { return func(c *config) { c.options.Cleanup.SweepMarkers = true } }

// AuditRetention deletes audit rows older than d. Do not set it where somebody
// must be able to tell later who did what. Default 0, which keeps them for
// ever (contract 6.6).
func AuditRetention(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.AuditRetention = d }
}

// RejectedRetention deletes rejected messages older than d, whether or not
// anybody has looked at them. Do not set it unless their loss is acceptable:
// their offsets are committed, so nobody else has them. Default 0, which keeps them
// for ever (contract 6.6).
func RejectedRetention(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.RejectedRetention = d }
}

// Archive has cleanup hand messages and statuses to a function before it
// deletes them; its error keeps them. See cleanup.Archive for what it must
// hold to. Do not use it for what must happen with each message: rows come
// late, and more than once. With nil, or without it, nothing is handed over
// (contract 6.3).
func Archive(take func(ctx context.Context, messages []cleanup.Archived) error) Option {
	return func(c *config) { c.archive = take }
}

// ArchiveTimeout limits each call of the function given to Archive. Do not set
// it below what it needs for 500 messages: it would never succeed.
// Default 1 m.
func ArchiveTimeout(d time.Duration) Option {
	return func(c *config) { c.options.Cleanup.ArchiveTimeout = d }
}
