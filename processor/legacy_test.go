package processor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

func TestLegacyKeyRowsRunAndAreNeverDoubled(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		old := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("old", ran.note)))
		inboxtest.Accept(t, old, "pending", "done")
		renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("new", ran.note,
			handler.LegacyKeys("older", "old"))))
		require.Equal(t, []acceptor.Result{{MessageID: "pending", Outcome: handler.OutcomeDuplicate}},
			inboxtest.Accept(t, renamed, "pending"),
			"a row under a legacy key counts as the handler's row")
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, renamed))
		inboxtest.Accept(t, renamed, "pending", "done", "fresh")
		require.Equal(t, 1, inboxtest.Process(t, renamed).Completed)
		require.Equal(t, map[string]int{"pending/old": 1, "done/old": 1, "fresh/new": 1}, ran.runs)
	})
}

// TestRedeliveryToTheOldProgramOfARenameRunsNothing proves contract 4.2: a row under a new key counts for programs that
// do not know it, however the program that knows it has accepted the message.
func TestRedeliveryToTheOldProgramOfARenameRunsNothing(t *testing.T) {
	in := func(ib *inbox.Inbox, roll bool) error {
		undo := errors.New("undo")
		err := ib.DB().Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(context.Background(), tx, inboxtest.Message("1"))
			if err == nil && roll {
				err = undo
			}
			return err
		})
		if errors.Is(err, undo) {
			return nil
		}
		return err
	}
	for name, accept := range map[string]func(t *testing.T, renamed *inbox.Inbox){
		"Accept":   func(t *testing.T, renamed *inbox.Inbox) { inboxtest.Accept(t, renamed, "1") },
		"AcceptTx": func(t *testing.T, renamed *inbox.Inbox) { require.NoError(t, in(renamed, false)) },
		"AcceptTx after one that was rolled back": func(t *testing.T, renamed *inbox.Inbox) {
			require.NoError(t, in(renamed, true))
			require.NoError(t, in(renamed, false))
		},
		"a started program": func(t *testing.T, renamed *inbox.Inbox) {
			inboxtest.Start(t, renamed)
			inboxtest.Accept(t, renamed, "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				ran := newLedger()
				old := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("book", ran.note)))
				renamed := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(
					inboxtest.Do("book-2", ran.note, handler.LegacyKeys("book"))))
				accept(t, renamed)
				duplicate := []acceptor.Result{{MessageID: "1", Outcome: handler.OutcomeDuplicate}}
				require.Equal(t, duplicate, inboxtest.Accept(t, old, "1"))
				end := inboxtest.Start(t, renamed)
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, renamed) }, "the new program runs it")
				end()                   // for good: what follows comes after a rollback
				inboxtest.Start(t, old) // it dispatches locally
				require.Equal(t, duplicate, inboxtest.Accept(t, old, "1"))
				require.NoError(t, in(old, false))
				inboxtest.Accept(t, old, "2")
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, old) }, "the old program runs its own")
				require.Equal(t, map[string]int{"1/book-2": 1, "2/book": 1}, ran.runs)
			})
		})
	}
}

// TestOpenTransactionHoldsUpNoOtherCallOfARename proves contract 4.2 where the first row under a new key is in a
// caller's transaction: other calls and starts do not wait for its end.
func TestOpenTransactionHoldsUpNoOtherCallOfARename(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		renamed := func() *inbox.Inbox {
			return inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("book-2", inboxtest.Nothing,
				handler.LegacyKeys("book"))))
		}
		one, two := renamed(), renamed()
		require.NoError(t, one.DB().Transaction(func(tx *gorm.DB) error {
			_, err := one.AcceptTx(t.Context(), tx, inboxtest.Message("1"))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // less than StatementTimeout
			defer cancel()
			_, err = one.Accept(ctx, inboxtest.Message("2"))
			require.NoError(t, err)
			require.NoError(t, two.Start(ctx))
			return nil
		}))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, two) }, "both run")
		require.NoError(t, two.Stop(t.Context()))
	})
}

// TestKeyThatIsUsedAgainIsAnotherHandlers proves contract 4.2: a program that has the old key for a new handler ends
// the rename.
func TestKeyThatIsUsedAgainIsAnotherHandlers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("book-2", ran.note, handler.LegacyKeys("book"))))
		inboxtest.Accept(t, renamed, "1")
		inboxtest.Process(t, renamed)
		old := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("book", ran.note)))
		require.Zero(t, inboxtest.Accept(t, old, "1")[0].Handlers)
		again := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("book-2", ran.note),
			inboxtest.Do("book", ran.note)))
		require.Equal(t, 1, inboxtest.Accept(t, again, "1")[0].Handlers)
		inboxtest.Process(t, again)
		require.Equal(t, map[string]int{"1/book-2": 1, "1/book": 1}, ran.runs)
	})
}

// both accepts messages so that each has a row under the new key and one under the old key, as where the new program
// has dropped the old key while an old program still accepted.
func both(t *testing.T, renamed, old *inbox.Inbox, ids ...string) {
	t.Helper()
	inboxtest.Accept(t, renamed, ids...)
	inboxtest.Exec(t, renamed.DB(), "UPDATE inbox_handlers SET legacy_keys = ''")
	for _, r := range inboxtest.Accept(t, old, ids...) {
		require.Equal(t, 1, r.Handlers, "the old program knows nothing of the new key")
	}
}

func TestRenamedHandlerRunsOneOfItsTwoRows(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ran := newLedger()
		old := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("old", ran.note)))
		renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("new", ran.note, handler.LegacyKeys("old"))))

		t.Run("both pending", func(t *testing.T) {
			both(t, renamed, old, many(25)...)
			d := inboxtest.Process(t, renamed)
			require.Zero(t, d.Failed+d.Poisoned+d.Released)
			require.Len(t, ran.runs, 25)
			outcomes := map[models.Outcome]int{}
			for _, s := range inboxtest.Statuses(t, renamed) {
				require.NotNil(t, s.CompletedAt)
				outcomes[s.Outcome]++
			}
			require.Equal(t, map[models.Outcome]int{models.OutcomeProcessed: 25, models.OutcomeSuperseded: 25}, outcomes)
		})
		t.Run("the old program ran its row", func(t *testing.T) {
			both(t, renamed, old, "x")
			claimed := claim(t, d, system, "", 1, "old")
			require.Len(t, claimed, 1)
			applied, err := inboxtest.Store(t, d.DB).Complete(context.Background(), completionsOf(claimed), system.Now(),
				store.AwaitLocked)
			require.NoError(t, err)
			require.Equal(t, []bool{true}, applied)
			inboxtest.Process(t, renamed)
			require.Equal(t, models.OutcomeSuperseded, inboxtest.Status(t, renamed, "x", "new").Outcome)
			require.Zero(t, ran.runs["x/new"])
		})
		t.Run("the old program's row is poisoned", func(t *testing.T) {
			both(t, renamed, old, "y")
			inboxtest.Exec(t, renamed.DB(),
				"UPDATE inbox_handler_statuses SET is_poisoned = true WHERE message_id = 'y' AND handler_key = 'old'")
			inboxtest.Process(t, renamed)
			require.Equal(t, models.OutcomeSuperseded, inboxtest.Status(t, renamed, "y", "new").Outcome,
				"one row is left to decide about")
			require.True(t, inboxtest.Status(t, renamed, "y", "old").IsPoisoned)
		})
		t.Run("the old program is running its row", func(t *testing.T) {
			both(t, renamed, old, "z")
			claimed := claim(t, d, system, "", 1, "old")
			require.Equal(t, processor.Drained{Picked: 1, Released: 1}, inboxtest.Process(t, renamed),
				"its row is put off until the sibling's fate is known")
			s := inboxtest.Status(t, renamed, "z", "new")
			require.Zero(t, s.ErrorCount)
			require.NotNil(t, s.NextAttemptAt)
			require.Zero(t, ran.runs["z/new"])
			_, err := inboxtest.Store(t, d.DB).Complete(context.Background(), completionsOf(claimed), system.Now(),
				store.AwaitLocked)
			require.NoError(t, err)
		})
	})
}

func TestRollingRenameRunsEveryMessageOnce(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const messages = 100
		ran := newLedger()
		byMessage := func(ctx context.Context, m inboxtest.Bytes) error {
			m.HandlerKey = ""
			return ran.note(ctx, m)
		}
		// bounds how long a row is put off
		sweep := inbox.Configure(func(o *inbox.Options) { o.Processor.SweepInterval = 20 * time.Millisecond })
		program := func(db *gorm.DB, h *inbox.HandlerSpec) *inbox.Inbox {
			return inboxtest.New(t, db, inboxtest.Brisk(), sweep, inbox.Configure(func(o *inbox.Options) {
				o.Processor.Mode = processor.ModeCompeting
			}), inboxtest.Handlers(h))
		}
		old := program(d.DB, inboxtest.Do("old", byMessage))
		renamed := program(d.Another(t), inboxtest.Do("new", byMessage, handler.LegacyKeys("old")))
		another := program(d.Another(t), inboxtest.Do("new", byMessage, handler.LegacyKeys("old")))
		both(t, renamed, old, many(messages)...)
		for _, ib := range []*inbox.Inbox{old, renamed, another} {
			inboxtest.Start(t, ib)
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, old) }, "all were completed")
		for id, n := range ran.runs {
			require.Equal(t, 1, n, "message %s ran more than once", id)
		}
		require.Len(t, ran.runs, messages)
		var superseded int64
		require.NoError(t, d.DB.Table(old.Tables().HandlerStatuses()).Where("outcome = ?", models.OutcomeSuperseded).Count(&superseded).Error)
		require.EqualValues(t, messages, superseded, fmt.Sprint(old.Counters(), renamed.Counters(), another.Counters()))
	})
}
