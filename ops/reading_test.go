package ops

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// meeting holds each statement until as many run at once as may, and counts how many did.
type meeting struct {
	gorm.ConnPool
	size int

	mu       sync.Mutex
	now, max int
	full     chan struct{}
}

func (m *meeting) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	m.mu.Lock()
	m.now++
	if m.max = max(m.max, m.now); m.now == m.size {
		select {
		case <-m.full:
		default:
			close(m.full)
		}
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.now--
		m.mu.Unlock()
	}()
	select {
	case <-m.full:
	case <-time.After(testenv.Patience):
	}
	return m.ConnPool.QueryContext(ctx, query, args...)
}

func TestConcurrentReadsAreBounded(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	const connections = 2
	o, err := New(db, func(o *Options) { o.Connections, o.StatementTimeout = connections, testenv.Patience })
	require.NoError(t, err)
	m := &meeting{ConnPool: o.db.Statement.ConnPool, size: connections, full: make(chan struct{})}
	o.db.Statement.ConnPool = m
	counted := make(chan error, 4*connections)
	for range cap(counted) {
		go func() {
			_, err := o.Count(t.Context(), Filter{HandlerKeys: []string{"mail"}, States: []State{StatePoisoned}})
			counted <- err
		}()
	}
	for range cap(counted) {
		require.NoError(t, <-counted)
	}
	require.Equal(t, connections, m.max)
}
