package store

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// Progress keeps how far the partitions of channels are read, for every cleanup of the inbox (contract 6.5).
type Progress interface {
	// RecordProgress stores how far partitions are read at now, a time of Cleaner.Clock. It adds the rows that are
	// missing and moves none back: a nil CaughtUpAt changes nothing that is known. It uses no other times of rows. It
	// declares what is known of the unlisted topics, whose partitions this process does not know, and counts the time
	// of rows that no worker has declared for a while.
	RecordProgress(ctx context.Context, rows []models.Partition, unlisted []Unlisted, now time.Time) error
	// FurthestBehind returns the partition that has caught up to the earliest moment. One that has never caught up
	// comes first. ok is false if there is none. Partitions of Inline channels count only if inline is true.
	FurthestBehind(ctx context.Context, inline bool) (p models.Partition, ok bool, err error)
	// ForgetPartitions deletes the partitions that no worker has declared for so long, while workers of the inbox ran.
	// It returns them.
	ForgetPartitions(ctx context.Context, undeclaredFor time.Duration) ([]models.Partition, error)
}

// Unlisted is a topic that a channel consumes in a group, and of which no broker has said which partitions it has.
// Partition is one of those that the group reads, if they are named; nil means all.
type Unlisted struct {
	Channel, GroupID, Topic string
	Partition               *int32
}

const (
	// DeclareEvery is how often a declaration is written that changes nothing else.
	DeclareEvery = time.Minute
	// CountUndeclaredEvery is after what time a row counts as undeclared, and how often that time is counted. Twice
	// that is counted at most at once: during longer breaks no worker ran.
	CountUndeclaredEvery = 10 * time.Minute
)
