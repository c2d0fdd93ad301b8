package processor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// raise makes a statement of the transaction fail with a SQLSTATE; on SQLite, with the code for a
// database that cannot be written to.
func raise(tx *gorm.DB, state string) error {
	if tx.Dialector.Name() == "sqlite" {
		defer func() { tx.Session(&gorm.Session{NewDB: true}).Exec("PRAGMA query_only = 0") }()
		if err := tx.Exec("PRAGMA query_only = 1").Error; err != nil {
			return err
		}
		return tx.Exec("INSERT INTO effects VALUES ('refused')").Error
	}
	if tx.Dialector.Name() == "mysql" {
		return tx.Exec("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'no room'").Error
	}
	return tx.Exec(fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '%s'; END $$", state)).Error
}

func TestDatabaseFailureInAHandlerTransactionIsNotCharged(t *testing.T) {
	for name, returns := range map[string]func(error) error{
		"returned":        func(err error) error { return err },
		"wrapped":         func(err error) error { return fmt.Errorf("save: %w", err) },
		"another":         func(error) error { return errBoom },
		"swallowed":       func(error) error { return nil },
		"panicked with":   func(err error) error { panic(err) },
		"retried by it":   func(err error) error { return handler.RetryAfter(time.Hour, err) },
		"given as a text": func(err error) error { return errors.New(err.Error()) },
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				full := true
				clock := fxtest.NewClock(inboxtest.Noon)
				ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
					o.Clock = clock
					o.Processor.MaxRetries = 2
				}),
					inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						require.Equal(t, 1, m.Attempt)
						if err := write(tx, m.ID); err != nil {
							return err
						}
						if full {
							return returns(raise(tx, "53100"))
						}
						return nil
					})))
				inboxtest.Accept(t, ib, "1")
				var delays []time.Duration
				for range 6 {
					require.Equal(t, processor.Drained{Picked: 1, Released: 1}, inboxtest.Process(t, ib))
					s := inboxtest.Status(t, ib, "1", "h")
					require.Zero(t, s.ErrorCount)
					require.Contains(t, *s.LastError, "handler transaction", "an operator sees why it does not get on")
					delays = append(delays, s.NextAttemptAt.Sub(clock.Now()))
					clock.Advance(delays[len(delays)-1])
				}
				require.Empty(t, written())
				if name == "retried by it" {
					require.Equal(t, time.Hour, delays[0].Round(time.Second), "the delay is the handler's to say")
				} else {
					require.Greater(t, delays[5], 8*delays[0], "it is repeated ever more seldom")
				}
				h := ib.Health().Processor
				require.Len(t, h.Conditions, 1, "said while it lasts")
				full = false
				require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
				require.Equal(t, []string{"1"}, written())
				require.Empty(t, ib.Health().Processor.Conditions)
			})
		})
	}
}

func TestTransientTransactionErrorsAreUncharged(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		state := ""
		nested := false
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if nested {
					return tx.Transaction(func(tx *gorm.DB) error { return raise(tx, state) })
				}
				return raise(tx, state)
			})))
		charged := func(id string) bool {
			inboxtest.Accept(t, ib, id)
			drained := inboxtest.Process(t, ib)
			require.Equal(t, 1, drained.Released+drained.Failed)
			clock.Advance(time.Microsecond)
			require.Equal(t, drained.Failed, inboxtest.Status(t, ib, id, "h").ErrorCount)
			return drained.Failed == 1
		}
		for _, nested = range []bool{false, true} {
			for _, state = range strings.Fields("53000 53100 53200 53300 55P03 25006 57P01 57P03 58000 58030") {
				require.False(t, charged(fmt.Sprint(state, nested)), state)
			}
			for _, state = range strings.Fields("23505 22012 P0001 42P01 57014 53400 58P01 58P02") {
				require.True(t, charged(fmt.Sprint(state, nested)), state)
			}
		}
	})
}

func TestHandlerErrorIsChargedEvenIfItLooksTransient(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		effects(t, d)
		var other error // of a transaction that is not the attempt's
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(context.Context, *gorm.DB, inboxtest.Bytes) error { return other }),
			inboxtest.Tx("poisons", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				return handler.Poison(raise(tx, "53100"))
			}),
			inboxtest.Do("plain", func(context.Context, inboxtest.Bytes) error { return other })))
		other = d.DB.Transaction(func(tx *gorm.DB) error { return raise(tx, "53100") })
		require.Error(t, other)
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 3, Failed: 2, Poisoned: 1}, inboxtest.Process(t, ib))
	})
}

func TestSerializationFailureIsRepeatedThenReleasedUncharged(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		for _, state := range []string{"40001", "40P01"} {
			written := 0
			calls, collisions := 0, 0
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) }),
				inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					calls++
					if calls <= collisions {
						return fmt.Errorf("save: %v", raise(tx, state))
					}
					written++
					return nil
				})))
			collisions = 3
			inboxtest.Accept(t, ib, state+" passes")
			require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib))
			require.Equal(t, 4, calls)
			require.Equal(t, 1, written)

			calls, collisions = 0, 1000
			inboxtest.Accept(t, ib, state+" never passes")
			require.Equal(t, processor.Drained{Picked: 1, Released: 1}, inboxtest.Process(t, ib))
			require.Equal(t, 6, calls, "bounded")
			require.Zero(t, inboxtest.Status(t, ib, state+" never passes", "h").ErrorCount)
		}
	})
}

func TestBatchAndTxGroupMembersAreNotChargedForTheDatabase(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		full := true
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }), inboxtest.Handlers(
			inbox.TxBatch("batch", 3, func(_ context.Context, tx *gorm.DB, ms []inboxtest.Bytes) error {
				for _, m := range ms {
					if err := write(tx, "batch "+m.ID); err != nil {
						return err
					}
				}
				if full {
					return fmt.Errorf("save: %v", raise(tx, "53100"))
				}
				return nil
			}),
			inboxtest.Tx("group", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if full && m.ID == "2" {
					return fmt.Errorf("save: %v", raise(tx, "53100"))
				}
				return write(tx, "group "+m.ID)
			}, handler.TxGroup(3))))
		inboxtest.Accept(t, ib, "1", "2", "3")
		drained := inboxtest.Process(t, ib)
		require.Zero(t, drained.Failed)
		require.Equal(t, 2, drained.Completed, "of the group, those that wrote nothing that was refused")
		full = false
		clock.Advance(time.Minute)
		require.Equal(t, 4, inboxtest.Process(t, ib).Completed)
		require.Len(t, written(), 6)
	})
}

// endSession makes the server process of the transaction's connection end.
func endSession(tx *gorm.DB) error {
	return tx.Exec("SELECT pg_terminate_backend(pg_backend_pid())").Error
}

// Contract 5.7: the row counts, so a restart forgets nothing, and a message that shared a call or a
// transaction is not charged for another's.
func TestMessageAlwaysLosingItsConnectionIsPoisonedAlone(t *testing.T) {
	for name, declare := range map[string]func(func(tx *gorm.DB, id string) error) *inbox.HandlerSpec{
		"alone": func(each func(*gorm.DB, string) error) *inbox.HandlerSpec {
			return inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return each(tx, m.ID) })
		},
		"in a TxGroup": func(each func(*gorm.DB, string) error) *inbox.HandlerSpec {
			return inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return each(tx, m.ID) },
				handler.TxGroup(3))
		},
		"in a batch": func(each func(*gorm.DB, string) error) *inbox.HandlerSpec {
			return inbox.TxBatch("h", 3, func(_ context.Context, tx *gorm.DB, ms []inboxtest.Bytes) error {
				for _, m := range ms {
					if err := each(tx, m.ID); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				clock := fxtest.NewClock(inboxtest.Noon)
				start := func() *inbox.Inbox {
					return inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
						o.Clock = clock
						o.Processor.MaxRetries = 2
					}), inboxtest.Handlers(declare(func(tx *gorm.DB, id string) error {
						if err := write(tx, id); err != nil || id != "2" {
							return err
						}
						return fmt.Errorf("save: %w", endSession(tx))
					})))
				}
				ib := start()
				inboxtest.Accept(t, ib, "1", "2", "3")
				var drained processor.Drained
				for round := 1; drained.Poisoned == 0; round++ {
					require.LessOrEqual(t, round, 6)
					ib = start() // a restart forgets nothing
					drained = inboxtest.Process(t, ib)
					s := inboxtest.Status(t, ib, "2", "h")
					require.Equal(t, max(0, round-3), s.ErrorCount, "the first three in a row are not charged")
					require.Equal(t, round, s.InterruptedCount)
					require.Contains(t, *s.LastError, "the database failed in the handler transaction")
					desk, err := ib.Ops()
					require.NoError(t, err)
					listed, err := desk.List(t.Context(),
						ops.Filter{States: []ops.State{ops.StateFailing, ops.StatePoisoned}}, "", 10)
					require.NoError(t, err)
					require.True(t, slices.ContainsFunc(listed.Items, func(s ops.Status) bool { return s.MessageID == "2" }),
						"operators see it from the first time on")
					clock.Advance(time.Minute)
				}
				inboxtest.Process(t, ib)
				require.ElementsMatch(t, []string{"1", "3"}, written())
				require.Contains(t, *inboxtest.Status(t, ib, "2", "h").LastError, "5 times in a row, while the database worked for others")
				for _, id := range []string{"1", "3"} {
					s := inboxtest.Status(t, ib, id, "h")
					require.NotNil(t, s.CompletedAt)
					require.Zero(t, s.ErrorCount+s.InterruptedCount)
				}
			})
		})
	}
}

// Contract 5.7: a full disk is not the message's fault, unless others of its handler find room.
func TestDatabaseFailureIsChargedOnlyIfOtherMessagesCommit(t *testing.T) {
	for name, others := range map[string]bool{"others commit": true, "no other commits": false} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				effects(t, d)
				clock := fxtest.NewClock(inboxtest.Noon)
				ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
					o.Clock = clock
					o.Processor.MaxRetries = 2
				}), inboxtest.Handlers(
					inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						if m.ID == "large" {
							return raise(tx, "53100")
						}
						return write(tx, m.ID)
					}),
					inboxtest.Tx("small", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return nil })))
				inboxtest.Accept(t, ib, "large")
				var poisoned int
				for round := range 8 {
					if others {
						inboxtest.Accept(t, ib, fmt.Sprint(round))
					}
					poisoned += inboxtest.Process(t, ib).Poisoned
					clock.Advance(time.Hour)
				}
				s := inboxtest.Status(t, ib, "large", "h")
				require.Equal(t, others, s.IsPoisoned)
				require.Equal(t, others, poisoned == 1)
				if !others {
					require.Zero(t, s.ErrorCount)
					require.Equal(t, 8, s.InterruptedCount)
				}
			})
		})
	}
}

// TestProcessingResumesUnchargedAfterAReadOnlyDatabase proves contract 5.7: sessions that were opened while the
// database was read-only would stay read-only. On SQLite there are no sessions to renew.
func TestProcessingResumesUnchargedAfterAReadOnlyDatabase(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		running, goOn := make(chan struct{}, 10), make(chan struct{})
		inboxtest.Items(t, d)
		db := d.Another(t)
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(3) // it keeps each connection that it opens
		pool.SetMaxIdleConns(3)
		ib := inboxtest.New(t, db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
			o.Processor.MaxRetryDelay = time.Second
		}), inboxtest.Handlers(inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			running <- struct{}{}
			<-goOn
			return tx.Exec(`INSERT INTO items (name) VALUES (?)`, m.ID).Error
		})))
		inboxtest.Start(t, ib)
		require.NoError(t, d.DB.Connection(func(control *gorm.DB) error {
			name := control.Migrator().CurrentDatabase()
			readOnly := func(change string) {
				inboxtest.Exec(t, control, `ALTER DATABASE `+name+change)
				inboxtest.Exec(t, control, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid() AND ?`, change != " RESET default_transaction_read_only")
			}
			inboxtest.Accept(t, ib, "1")
			inboxtest.Receive(t, running, "the handler runs")
			readOnly(" SET default_transaction_read_only = on")
			close(goOn)
			inboxtest.Eventually(t, func() bool {
				_, err := ib.Accept(t.Context(), inboxtest.Message("2"))
				return err != nil && strings.Contains(err.Error(), "25006")
			}, "accepting fails because sessions are read-only")
			inboxtest.Eventually(t, func() bool {
				return strings.Contains(fmt.Sprint(ib.Health().Processor.Conditions), "25006")
			}, "health says so")
			var all []*sql.Conn
			for range 3 {
				conn, err := pool.Conn(t.Context())
				require.NoError(t, err)
				all = append(all, conn)
			}
			for _, conn := range all {
				require.NoError(t, conn.Close(), "the pool keeps it")
			}
			readOnly(" RESET default_transaction_read_only")
			return nil
		}))
		inboxtest.Eventually(t, func() bool { _, err := ib.Accept(t.Context(), inboxtest.Message("2")); return err == nil },
			"messages are accepted again")
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "both are completed")
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Zero(t, s.ErrorCount+s.AbandonedCount, "uncharged")
		}
		inboxtest.Eventually(t, func() bool { return len(ib.Health().Processor.Conditions) == 0 }, "health is well")
	})
}
