package synchronous_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/models"
)

// inline is a runner of one handler that remembers its messages.
type inline struct {
	*synchronous.Runner
	counters *telemetry.Counters
}

// newInline returns a runner that runs one handler for type "t", once per message.
func newInline(t *testing.T, db *gorm.DB, store idempotent.Store, h *handler.Handler) inline {
	t.Helper()
	r, counters := newRunner(t, db, func(c *synchronous.Config) {
		c.MaxRetries, c.Concurrency = 1, 20
		remember(t, c, store)
	}, h)
	return inline{r, counters}
}

func (g inline) deliver(t *testing.T, partition int, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
	defer cancel()
	return g.Deliver(ctx, nil, envelope.Received{Record: envelope.Record{Topic: "topic", Partition: partition},
		Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: id, Content: []byte(id)}}})
}

func tables(t *testing.T, db *gorm.DB) *gormstore.Store {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, ""))
	store, err := gormstore.New(db, func(o *gormstore.Options) { o.LockTimeout = time.Second })
	require.NoError(t, err)
	return store
}

// countedEffects creates a table that accepts each message any number of times, and returns a
// function that counts its rows.
func countedEffects(t *testing.T, db *gorm.DB) func() int64 {
	t.Helper()
	inboxtest.Exec(t, db, "CREATE TABLE effects (message_id varchar(200))")
	return func() (n int64) {
		require.NoError(t, db.Table("effects").Count(&n).Error)
		return n
	}
}

// Contract 8.2: if the response of a commit is lost, the marker shows whether it was committed.
// SQLite has no connection to lose.
func TestLostCommitTakesEffectOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		fault pgproxy.Fault
		runs  int32
	}{"committed": {pgproxy.AnswerLost, 1}, "not committed": {pgproxy.RequestLost, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.PostgresDSN(t)
			direct := testenv.OpenPostgres(t, dsn)
			written := countedEffects(t, direct)
			tables(t, direct)
			proxy := pgproxy.New(t, dsn)
			db := testenv.OpenPostgres(t, proxy.DSN())
			store, err := gormstore.New(db)
			require.NoError(t, err)
			runs, committed := atomic.Int32{}, atomic.Int32{}
			g := newInline(t, db, store, handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				runs.Add(1)
				require.True(t, handlertx.AfterCommit(tx, func() { committed.Add(1) }))
				return write(tx, m.ID)
			}))
			proxy.LoseCommits(tc.fault, 1)
			require.NoError(t, g.deliver(t, 0, "1"))
			require.Zero(t, proxy.Left())
			require.Equal(t, tc.runs, runs.Load())
			require.EqualValues(t, 1, written())
			require.EqualValues(t, 1, committed.Load(), "what waits for the commit happens once")
			require.Zero(t, g.counters.Load(telemetry.Failed))
		})
	}
}

// Contract 8.2: after a failed marker the transaction refuses every statement. A handler that makes
// no statement of its own would not notice, so it must not run.
func TestMessageWithUnwritableMarkerDoesNotRun(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		store := tables(t, d.DB)
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_markers ADD CONSTRAINT refused CHECK (message_id <> '1')")
		runs := atomic.Int32{}
		g := newInline(t, d.DB, store, handler.New("h", func(context.Context, inboxtest.Bytes) error {
			runs.Add(1)
			return nil
		}))
		stopping, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- g.Deliver(context.Background(), stopping,
				envelope.Received{Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: "1"}}})
		}()
		inboxtest.Eventually(t, func() bool { return g.Outage() != nil || runs.Load() > 0 || len(done) > 0 }, "it was tried")
		close(stopping)
		require.ErrorIs(t, inboxtest.Receive(t, done, "the delivery's end"), envelope.ErrInterrupted)
		require.Zero(t, runs.Load())
		require.Zero(t, g.counters.Load(telemetry.Failed), "it is the store's trouble")
		require.NoError(t, g.deliver(t, 0, "2"))
		require.EqualValues(t, 1, runs.Load())
	})
}

// Contract 8.2: while a rename is rolled out over running workers, a message never runs under both
// keys.
func TestMessageInFlightDoesNotRunUnderTheNewKey(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		written := countedEffects(t, d.DB)
		entered, open := make(chan struct{}, 1), make(chan struct{})
		old := newInline(t, d.DB, tables(t, d.DB), handler.NewTx("old",
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				entered <- struct{}{}
				<-open
				return write(tx, m.ID)
			}))
		db := d.Another(t)
		renamed := newInline(t, db, tables(t, db), handler.NewTx("new",
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return write(tx, m.ID)
			}, handler.LegacyKeys("old", "older")))
		done := make(chan error, 2)
		go func() { done <- old.deliver(t, 0, "1") }()
		inboxtest.Receive(t, entered, "the old program's call")
		go func() { done <- renamed.deliver(t, 1, "1") }()
		require.Never(t, func() bool { return len(done) > 0 }, 300*time.Millisecond, 20*time.Millisecond)
		close(open)
		require.NoError(t, inboxtest.Receive(t, done, "one"))
		require.NoError(t, inboxtest.Receive(t, done, "the other"))
		require.EqualValues(t, 1, written())
		require.EqualValues(t, 1, renamed.counters.Load(telemetry.DuplicateSkipped))
		require.NoError(t, renamed.deliver(t, 1, "2"))
		require.EqualValues(t, 2, written())
	})
}

// Contract 8.3: while a rename is rolled out, each program skips what the other has processed,
// whatever the store is.
func TestOldAndNewProgramSkipMessagesTheOtherProcessed(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		memory, err := memstore.New()
		require.NoError(t, err)
		for name, store := range map[string]idempotent.Store{"inbox_markers": tables(t, d.DB), "memory": memory} {
			t.Run(name, func(t *testing.T) {
				var calls []string
				program := func(key string, legacyKeys ...string) inline {
					return newInline(t, d.DB, store, handler.New(key, func(_ context.Context, m inboxtest.Bytes) error {
						calls = append(calls, key+" "+m.ID)
						return nil
					}, handler.LegacyKeys(legacyKeys...)))
				}
				old, renamed := program("old"), program("new", "old", "older")
				require.NoError(t, old.deliver(t, 0, "1"))
				require.NoError(t, renamed.deliver(t, 0, "1"))
				require.NoError(t, renamed.deliver(t, 0, "2"))
				require.NoError(t, old.deliver(t, 0, "2"))
				require.Equal(t, []string{"old 1", "new 2"}, calls)
			})
		}
	})
}

// Contract 8.2: with any store, one of many concurrent duplicates has its effect. If the marker
// shares the transaction, that holds even if attempts fail.
func TestConcurrentDuplicatesTakeEffectOnce(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(map[bool]string{true: "shared transaction", false: "memory"}[shared], func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				written := countedEffects(t, d.DB)
				var store idempotent.Store = tables(t, d.DB)
				if !shared {
					memory, err := memstore.New()
					require.NoError(t, err)
					store = memory
				}
				runs := atomic.Int32{}
				g := newInline(t, d.DB, store, handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					if err := write(tx, m.ID); err != nil {
						return err
					}
					if runs.Add(1) < 4 {
						return handler.Snooze(0) // rolled back, and nothing is charged
					}
					return nil
				}))
				var all sync.WaitGroup
				for p := range 20 {
					all.Add(1)
					go func() {
						defer all.Done()
						if err := g.deliver(t, p, "1"); err != nil {
							t.Error(err)
						}
					}()
				}
				all.Wait()
				require.EqualValues(t, 1, written())
				require.EqualValues(t, 4, runs.Load())
				require.EqualValues(t, 1, g.counters.Load(telemetry.Processed))
			})
		})
	}
}

func TestMessageWithoutIDGetsTheIDOfItsMarker(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		memory, err := memstore.New()
		require.NoError(t, err)
		for name, store := range map[string]idempotent.Store{"markers": tables(t, d.DB), "memory": memory} {
			var seen []string
			g := newInline(t, d.DB, store, handler.New(name, func(_ context.Context, m handler.Message[[]byte]) error {
				seen = append(seen, m.ID)
				return nil
			}, handler.IdempotencyKey(func(m handler.Message[[]byte]) (string, error) {
				return "order " + string(m.Payload), nil
			})))
			for i, id := range []string{"", "", "own"} {
				require.NoError(t, g.Deliver(t.Context(), nil,
					envelope.Received{Record: envelope.Record{Topic: "topic", Offset: int64(i)},
						Messages: []handler.RawMessage{{Channel: "c", Type: "t", ID: id, Content: []byte("7" + id)}}}))
			}
			require.Equal(t, []string{"order 7", "own"}, seen, name)
		}
	})
}
