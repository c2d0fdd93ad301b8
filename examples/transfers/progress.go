package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// errPoisoned: no transfer fails often enough for that.
var errPoisoned = errors.New("a transfer is poisoned: its lane stands still until somebody retries or discards it")

// Progress watches the database and shows how far the work is.
type Progress struct {
	*scratch.Screen
	place     *scratch.Place
	team      scratch.Team
	transfers int // there will be
}

// NewProgress makes a progress; transfers is how many there will be.
func NewProgress(out io.Writer, place *scratch.Place, team scratch.Team, transfers int) *Progress {
	return &Progress{Screen: scratch.NewScreen(out), place: place, team: team, transfers: transfers}
}

// Until watches until it is enough. It fails if a worker ends by itself, a
// transfer is poisoned, or nothing changes any more.
func (p *Progress) Until(ctx context.Context, enough func(scratch.Tally) bool) error {
	read := func(ctx context.Context) (scratch.Tally, error) { return scratch.ReadTally(ctx, p.place.DB) }
	return scratch.Watch(ctx, read, func(t scratch.Tally) (bool, error) {
		p.Show("accepted %d of %d, completed %d, retrying %d", t.All(), p.transfers, t.Completed, t.Retrying)
		switch {
		case enough(t):
			return true, nil
		case t.Poisoned > 0:
			return false, errPoisoned
		}
		return false, p.team.Unexpected()
	})
}

// ReadLastWorker names the worker that booked last; empty if none has.
func ReadLastWorker(ctx context.Context, db *gorm.DB) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = db.WithContext(ctx).Model(&JournalEntry{}).Select("worker").Order("id DESC").Limit(1).Scan(&name).Error
	if err != nil {
		return "", fmt.Errorf("read who booked last: %w", err)
	}
	return name, nil
}
