package processor_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// listening returns the options of a worker that listens and hardly ever polls.
func listening(more ...inbox.Option) []inbox.Option {
	return append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Listen = true
		o.Processor.PollingInterval = time.Hour
	})}, more...)
}

// listens reports whether a worker of this database listens.
func listens(t *testing.T, db *gorm.DB) bool {
	t.Helper()
	return len(listeners(t, db)) > 0
}

// listeners returns the server's processes for connections that began to listen.
func listeners(t *testing.T, db *gorm.DB) (pids []int) {
	t.Helper()
	require.NoError(t,
		db.Raw(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' AND state = 'idle'`).Scan(&pids).Error)
	return pids
}

// awaitListening waits until a worker is notified of what the other inbox accepts.
func awaitListening(t *testing.T, other *inbox.Inbox, got <-chan string) {
	t.Helper()
	// The first may be found by the poll at the start; the second may not.
	for _, id := range []string{"at the start", "heard"} {
		inboxtest.Accept(t, other, id)
		require.Equal(t, id, inboxtest.Receive(t, got, "what is accepted while it listens"))
	}
}

func listeningFails(ib *inbox.Inbox) error { return ib.Health().Processor.Conditions["listening"] }

// Contract 4.7.
func TestListenRunsMessagesOfOtherProcessesImmediately(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		handler, got := arrivals()
		worker := inboxtest.New(t, d.DB, listening(inboxtest.Handlers(handler))...)
		other := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Listen = true
		}), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		inboxtest.Start(t, worker)
		inboxtest.Accept(t, other, "accepted")
		require.Equal(t, "accepted", inboxtest.Receive(t, got, "what was accepted elsewhere"))

		require.NoError(t, other.DB().Transaction(func(tx *gorm.DB) error {
			_, err := other.AcceptTx(context.Background(), tx, inboxtest.Message("in a transaction"))
			return err
		}))
		require.Equal(t, "in a transaction", inboxtest.Receive(t, got, "what was accepted in a transaction elsewhere"))
		require.NoError(t, worker.DB().Transaction(func(tx *gorm.DB) error {
			_, err := worker.AcceptTx(context.Background(), tx, inboxtest.Message("without Wake"))
			return err
		}))
		require.Equal(t, "without Wake", inboxtest.Receive(t, got, "what was accepted in a transaction here"))
	})
}

func TestNotificationUnderAnOldKeyWakesTheWorker(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		got := make(chan string, 10)
		worker := inboxtest.New(t, d.DB, listening(inboxtest.Handlers(
			inboxtest.Do("new", func(_ context.Context, m inboxtest.Bytes) error {
				got <- m.ID
				return nil
			}, handler.LegacyKeys("old"))))...)
		other := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Listen = true
		}), inboxtest.Handlers(inboxtest.Do("old", inboxtest.Nothing)))
		inboxtest.Start(t, worker)
		inboxtest.Eventually(t, func() bool { return listens(t, d.DB) }, "it listens")
		for _, id := range []string{"1", "2", "3"} {
			inboxtest.Accept(t, other, id)
			require.Equal(t, id, inboxtest.Receive(t, got, "a message under the handler's old key"))
		}
	})
}

// Notifications sent while no worker listens are lost, so a worker polls once it listens again.
func TestWorkerPollsOnceItListensAgain(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		observe, logs := inboxtest.Observe()
		handler, got := arrivals()
		proxy := pgproxy.New(t, d.DSN())
		worker := inboxtest.New(t, testenv.OpenPostgres(t, proxy.DSN()), listening(observe, inboxtest.Handlers(handler))...)
		other := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Listen = true
		}), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		inboxtest.Start(t, worker)
		awaitListening(t, other, got)
		for _, id := range []string{"1", "2"} {
			inboxtest.Eventually(t, func() bool { return listeningFails(worker) == nil }, "it listens")
			proxy.Lose(pgproxy.RequestLost, 1<<30, pgproxy.Containing("LISTEN"))
			for _, pid := range listeners(t, d.DB) {
				inboxtest.Exec(t, d.DB, "SELECT pg_terminate_backend(?)", pid)
			}
			inboxtest.Eventually(t, func() bool { return listeningFails(worker) != nil }, "health tells that it does not listen")
			require.ErrorContains(t, worker.Health().Degraded(), "listening: ")
			inboxtest.Accept(t, other, id)
			require.Empty(t, got)
			proxy.Mend()
			require.Equal(t, id, inboxtest.Receive(t, got, "what was accepted meanwhile"))
		}
		inboxtest.Eventually(t, func() bool { return listeningFails(worker) == nil }, "health tells that it listens")
		failing := logs.FilterMessage("inbox: listening failing: polling goes on").Len()
		require.Contains(t, []int{1, 2}, failing, "once for each loss, or once for both if they are close together")
		require.Equal(t, failing, logs.FilterMessage("inbox: listening recovered").Len())
	})
}

func TestListenerDetectsADeadConnection(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		handler, got := arrivals()
		proxy := pgproxy.New(t, d.DSN())
		const workerTimeout = 3 * time.Second
		// A connection attempt that is running when the partition begins is given up after
		// StatementTimeout.
		worker := inboxtest.New(t, testenv.OpenPostgres(t, proxy.DSN()), listening(inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = workerTimeout
			o.Processor.StatementTimeout = inboxtest.Patience / 10
		}), inboxtest.Handlers(handler))...)
		inboxtest.Start(t, worker)
		other := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Listen = true
		}), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		inboxtest.Eventually(t, func() bool { return listens(t, d.DB) }, "it listens")
		awaitListening(t, other, got)
		proxy.Partition() // neither end notices
		inboxtest.Eventually(t, func() bool { return listeningFails(worker) != nil }, "the silence is noticed")
		inboxtest.Accept(t, other, "1")
		proxy.Heal()
		require.Equal(t, "1", inboxtest.Receive(t, got, "what was accepted meanwhile"))
	})
}

func TestStopDoesNotWaitForTheListener(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		worker := inboxtest.New(t, d.DB, listening(inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 10 * inboxtest.Patience
		}),
			inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))...)
		for range 2 {
			require.NoError(t, worker.Start(context.Background()))
			inboxtest.Eventually(t, func() bool { return listens(t, d.DB) }, "it listens")
			began := time.Now()
			require.NoError(t, worker.Stop(context.Background()))
			require.Less(t, time.Since(began), inboxtest.Patience/3, "it waits for a notification for longer than Stop may take")
			inboxtest.Eventually(t, func() bool { return !listens(t, d.DB) }, "the connection is closed")
		}
	})
}

// Contract 5.8: other workers need not wait for a poll to take over what a stop releases.
func TestStopNotifiesWorkersOfReleasedClaims(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		running := make(chan string, 1)
		stopping := inboxtest.New(t, d.DB, listening(inbox.Configure(func(o *inbox.Options) {
			o.Processor.StopBudget = soon
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 0
		}),
			inboxtest.Handlers(
				inboxtest.Do("a", func(ctx context.Context, m inboxtest.Bytes) error {
					running <- m.ID
					<-ctx.Done()
					return ctx.Err()
				})))...)
		require.NoError(t, stopping.Start(context.Background()))
		inboxtest.Accept(t, stopping, "1")
		inboxtest.Receive(t, running, "the first worker's attempt")

		handler, got := arrivals()
		other := inboxtest.New(t, d.Another(t), listening(inboxtest.Handlers(handler))...)
		inboxtest.Start(t, other)
		awaitListening(t, stopping, got)
		require.Empty(t, got)
		require.NoError(t, stopping.Stop(context.Background()))
		require.Equal(t, "1", inboxtest.Receive(t, got, "what the other worker released"))
	})
}

// Contract 4.7.
func TestWorkerThatCannotListenWarnsOnceAndPolls(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // on SQLite nothing is said
		pool, err := sql.Open("pgx veiled", d.DSN())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pool.Close()) })
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}))
		require.NoError(t, err)
		observe, logs := inboxtest.Observe()
		handler, got := arrivals()
		worker := inboxtest.New(t, db, inboxtest.Brisk(), observe, inboxtest.Handlers(handler),
			inbox.Configure(func(o *inbox.Options) { o.Processor.PollingInterval = 100 * time.Millisecond }))
		other := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		for range 2 {
			require.NoError(t, worker.Start(context.Background()))
			inboxtest.Accept(t, other, uuid.NewString())
			inboxtest.Receive(t, got, "what the poll finds")
			inboxtest.Eventually(t, func() bool {
				return logs.FilterMessage("inbox: notifications cannot arrive, what other processes accept is found by polling").Len() > 0
			}, "the log says so")
			require.NoError(t, worker.Health().Degraded())
			require.NoError(t, worker.Stop(context.Background()))
		}
		said := logs.FilterMessage("inbox: notifications cannot arrive, what other processes accept is found by polling").All()
		require.Len(t, said, 1)
		require.Equal(t, zap.InfoLevel, said[0].Level)
		require.Contains(t, said[0].ContextMap()["error"],
			"the pool's driver is not pgx (github.com/jackc/pgx/v5/stdlib): its connections are processor_test.veil")
	})
}

// Contract 4.7.
func TestProcessesThatDoNotListenSendNoNotifications(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		silent := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Processor.Listen = false }),
			inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		l, err := inboxtest.Store(t, d.Another(t)).Listen(t.Context())
		require.NoError(t, err)
		defer l.Close()
		inboxtest.Accept(t, silent, "1")
		inboxtest.Start(t, silent)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, silent) }, "it works")
		require.NoError(t, silent.DB().Transaction(func(tx *gorm.DB) error {
			_, err := silent.AcceptTx(t.Context(), tx, inboxtest.Message("2"))
			return err
		}))
		require.NoError(t, silent.Stop(t.Context()))
		require.NoError(t, inboxtest.Store(t, d.DB).Notify(t.Context(), "the end"))
		keys, err := l.Next(t.Context(), inboxtest.Patience)
		require.NoError(t, err)
		require.Equal(t, []string{"the end"}, keys)
		require.Len(t, listeners(t, silent.DB()), 1, "it does not listen either")
	})
}

// Contract 4.7.
func TestAcceptsNotifyOthersOfClaimableStatuses(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		a, got := arrivals()
		accepting := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("b", inboxtest.Nothing), a))
		dispatching := startDispatching(t, d.Another(t), inboxtest.Handlers(a),
			inbox.Configure(func(o *inbox.Options) { o.Processor.Listen = true }))
		for len(got) > 0 {
			<-got
		}
		awaitListening(t, accepting, got)
		l, err := inboxtest.Store(t, d.Another(t)).Listen(t.Context())
		require.NoError(t, err)
		defer l.Close()
		next := func() []string {
			t.Helper()
			keys, err := l.Next(t.Context(), inboxtest.Patience)
			require.NoError(t, err)
			return keys
		}
		inboxtest.Accept(t, accepting, "1", "2", "3")
		require.Equal(t, []string{"a", "b"}, next())
		inboxtest.Accept(t, accepting, "1", "2", "3") // duplicates
		require.NoError(t, inboxtest.Store(t, d.DB).Notify(t.Context(), "duplicates"))
		require.Equal(t, []string{"duplicates"}, next())
		inboxtest.Eventually(t, func() bool {
			before, silent := dispatching.Counters().Dispatched, true
			inboxtest.Accept(t, dispatching, uuid.NewString())
			require.NoError(t, inboxtest.Store(t, d.DB).Notify(t.Context(), "the end"))
			for keys := next(); keys[0] != "the end"; keys = next() {
				silent = false
			}
			return silent && dispatching.Counters().Dispatched > before
		}, "what a process dispatches itself is not notified")
	})
}

// Contract 4.7: notifications do not hold up each other's commits.
func TestManyAcceptsShareFewNotifications(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		accepting := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		l, err := inboxtest.Store(t, d.Another(t)).Listen(t.Context())
		require.NoError(t, err)
		defer l.Close()
		began := time.Now()
		var accepts sync.WaitGroup
		for i := range 8 {
			accepts.Go(func() {
				for n := range 50 {
					inboxtest.Accept(t, accepting, fmt.Sprint(i, "-", n))
				}
			})
		}
		accepts.Wait()
		most := int(time.Since(began)/(3*time.Millisecond)) + 2
		inboxtest.Start(t, accepting)
		require.NoError(t, accepting.Stop(t.Context())) // which waits for the last notification
		require.NoError(t, inboxtest.Store(t, d.DB).Notify(t.Context(), "the end"))
		received := 0
		for {
			keys, err := l.Next(t.Context(), inboxtest.Patience)
			require.NoError(t, err)
			if keys[0] == "the end" {
				break
			}
			received++
		}
		require.Positive(t, received)
		require.LessOrEqual(t, received, most+1, "one every 3 ms, and one of the stop")
	})
}

// veiled is a driver that hides pgx from type assertions.
type veiled struct{ driver.Driver }

type veil struct{ *stdlib.Conn }

func (v veiled) Open(dsn string) (driver.Conn, error) {
	conn, err := v.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	return veil{conn.(*stdlib.Conn)}, nil
}

func init() { sql.Register("pgx veiled", veiled{stdlib.GetDefaultDriver()}) }

// TestWorkerContinuesAfterTablesAreRecreated checks that nothing which the worker has prepared or noted for the old
// tables stands in the way.
func TestWorkerContinuesAfterTablesAreRecreated(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		done := make(chan string, 10)
		handlers := inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			done <- m.ID
			return nil
		}))
		ib := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval, o.Processor.WorkerTimeout = time.Hour, 3*time.Second
		}), handlers)
		producer := inboxtest.New(t, d.DB, handlers)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, producer, "1")
		require.Equal(t, "1", inboxtest.Receive(t, done, "a notification"))
		inboxtest.Eventually(t, func() bool { // a statement of the worker may deadlock with it
			return d.DB.Exec(`DO $$ DECLARE t text; BEGIN
				FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'inbox\_%' LOOP
					EXECUTE 'DROP TABLE ' || t || ' CASCADE';
				END LOOP;
			END $$`).Error == nil
		}, "the tables are dropped")
		require.NoError(t, producer.Migrate(t.Context()))
		inboxtest.Accept(t, producer, "2")
		require.Equal(t, "2", inboxtest.Receive(t, done, "the poll when it listens again"))
		inboxtest.Accept(t, producer, "3")
		require.Equal(t, "3", inboxtest.Receive(t, done, "a notification"))
	})
}
