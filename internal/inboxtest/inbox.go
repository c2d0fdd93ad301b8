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
	"github.com/gorm-inbox/inbox/internal/store/dialects"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// Patience bounds every wait of a test.
const Patience = testenv.Patience

// Noon is when tests with a clock of their own begin.
var Noon = fxtest.Start

// Bytes is the message that the handlers of most tests get.
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

// Nothing is a handler's function that succeeds.
func Nothing(context.Context, Bytes) error { return nil }

// Handlers gives channel "c" its handlers for type "t".
func Handlers(handlers ...*inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("c", inbox.On("t", handlers...))
}

// Options are the defaults with tables that Start migrates, and with bounds
// that only a defect reaches: no statement is given up and no worker is taken
// for dead because the machine is slow. A test of a bound sets its own.
func Options() inbox.Options {
	o := inbox.DefaultOptions()
	o.Migrate = true
	o.Processor.StatementTimeout, o.Processor.WorkerTimeout = Patience, Patience
	return o
}

// Brisk is for inboxes that run: intervals as short as tests want them.
func Brisk() inbox.Option {
	o := Options()
	p := &o.Processor
	p.HeartbeatInterval, p.SweepInterval = 100*time.Millisecond, 100*time.Millisecond
	p.StopBudget = time.Second
	return inbox.WithOptions(o)
}

// New makes the inbox "test", with its tables. It starts from Options.
func New(t testing.TB, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	ib, err := inbox.New("test", db, append([]inbox.Option{inbox.WithOptions(Options())}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(context.Background()))
	return ib
}

// Start starts it; end stops it, at the latest when the test ends.
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

// Observe collects the inbox's log.
func Observe() (inbox.Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return inbox.WithLogger(zap.New(core)), logs
}

// Message is a message of channel "c" and type "t" with its ID as content.
func Message(id string) handler.RawMessage {
	return handler.RawMessage{Channel: "c", Type: "t", ID: id, Content: []byte(id)}
}

// Accept accepts messages of these IDs; all must be valid.
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

// Process runs what is due.
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
	require.NoError(t, ib.DB().Scopes(ib.Statuses).Where("message_id = ? AND handler_key = ?", messageID,
		handlerKey).Find(&rows).Error)
	require.Len(t, rows, 1, "statuses of message %q under handler key %q", messageID, handlerKey)
	requireFingerprints(t, rows)
	return rows[0]
}

// requireFingerprints holds for every status that a test reads, however it failed: its
// fingerprint is that of its error (contract 11.2).
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

// Statuses reads all statuses, by message ID and handler key.
func Statuses(t testing.TB, ib *inbox.Inbox) []models.HandlerStatus {
	t.Helper()
	var rows []models.HandlerStatus
	require.NoError(t, ib.DB().Scopes(ib.Statuses).Order("message_id, handler_key").Find(&rows).Error)
	requireFingerprints(t, rows)
	return rows
}

// CountMessages counts the stored messages.
func CountMessages(t testing.TB, ib *inbox.Inbox) int {
	t.Helper()
	var n int64
	require.NoError(t, ib.DB().Scopes(ib.Messages).Count(&n).Error)
	return int(n)
}

// AllCompleted reports whether every status is completed.
func AllCompleted(t testing.TB, ib *inbox.Inbox) bool {
	t.Helper()
	var n int64
	require.NoError(t, ib.DB().Scopes(ib.Statuses).Where("completed_at IS NULL").Count(&n).Error)
	return n == 0
}

// Eventually waits for a condition, which runs in the test's own goroutine and
// may use require.
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

// Store is the inbox's store, to bring about what other processes would do.
func Store(t testing.TB, db *gorm.DB) store.Store {
	t.Helper()
	st, err := dialects.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	return st
}

// Exec runs a statement of the test.
func Exec(t testing.TB, db *gorm.DB, statement string, args ...any) {
	t.Helper()
	require.NoError(t, db.Exec(statement, args...).Error, statement)
}
