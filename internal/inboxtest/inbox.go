package inboxtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// Patience is the timeout of every wait in a test.
const Patience = testenv.Patience

// Noon is the initial time of tests with a clock of their own.
var Noon = fxtest.Start

// Bytes is the message type that most tests' handlers receive.
type Bytes = handler.Message[[]byte]

// Do declares a plain handler.
func Do(key string, fn func(ctx context.Context, m Bytes) error, opts ...handler.Option) *inbox.HandlerSpec {
	return inbox.Func(key, fn, opts...)
}

// Tx declares a transactional handler.
func Tx(
	key string, fn func(ctx context.Context, tx *gorm.DB, m Bytes) error, opts ...handler.Option,
) *inbox.HandlerSpec {
	return inbox.Tx(key, fn, opts...)
}

// Nothing is a handler function that succeeds.
func Nothing(context.Context, Bytes) error { return nil }

// Handlers declares handlers for type "t" on channel "c".
func Handlers(handlers ...*inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("c", inbox.On("t", handlers...))
}

// Defaults has Start migrate and sets generous timeouts. On a slow machine no statement is
// cancelled and no worker is considered dead. A test of a timeout sets its own.
func Defaults(o *inbox.Options) {
	o.Migrate = true
	o.Processor.StatementTimeout, o.Processor.WorkerTimeout = Patience, Patience
}

// Brisk sets short intervals, for inboxes that run in the background.
func Brisk() inbox.Option {
	return inbox.Configure(func(o *inbox.Options) {
		Defaults(o)
		p := &o.Processor
		p.HeartbeatInterval, p.SweepInterval = 100*time.Millisecond, 100*time.Millisecond
		p.StopBudget = time.Second
	})
}

// New makes the inbox "test", with its tables. It starts with Options.
func New(t testing.TB, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	silent := inbox.Configure(func(o *inbox.Options) { o.Logger = zap.NewNop() })
	ib, err := inbox.New("test", db, append([]inbox.Option{silent, inbox.Configure(Defaults)}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(context.Background()))
	return ib
}

// Start starts the inbox. The returned function stops it, at the latest when the test ends.
func Start(t testing.TB, ib *inbox.Inbox) (end func()) {
	t.Helper()
	require.NoError(t, ib.Start(context.Background()))
	end = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		require.NoError(t, ib.Stop(ctx))
	})
	t.Cleanup(end)
	return end
}

// Observe returns an option that records the inbox's log, and the recorded log.
func Observe() (inbox.Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return inbox.Configure(func(o *inbox.Options) { o.Logger = zap.New(core) }), logs
}

// Message returns a message of channel "c" and type "t" with its ID as content.
func Message(id string) handler.RawMessage {
	return handler.RawMessage{Channel: "c", Type: "t", ID: id, Content: []byte(id)}
}

// Accept accepts messages with these IDs. All must be valid.
func Accept(t testing.TB, ib *inbox.Inbox, ids ...string) []acceptor.Result {
	t.Helper()
	messages := make([]handler.RawMessage, len(ids))
	for i, id := range ids {
		messages[i] = Message(id)
	}
	results, err := ib.Accept(context.Background(), messages...)
	require.NoError(t, err)
	return results
}

// Process runs everything that is due.
func Process(t testing.TB, ib *inbox.Inbox) processor.Drained {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	drained, err := ib.ProcessPending(ctx)
	require.NoError(t, err)
	require.Equal(t, drained.Picked, drained.Completed+drained.Failed+drained.Poisoned+drained.Released+drained.Unstored,
		"contract 5.14: %+v", drained)
	return drained
}

// Status reads one status.
func Status(t testing.TB, ib *inbox.Inbox, messageID, handlerKey string) models.HandlerStatus {
	t.Helper()
	var rows []models.HandlerStatus
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Where("message_id = ? AND handler_key = ?", messageID,
		handlerKey).Find(&rows).Error)
	require.Len(t, rows, 1, "statuses of message %q under handler key %q", messageID, handlerKey)
	requireFingerprints(t, rows)
	return rows[0]
}

// requireFingerprints checks that the fingerprint of every status that a test reads is that of its
// error, however the attempt failed (contract 11.2).
func requireFingerprints(t testing.TB, rows []models.HandlerStatus) {
	t.Helper()
	for _, row := range rows {
		var expected *string
		if row.LastError != nil {
			name := fingerprint.Of(row.HandlerKey, *row.LastError)
			expected = &name
		}
		require.Equal(t, expected, row.Fingerprint, "the fingerprint of message %q under handler key %q", row.MessageID,
			row.HandlerKey)
	}
}

// Statuses reads all statuses, ordered by message ID and handler key.
func Statuses(t testing.TB, ib *inbox.Inbox) []models.HandlerStatus {
	t.Helper()
	var rows []models.HandlerStatus
	require.NoError(t, ib.DB().Clauses(ib.Tables()).Order("message_id, handler_key").Find(&rows).Error)
	requireFingerprints(t, rows)
	return rows
}

// CountMessages returns how many messages are stored.
func CountMessages(t testing.TB, ib *inbox.Inbox) int {
	t.Helper()
	var n int64
	require.NoError(t, ib.DB().Table(ib.Tables().Messages()).Count(&n).Error)
	return int(n)
}

// AllCompleted reports whether every status is completed.
func AllCompleted(t testing.TB, ib *inbox.Inbox) bool {
	t.Helper()
	var n int64
	require.NoError(t, ib.DB().Table(ib.Tables().HandlerStatuses()).Where("completed_at IS NULL").Count(&n).Error)
	return n == 0
}

// Eventually waits for a condition. It calls the condition in the test's own goroutine, so the
// condition may use require.
func Eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-look.C:
		case <-deadline.C:
			require.FailNow(t, "waited in vain until "+what)
		}
	}
}

// Receive waits for a signal and returns it.
func Receive[T any](t testing.TB, signals <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case v := <-signals:
		return v
	case <-timer.C:
		require.FailNow(t, "waited in vain for "+what)
		panic("unreachable")
	}
}

// Store returns the inbox's store, with which a test acts like another process.
func Store(t testing.TB, db *gorm.DB) store.Store {
	t.Helper()
	st, err := stores.New(db, models.Naming{}, store.Options{TestClock: true})
	require.NoError(t, err)
	return st
}

// Exec runs a SQL statement and fails the test on an error.
func Exec(t testing.TB, db *gorm.DB, statement string, args ...any) {
	t.Helper()
	require.NoError(t, db.Exec(statement, args...).Error, statement)
}
