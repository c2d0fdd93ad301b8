package budget

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

const (
	batch   = 500
	batches = 10
	all     = batch * batches
)

// rig is an inbox with two handlers that do nothing, on a database of its own.
type rig struct {
	*inbox.Inbox
	*wire
	t       *testing.T
	handled atomic.Int64
}

const handlers = 2

func newRig(t *testing.T) *rig { return newRigOn(t, newWire(t, quietDatabase(t), true)) }

// newUntracedRig returns a rig without a tracer, as users have it.
func newUntracedRig(t *testing.T) *rig { return newRigOn(t, newWire(t, quietDatabase(t), false)) }

func newRigOn(t *testing.T, w *wire) *rig {
	r := &rig{t: t, wire: w}
	var specs []*inbox.HandlerSpec
	for i := range handlers {
		specs = append(specs, inbox.Func(fmt.Sprintf("budget-handler-%d", i),
			func(context.Context, handler.Message[[]byte]) error {
				r.handled.Add(1)
				return nil
			}))
	}
	var err error
	r.Inbox, err = inbox.New("budget", r.wire.DB, inbox.Channel("c", inbox.On("t", specs...)),
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 200
			o.Processor.BatchSize = 1000
			o.Processor.Prefetch = 1000
			o.Processor.Listen = false // notifications come beside what is counted, at most one every 3 ms
		}))
	require.NoError(t, err)
	require.NoError(t, r.Migrate(t.Context()))
	return r
}

// payload is a payload that does not compress.
var payload = func() []byte {
	random := rand.New(rand.NewPCG(1, 2))
	bytes := make([]byte, 1024)
	for i := range bytes {
		bytes[i] = byte(random.Uint32())
	}
	return bytes
}()

func newMessages() []handler.RawMessage {
	messages := make([]handler.RawMessage, batch)
	for i := range messages {
		messages[i] = handler.RawMessage{Channel: "c", Type: "t", ID: uuid.NewString(), Content: payload}
	}
	return messages
}

func (r *rig) accept(messages []handler.RawMessage) {
	r.t.Helper()
	_, err := r.Accept(r.t.Context(), messages...)
	require.NoError(r.t, err)
}

// processAll processes until n statuses have been completed.
func (r *rig) processAll(n int64) {
	r.t.Helper()
	require.NoError(r.t, r.Start(r.t.Context()))
	require.Eventually(r.t, func() bool { return r.Counters().Processed == n }, testenv.Patience, time.Millisecond)
}

func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	require.NoError(r.t, r.Stop(ctx))
}

// wal returns the end position of the write-ahead log.
func (r *rig) wal() (bytes int64) {
	r.t.Helper()
	require.NoError(r.t, r.wire.DB.Raw("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").Scan(&bytes).Error)
	return bytes
}

// written has the server's own counts of writes to the statuses.
type written struct{ Inserted, Updated, Hot, Deleted int64 }

func (r *rig) written(table string, inserted, updated int64) (w written) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { // sessions report their counts up to a second later
		require.NoError(r.t, r.wire.DB.Raw(`SELECT n_tup_ins AS inserted, n_tup_upd AS updated, n_tup_hot_upd AS hot, n_tup_del AS deleted
			FROM pg_stat_user_tables WHERE relname = ?`, table).Scan(&w).Error)
		return w.Inserted >= inserted && w.Updated >= updated
	}, testenv.Patience, 50*time.Millisecond)
	return w
}

func TestAcceptingABatchIsOneStatementInThreeRoundTrips(t *testing.T) {
	r := newRig(t)
	r.accept(newMessages()) // prepares the statement
	for _, size := range []int{1, batch} {
		messages := newMessages()[:size]
		r.reset()
		r.accept(messages)
		require.Len(t, r.all(), 3, "begin, one statement for messages and statuses, commit: %q", r.all())
		require.EqualValues(t, 3, r.roundTrips.Load())
	}
}

func TestAcceptingLargeContentsTakesThreeRoundTrips(t *testing.T) {
	r := newUntracedRig(t)
	r.accept(newMessages()) // prepares the statement
	messages := newMessages()
	r.reset()
	r.accept(messages)
	require.EqualValues(t, 3, r.roundTrips.Load())
}

func TestGroupMembersCostLittleMoreThanARoundTrip(t *testing.T) {
	const group, statuses = 10, 500
	w := newWire(t, quietDatabase(t), false)
	ib, err := inbox.New("budget", w.DB, inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 1
		o.Processor.BatchSize = statuses
		o.Processor.Prefetch = statuses
	}),
		inbox.Channel("c", inbox.On("t",
			inbox.Tx("h", func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
				return tx.Exec("INSERT INTO effects VALUES (?)", m.ID).Error
			}, handler.TxGroup(group)))))
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(t.Context()))
	require.NoError(t, w.DB.Exec("CREATE TABLE effects(id text)").Error)
	process := func() {
		_, err := ib.Accept(t.Context(), newMessages()[:statuses]...)
		require.NoError(t, err)
		w.reset()
		drained, err := ib.ProcessPending(t.Context())
		require.NoError(t, err)
		require.Equal(t, processor.Drained{Picked: statuses, Completed: statuses}, drained)
	}
	process() // prepares the statements
	process()
	perStatus := float64(w.roundTrips.Load()) / statuses
	t.Logf("%.2f round trips per status in groups of %d", perStatus, group)
	require.Less(t, perStatus, 1.55, "one each, and what begins, checks, completes and commits the group")
	var written int64
	require.NoError(t, w.DB.Table("effects").Count(&written).Error)
	require.EqualValues(t, 2*statuses, written)
}

func TestAcceptWritesEachRowOnceAndLittleLog(t *testing.T) {
	r := newRig(t)
	r.accept(newMessages())
	before := r.wal()
	for range batches {
		r.accept(newMessages())
	}
	perMessage := float64(r.wal()-before) / all
	t.Logf("accepting wrote %.0f bytes of log per message of 1 KB with %d statuses", perMessage, handlers)
	require.Less(t, perMessage, 2750.0)
	require.Equal(t, written{Inserted: all + batch}, r.written("inbox_messages", all+batch, 0))
	require.Equal(t, written{Inserted: handlers * (all + batch)},
		r.written("inbox_handler_statuses", handlers*(all+batch), 0))
}

func TestBacklogWritesEachStatusTwiceAndClaimsInPlace(t *testing.T) {
	r := newRig(t)
	for range batches {
		r.accept(newMessages())
	}
	const statuses = handlers * all
	r.reset()
	before := r.wal()
	r.processAll(statuses)
	perStatus := float64(r.wal()-before) / statuses
	sent := len(r.all())
	r.stop()

	require.EqualValues(t, statuses, r.handled.Load())
	w := r.written("inbox_handler_statuses", statuses, 2*statuses)
	t.Logf("processing wrote %.0f bytes of log per status and %d statements for %d statuses; %+v", perStatus, sent,
		statuses, w)
	require.Equal(t, written{Inserted: statuses, Updated: 2 * statuses, Hot: w.Hot}, w,
		"a claim and a completion each, nothing else")
	require.GreaterOrEqual(t, float64(w.Hot), 0.98*statuses, "claims find room beside the row and touch no index")
	require.Less(t, perStatus, 440.0)
	require.Less(t, sent, statuses/50, "statements carry hundreds of statuses")
}

func TestLocallyDispatchedMessagesNeedOneWriteLess(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Start(t.Context()))
	accepted := int64(0)
	accept := func(count int) {
		r.accept(newMessages()[:count])
		accepted += int64(count)
		require.Eventually(t, func() bool {
			return r.Counters().Processed == accepted*handlers
		}, testenv.Patience, time.Millisecond)
	}
	for r.Counters().Dispatched == 0 { // until the worker has registered
		accept(1)
	}
	claimed := accepted*handlers - r.Counters().Dispatched
	for range batches {
		accept(batch / 5)
	}
	r.stop()
	statuses := accepted * handlers
	require.Equal(t, statuses-claimed, r.Counters().Dispatched)
	w := r.written("inbox_handler_statuses", statuses, statuses+claimed)
	require.Equal(t, written{Inserted: statuses, Updated: statuses + claimed, Hot: w.Hot}, w,
		"inserted claimed, then completed")
}

// allocations returns how many objects and bytes work allocates in this process, per unit.
func allocations(units int, work func()) (count, bytes float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(units),
		float64(after.TotalAlloc-before.TotalAlloc) / float64(units)
}

func TestAllocationsPerMessageStayFew(t *testing.T) {
	r := newUntracedRig(t)
	messages := make([][]handler.RawMessage, batches)
	for i := range messages {
		messages[i] = newMessages()
	}
	r.accept(messages[0]) // prepares the statement
	accepting, bytes := allocations(all-batch, func() {
		for _, m := range messages[1:] {
			r.accept(m)
		}
	})
	const statuses = handlers * all
	processing, _ := allocations(statuses, func() { r.processAll(statuses) })
	r.stop()
	t.Logf("allocations: %.1f with %.0f bytes per message of 1 KB accepted, %.1f per status processed", accepting, bytes,
		processing)
	require.Less(t, accepting, 11.0)
	require.Less(t, bytes, 9000.0) // 3,600 in a usual build; the race detector drops buffers at random, 6,000 were seen
	require.Less(t, processing, 22.0)
}
