package processor_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// behindProxy returns a PostgreSQL database, once connected directly and once through a proxy that
// loses what a test tells it to. SQLite has no connection to lose.
func behindProxy(t *testing.T) (d *inboxtest.Database, proxy *pgproxy.Proxy, proxied *gorm.DB) {
	t.Helper()
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	d = &inboxtest.Database{Dialect: "postgres", DB: testenv.OpenPostgres(t, dsn)}
	proxy = pgproxy.New(t, dsn)
	return d, proxy, testenv.OpenPostgres(t, proxy.DSN())
}

// lossy returns an inbox behind the proxy, which finds by polling what others accept.
func lossy(t *testing.T, proxied *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	return inboxtest.New(t, proxied, append([]inbox.Option{hasty(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.StatementTimeout = 2 * time.Second
		o.Processor.PollingInterval = 50 * time.Millisecond
		o.SampleInterval = time.Minute
	})}, opts...)...)
}

// startSampled starts an inbox and waits until it has sampled its backlog, which it does in a transaction.
func startSampled(t *testing.T, ib *inbox.Inbox) {
	t.Helper()
	inboxtest.Start(t, ib)
	inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.IsZero() }, "a sample was taken")
}

// slowCommits makes every commit of a transaction that wrote an effect take half a second.
func slowCommits(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	inboxtest.Exec(t, d.DB,
		`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'`)
	inboxtest.Exec(t, d.DB,
		`CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
}

// claimedAndSettled is the version of a status that was claimed once and ended by that claim. It
// starts at 1.
const claimedAndSettled = 3

// Contract 5.10: a commit with unknown outcome is resolved by reading back.
func TestCommitOfUnknownOutcomeTakesEffectOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault pgproxy.Fault
		slow  bool // the commit is still running when it is read back
		runs  int64
	}{
		{"committed, the answer is lost", pgproxy.AnswerLost, false, 1},
		{"committed, the answer never comes", pgproxy.AnswerSilent, false, 1},
		{"not committed, the request is lost", pgproxy.RequestLost, false, 2},
		{"not committed, the connection falls silent", pgproxy.Silence, false, 2},
		{"not committed, the connection falls silent midway", pgproxy.SilenceMidway, false, 2},
		{"committed later, the connection is lost", pgproxy.ConnectionLost, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			written := effects(t, d)
			if c.slow {
				slowCommits(t, d)
			}
			var runs atomic.Int64
			outcomes := make(chan handler.AttemptOutcome, 10)
			ib := lossy(t, proxied, inbox.Configure(func(o *inbox.Options) {
				o.Hooks = handler.Hooks{OnAttempt: func(_ context.Context, e handler.AttemptEvent) {
					outcomes <- e.Outcome
				}}
			}),
				inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					runs.Add(1)
					return write(tx, m.ID)
				})))
			producer := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h", nothingTx)))
			startSampled(t, ib)
			proxy.LoseCommits(c.fault, 1) // the next commit is the handler's
			inboxtest.Accept(t, producer, "1")
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it was completed")
			require.Zero(t, proxy.Left())
			if c.runs == 2 {
				require.Equal(t, handler.AttemptReleased, inboxtest.Receive(t, outcomes, "the first attempt's outcome"))
			}
			require.Equal(t, handler.AttemptCompleted, inboxtest.Receive(t, outcomes, "the outcome"))
			require.Equal(t, []string{"1"}, written())
			require.Equal(t, c.runs, runs.Load())
			s := inboxtest.Status(t, ib, "1", "h")
			require.Zero(t, s.ErrorCount, "the handler is not to blame")
			require.Zero(t, s.AbandonedCount)
			if c.runs == 2 {
				require.Contains(t, *s.LastError, "commit handler transaction", "why it ran twice")
			}
			if c.runs == 1 {
				require.Nil(t, s.LastError)
				require.EqualValues(t, claimedAndSettled, s.Version, "it was never released")
			}
			require.EqualValues(t, 1, ib.Counters().Processed)
			require.Zero(t, ib.Counters().Fenced)
		})
	}
}

// Contract 4.7, 5.10: what waits for the commit of a handler's transaction happens once the commit
// is found. Here that is counting what the handler accepted, and waking the processor.
func TestCommitFoundLaterNotifiesItsMessages(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault pgproxy.Fault
		slow  bool // the commit is found when the result is stored, not at once
		of    []handler.Option
	}{
		{"found at once", pgproxy.AnswerLost, false, nil},
		{"found later", pgproxy.ConnectionLost, true, nil},
		{"shared, found at once", pgproxy.AnswerLost, false, []handler.Option{handler.TxGroup(2)}},
		{"shared, found later", pgproxy.ConnectionLost, true, []handler.Option{handler.TxGroup(2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			effects(t, d)
			if c.slow {
				slowCommits(t, d)
			}
			ended := make(chan handler.AttemptOutcome, 10)
			var ib *inbox.Inbox
			ib = lossy(t, proxied, inbox.Configure(func(o *inbox.Options) {
				o.Hooks = handler.Hooks{OnAttempt: func(_ context.Context, e handler.AttemptEvent) {
					if e.HandlerKey == "h" {
						ended <- e.Outcome
					}
				}}
			}), inbox.Channel("c", inbox.On("next", inboxtest.Do("next", inboxtest.Nothing)),
				inbox.On("t", inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					_, err := ib.AcceptTx(ctx, tx, handler.RawMessage{Channel: "c", Type: "next", ID: "after " + m.ID})
					return errors.Join(err, write(tx, m.ID))
				}, c.of...))))
			producer := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h", nothingTx)))
			startSampled(t, ib)
			proxy.LoseCommits(c.fault, 1) // the next commit is the handler's
			inboxtest.Accept(t, producer, "1", "2")
			for range 2 {
				require.Equal(t, handler.AttemptCompleted, inboxtest.Receive(t, ended, "an attempt's end"))
			}
			require.Zero(t, proxy.Left())
			require.EqualValues(t, 2, ib.Counters().Accepted)
		})
	}
}

// Contract 5.10: the same for results that are written in groups.
func TestResultsWithLostResponseAreNotReportedStale(t *testing.T) {
	completing, settling := pgproxy.Containing("completed_at = COALESCE("),
		pgproxy.Containing("error_count = c.error_count")
	for _, fault := range []pgproxy.Fault{pgproxy.AnswerLost, pgproxy.RequestLost, pgproxy.AnswerSilent,
		pgproxy.ConnectionLost} {
		t.Run(fault.String(), func(t *testing.T) {
			const messages = 20
			d, proxy, proxied := behindProxy(t)
			ran := newLedger()
			ib := lossy(t, proxied, inbox.Configure(func(o *inbox.Options) {
				o.Processor.Concurrency = messages
			}), inboxtest.Handlers(
				inboxtest.Do("completes", ran.note),
				inboxtest.Do("poisons", func(ctx context.Context, m inboxtest.Bytes) error {
					_ = ran.note(ctx, m)
					return handler.Poison(errBoom)
				}),
				inboxtest.Do("retries", func(ctx context.Context, m inboxtest.Bytes) error {
					_ = ran.note(ctx, m)
					return handler.RetryAfter(time.Hour, errBoom)
				})))
			inboxtest.Accept(t, ib, many(messages)...)
			proxy.Lose(fault, 2, completing)
			proxy.Lose(fault, 2, settling)
			inboxtest.Start(t, ib)
			stored := func(where string) bool {
				var n int64
				require.NoError(t, d.DB.Table(ib.Tables().HandlerStatuses()).Where(where).Count(&n).Error)
				return n == messages
			}
			inboxtest.Eventually(t, func() bool { return stored("completed_at IS NOT NULL") }, "the completions are stored")
			inboxtest.Eventually(t, func() bool { return stored("is_poisoned") }, "those that poisoned are stored")
			inboxtest.Eventually(t, func() bool {
				return stored("next_attempt_at IS NOT NULL")
			}, "those to be tried again are stored")
			inboxtest.Eventually(t, func() bool { return proxy.Left() == 0 }, "all losses took place")
			ran.requireOnce(t, 3*messages)
			for _, s := range inboxtest.Statuses(t, ib) {
				require.EqualValues(t, claimedAndSettled, s.Version, s.MessageID+" "+s.HandlerKey)
			}
			inboxtest.Eventually(t, func() bool {
				c := ib.Counters()
				return c.Processed == messages && c.Failed == 2*messages && c.Poisoned == messages
			}, "each was counted once, whatever became of the first answer")
			require.Zero(t, ib.Counters().Fenced)
		})
	}
}

// Contract 5.11: attempts that share a transaction share its unknown outcome.
func TestSharedTransactionOfUnknownOutcomeTakesEffectOnce(t *testing.T) {
	for _, c := range []struct {
		fault pgproxy.Fault
		slow  bool
		runs  int
	}{
		{pgproxy.AnswerLost, false, 1}, {pgproxy.RequestLost, false, 2}, {pgproxy.ConnectionLost, true, 1},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			written := effects(t, d)
			if c.slow {
				slowCommits(t, d)
			}
			const shared = 3
			ran := newLedger()
			ib := lossy(t, proxied, inboxtest.Handlers(inboxtest.Tx("h",
				func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					_ = ran.note(ctx, m)
					return write(tx, m.ID)
				}, handler.TxGroup(shared))))
			var ids []string
			for i := range shared {
				ids = append(ids, strconv.Itoa(i))
			}
			producer := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h", nothingTx)))
			startSampled(t, ib)
			proxy.LoseCommits(c.fault, 1) // the next commit is the handlers'
			inboxtest.Accept(t, producer, ids...)
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
			require.Zero(t, proxy.Left())
			require.Equal(t, ids, written())
			for what, n := range ran.runs {
				require.Equal(t, c.runs, n, what)
			}
			for _, s := range inboxtest.Statuses(t, ib) {
				require.Zero(t, s.ErrorCount, "the handler is not to blame")
			}
			inboxtest.Eventually(t, func() bool { return ib.Counters().Processed == shared }, "each was counted once")
			require.Zero(t, ib.Counters().Fenced)
		})
	}
}

// Contract 5.10, 5.12: an unknown outcome neither blocks a lane nor changes its order.
func TestLaneContinuesAfterACommitOfUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		fault pgproxy.Fault
		slow  bool
	}{{pgproxy.AnswerLost, false}, {pgproxy.RequestLost, false}, {pgproxy.ConnectionLost, true}} {
		t.Run(c.fault.String(), func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			written := effects(t, d)
			if c.slow {
				slowCommits(t, d)
			}
			var mu sync.Mutex
			var runs []string
			ordered := inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				mu.Lock()
				runs = append(runs, m.ID)
				mu.Unlock()
				return write(tx, m.ID)
			}, handler.Ordered())
			ib := lossy(t, proxied, inboxtest.Handlers(ordered))
			producer := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Tx("h", nothingTx, handler.Ordered())))
			startSampled(t, ib)
			proxy.LoseCommits(c.fault, 1) // the next commit is the handler's
			var messages []handler.RawMessage
			ids := []string{"1", "2", "3", "4"}
			for _, id := range ids {
				m := inboxtest.Message(id)
				m.OrderingKey = []byte("lane")
				messages = append(messages, m)
			}
			_, err := producer.Accept(context.Background(), messages...)
			require.NoError(t, err)
			// All lanes are checked every minute; this must be sooner.
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")
			require.Zero(t, proxy.Left())
			require.Equal(t, ids, written())
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, ids, slices.Compact(runs))
			require.Zero(t, ib.Counters().Fenced)
		})
	}
}
