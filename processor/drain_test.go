package processor_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

// Contract 5.14: an attempt that uses up the time of its claim has failed; the others in its
// transaction have not.
func TestDrainChargesOnlyTheSlowMemberOfAGroup(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.StuckMessageThreshold = 5 * time.Second
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(ctx context.Context, _ *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" {
					return untilCancelled(ctx, m)
				}
				return nil
			}, handler.TxGroup(4))))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		inboxtest.Eventually(t, func() bool {
			inboxtest.Process(t, ib)
			return inboxtest.Status(t, ib, "2", "h").ErrorCount > 0 && inboxtest.Status(t, ib, "4", "h").CompletedAt != nil
		}, "the slow one is charged, the last one completed")
		for _, id := range []string{"1", "3", "4"} {
			s := inboxtest.Status(t, ib, id, "h")
			require.NotNil(t, s.CompletedAt, id)
			require.Zero(t, s.ErrorCount, id)
		}
	})
}

// Contract 5.2: handlers without work take no slots.
func TestDrainGivesABusyHandlerTheSlotsOfIdleOnes(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const together = 6 // of ten slots
		var running atomic.Int64
		met := make(chan struct{})
		meet := sync.OnceFunc(func() { close(met) })
		specs := []*inbox.HandlerSpec{inboxtest.Do("busy", func(ctx context.Context, _ inboxtest.Bytes) error {
			if running.Add(1) >= together {
				meet()
			}
			defer running.Add(-1)
			select {
			case <-met:
			case <-time.After(2 * time.Second): // at first the drain does not know that the others have nothing
			case <-ctx.Done():
			}
			return ctx.Err()
		})}
		for i := range 9 {
			specs = append(specs, inboxtest.Do(fmt.Sprint("idle", i), inboxtest.Nothing))
		}
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 10
		}), inboxtest.Handlers(specs...))
		inboxtest.Accept(t, ib, many(40)...)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET completed_at = created_at WHERE handler_key <> 'busy'")
		require.Equal(t, 40, inboxtest.Process(t, ib).Completed)
		inboxtest.Receive(t, met, fmt.Sprint(together, " calls at the same time"))
	})
}

// Contract 5.13.
func TestDrainObeysAPauseWithinAHeartbeat(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var ib *inbox.Inbox
		ran := 0
		ib = inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(ctx context.Context, _ inboxtest.Bytes) error {
				if ran++; ran == 2 {
					if err := ib.Pause(ctx, "h"); err != nil {
						return err
					}
					pause(t, time.Second) // many heartbeats
				}
				return nil
			})))
		inboxtest.Accept(t, ib, many(5)...)
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, ib))
	})
}

// Contract 5.11: even if the first failure poisons, no message is charged for another one.
func TestFailedTransactionalBatchChargesOnlyTheFailingMessage(t *testing.T) {
	testenv.Long(t)
	for name, fail := range map[string]func(ctx context.Context, tx *gorm.DB) error{
		"a panic": func(context.Context, *gorm.DB) error { panic("boom") },
		"a swallowed SQL error": func(_ context.Context, tx *gorm.DB) error {
			_ = tx.Exec("INSERT INTO nowhere VALUES (1)").Error
			return nil
		},
		"a refused commit": func(_ context.Context, tx *gorm.DB) error {
			return tx.Exec("INSERT INTO children VALUES ('orphan')").Error
		},
		"a timeout": func(ctx context.Context, _ *gorm.DB) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				children(t, d)
				ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
					o.Clock = fxtest.NewClock(inboxtest.Noon)
					o.Processor.MaxRetries = 1
				}),
					inboxtest.Handlers(
						inbox.TxBatch("h", 10, func(ctx context.Context, tx *gorm.DB, batch []inboxtest.Bytes) error {
							for _, m := range batch {
								if err := write(tx, m.ID); err != nil {
									return err
								}
								if m.ID == "2" {
									if err := fail(ctx, tx); err != nil {
										return err
									}
								}
							}
							return nil
						}, handler.Timeout(time.Second))))
				inboxtest.Accept(t, ib, "1", "2", "3")
				require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Poisoned: 1}, inboxtest.Process(t, ib))
				require.Equal(t, []string{"1", "3"}, written())
			})
		})
	}
}

// Contract 5.14: a claim would wait for the only write lock, which the slow handler holds.
func TestDrainSurvivesATransactionLongerThanBusyTimeout(t *testing.T) {
	t.Parallel()
	const busy = 200 * time.Millisecond
	db := testenv.OpenSQLite(t, testenv.BusyTimeout(testenv.SQLiteDSN(t), busy))
	ib := inboxtest.New(t, db, inbox.Configure(func(o *inbox.Options) { o.Processor.Concurrency = 4 }), inboxtest.Handlers(
		inboxtest.Tx("slow", func(context.Context, *gorm.DB, inboxtest.Bytes) error { pause(t, 5*busy); return nil }),
		inboxtest.Do("fast", inboxtest.Nothing)))
	inboxtest.Accept(t, ib, many(30)...)
	inboxtest.Exec(t, db, "UPDATE inbox_handler_statuses SET completed_at = created_at"+
		" WHERE handler_key = 'slow' AND message_id <> 'm00000'")
	require.Equal(t, processor.Drained{Picked: 31, Completed: 31}, inboxtest.Process(t, ib))
}

// Contract 5.14: a drain needs no connection while its handlers hold all of them.
func TestDrainSurvivesAHandlerHoldingTheOnlyConnection(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		const statement = 300 * time.Millisecond
		pool, err := d.DB.DB()
		require.NoError(t, err)
		slow := func(context.Context, *gorm.DB, inboxtest.Bytes) error { pause(t, 4*statement); return nil }
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = statement
			o.Processor.HeartbeatInterval = statement
		}),
			inboxtest.Handlers(inboxtest.Tx("slow", slow), inboxtest.Do("fast", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, many(30)...)
		inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET completed_at = created_at"+
			" WHERE handler_key = 'slow' AND message_id <> 'm00000'")
		pool.SetMaxOpenConns(1)
		defer pool.SetMaxOpenConns(0)
		require.Equal(t, processor.Drained{Picked: 31, Completed: 31}, inboxtest.Process(t, ib))
	})
}

// Contract 5.2: a status that comes due because a result was stored does not wait until other calls
// have ended.
func TestDrainAdvancesALaneDuringALongCall(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const rows = 4
		moved := make(chan struct{})
		ran := 0
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(
			inboxtest.Do("lane", func(context.Context, inboxtest.Bytes) error {
				if ran++; ran == rows {
					close(moved)
				}
				return nil
			}, handler.OrderedBy(func(handler.RawMessage) []byte { return []byte("one") })),
			inboxtest.Do("long", func(ctx context.Context, m inboxtest.Bytes) error {
				if m.ID == "m00000" {
					inboxtest.Receive(t, moved, "the last row of the lane")
				}
				return nil
			})))
		inboxtest.Accept(t, ib, many(rows)...)
		require.Equal(t, processor.Drained{Picked: 2 * rows, Completed: 2 * rows}, inboxtest.Process(t, ib))
	})
}
