package idempotent

import "github.com/gorm-inbox/inbox/internal/clock"

// Clock returns the time by which retention is judged. Implementations must be safe for concurrent use.
type Clock = clock.Clock
