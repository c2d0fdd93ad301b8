package simulated_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/integration/simulation/database"
	simulated "github.com/gorm-inbox/inbox/integration/simulation/store"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestSimulated(t *testing.T) {
	var current *server
	storetest.RunOn(t, func(t *testing.T) (*gorm.DB, store.Store) {
		d, err := simulated.NewDatabase()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		current = &server{database: d}
		return storetest.Migrated(t, testenv.Open(t, simulated.Open(d, "process", current.link), gorm.Config{}))
	}, func(*gorm.DB) storetest.Server { return current })
}

// server implements storetest.Server. A link that answers late stops a statement that has written.
type server struct {
	database *database.Database
	held     atomic.Int64 // statements that are stopped

	mu    sync.Mutex
	holds []hold
}

type hold struct {
	storetest.Event
	released <-chan struct{}
}

func (s *server) link(ctx context.Context, text string, do func() error) error {
	err := do()
	s.mu.Lock()
	holds := s.holds
	s.mu.Unlock()
	for _, h := range holds {
		if h.stops(text) {
			s.held.Add(1)
			select {
			case <-h.released:
			case <-ctx.Done():
			}
			s.held.Add(-1)
		}
	}
	return err
}

func (h hold) stops(text string) bool {
	begin := map[string]string{"INSERT": "INSERT INTO ", "UPDATE": "UPDATE "}[h.Statement] + `"` + h.Table + `"`
	return strings.HasPrefix(strings.TrimSpace(text), begin) &&
		(h.Sets == "" || regexp.MustCompile(h.Sets+" = (true|lane_key)").MatchString(text))
}

func (s *server) Waiting(*gorm.DB) (int, error) {
	return s.database.Waiting() + int(s.held.Load()), nil
}

func (s *server) Hold(_ *gorm.DB, event storetest.Event) (release func() error, err error) {
	released := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds = append(s.holds, hold{event, released})
	return sync.OnceValue(func() error { close(released); return nil }), nil
}

func (s *server) Lock(tx *gorm.DB, table, where string) error {
	return locked(tx, `SELECT count(*) FROM (SELECT rowid AS place FROM `+table+` WHERE `+where+` LIMIT -1)
		WHERE lock_row('`+table+`', place, 3, false)`)
}

func (s *server) LockWorker(tx *gorm.DB, workerID string, shared bool) error {
	if shared {
		return locked(tx, `SELECT lock_row('claims of workers', ?, 1, false)`, workerID)
	}
	return locked(tx, `SELECT lock_row('claims of workers', ?, 3, false)`, workerID)
}

// Survive does nothing: the database ends the transaction whose wait closes the circle last.
func (s *server) Survive(*gorm.DB) error { return nil }

func (s *server) Evicts() bool { return true }

func (s *server) DropTrigger(string, string) string { panic("there are no partitions") }

func (s *server) CreatesInPartitions() bool { panic("there are no partitions") }

func (s *server) Terminate(db, tx *gorm.DB) error {
	if err := locked(tx, `SELECT lock_row('a session', 1, 3, false)`); err != nil {
		return err
	}
	_, err := s.database.Terminate(db.Statement.Context, false, "a session", "1")
	return err
}

func locked(tx *gorm.DB, statement string, args ...any) error {
	var is int
	return tx.Raw(statement, args...).Scan(&is).Error
}
