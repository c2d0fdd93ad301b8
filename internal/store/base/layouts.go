package base

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// layoutInterval is how long a program may read the views of the other layout if none of its statements fails.
const layoutInterval = time.Minute

// began is when the program began. The time since then does not jump with the host's clock.
var began = time.Now()

// Layouts follows changes of a store's table layout (contract 6.8). A dialect with two layouts calls it. It is safe for
// concurrent use.
type Layouts struct {
	// Refresh reads the layout again. The pool may be in a caller's transaction.
	Refresh func(ctx context.Context, pool gorm.ConnPool) error
	// Current returns the layout for which statements are made.
	Current func() string
	// Failed reports whether a statement has failed as one for the other layout does.
	Failed func(failure error) bool

	next     atomic.Int64 // when Look refreshes, in nanoseconds since the program began
	outdated atomic.Bool  // the last statement in a caller's transaction was made for another layout
}

// Look refreshes the layout unless it did so within a minute. Reads of the plain tables do not all fail on the views,
// but are slow there. It ignores a database that does not answer, because the next statement fails then.
func (l *Layouts) Look(ctx context.Context, db *gorm.DB) {
	now, next := int64(time.Since(began)), l.next.Load()
	if now < next || !l.next.CompareAndSwap(next, now+int64(layoutInterval)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = l.Refresh(ctx, db.WithContext(ctx).Statement.ConnPool)
}

// Follow refreshes the layout after a failure. It wraps the failure in store.ErrLayoutChanged if the layout is another
// than the one for which the statement was made.
func (l *Layouts) Follow(ctx context.Context, db *gorm.DB, layout string, failure error) error {
	if l.Failed(failure) && l.Refresh(ctx, db.WithContext(ctx).Statement.ConnPool) == nil && l.Current() != layout {
		return fmt.Errorf("%w: %w", store.ErrLayoutChanged, failure)
	}
	return failure
}

// Joined runs work in a caller's transaction. That may have the pool's only connection and may be aborted after a
// failure, so the next call refreshes the layout. If the layout is still the same, that call's own failure has another
// cause.
func (l *Layouts) Joined(ctx context.Context, tx *gorm.DB, work func(gorm.ConnPool) error) error {
	pool, err := Joined(tx)
	same := false
	if err == nil && l.outdated.Load() {
		before := l.Current()
		if err = l.Refresh(ctx, pool); err == nil {
			l.outdated.Store(false)
			same = l.Current() == before
		}
	}
	if err == nil {
		err = work(pool)
	}
	if l.Failed(err) && !same {
		l.outdated.Store(true)
		err = fmt.Errorf("%w: %w", store.ErrLayoutChanged, err)
	}
	return err
}
