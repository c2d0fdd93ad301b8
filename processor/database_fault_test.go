package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
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
	return tx.Exec(fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '%s'; END $$", state)).Error
}

func TestFailureOfTheDatabaseInAHandlersTransactionIsNotCharged(t *testing.T) {
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
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
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

func TestEachTransientStateOfAHandlersTransactionIsUncharged(t *testing.T) {
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
			for _, state = range strings.Fields("53000 53100 53200 53300 53400 55P03 25006 57P01 57P03 58030") {
				require.False(t, charged(fmt.Sprint(state, nested)), state)
			}
			for _, state = range strings.Fields("23505 22012 P0001 42P01 57014") {
				require.True(t, charged(fmt.Sprint(state, nested)), state)
			}
		}
	})
}

func TestHandlersOwnErrorIsChargedWhateverItLooksLike(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
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

func TestSerializationFailureIsRepeatedAtOnceAndThenReleasedUncharged(t *testing.T) {
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

func TestMembersOfABatchAndOfATxGroupAreNotChargedForTheDatabase(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
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
