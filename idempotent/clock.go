package idempotent

import "github.com/gorm-inbox/inbox/internal/clock"

// Clock tells the time by which retention is judged. Implementations are safe
// for concurrent use.
type Clock = clock.Clock
