package ops

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// slow delays each statement.
type slow struct {
	gorm.ConnPool
	by time.Duration
}

func (s slow) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	timer := time.NewTimer(s.by)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return s.ConnPool.QueryContext(ctx, query, args...)
	}
}

// TestSlowDatabasePagesEndAfterAFewTimeouts runs dozens of statements, one for each
// handler, of which each is in time.
func TestSlowDatabasePagesEndAfterAFewTimeouts(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const timeout = 500 * time.Millisecond
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	for i := range 50 {
		id := fmt.Sprintf("00000000-0000-7000-8000-%012d", i)
		require.NoError(t, db.Create(&models.Message{ID: id, Content: []byte("{}"), Number: models.MessageNumber(i + 1),
			ReceivedAt: at}).Error)
		require.NoError(t, db.Create(&models.HandlerStatus{ID: id, MessageID: id, MessageNumber: int64(i + 1), HandlerKey: id,
			IsPoisoned: true, CreatedAt: at, Version: 1}).Error)
	}
	o, err := New(db, func(o *Options) { o.StatementTimeout = timeout })
	require.NoError(t, err)
	o.db.Statement.ConnPool = slow{o.db.Statement.ConnPool, timeout / 5}
	_, err = o.Count(t.Context(), Filter{States: []State{StatePoisoned}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
