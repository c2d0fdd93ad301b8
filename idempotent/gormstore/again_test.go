package gormstore_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// raise adds 1 to a value that it has read, which loses updates unless the isolation forbids it.
// Both runs read before one writes.
func (r *rig) raise(s *gormstore.Store, both *sync.WaitGroup, calls *atomic.Int32, id string) outcome {
	var o outcome
	first := true
	o.duplicate, o.err = s.Run(r.Context(), run(id), func(ctx context.Context) error {
		calls.Add(1)
		var balance int
		if err := handler.DB(ctx).Raw(`SELECT balance FROM accounts`).Scan(&balance).Error; err != nil {
			return err
		}
		if first {
			first = false
			both.Done()
			both.Wait()
		}
		if err := handler.DB(ctx).Exec(`UPDATE accounts SET balance = ?`, balance+1).Error; err != nil {
			return err
		}
		return effect(id, nil)(ctx)
	})
	return o
}

// Isolation levels and deadlocks exist on PostgreSQL only.
func TestConflictingRunIsRepeated(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (balance int)`)
		inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES (0)`)
		for i, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			for attempts, expected := range map[int]int{5: 2, 1: 1} {
				inboxtest.Exec(t, d.DB, `TRUNCATE accounts, effects, inbox_markers`)
				inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES (0)`)
				s := open(t, d.DB, func(o *gormstore.Options) {
					o.Isolation = level
					o.MaxAttempts = attempts
				})
				var both sync.WaitGroup
				var calls atomic.Int32
				both.Add(2)
				outcomes := make(chan outcome, 2)
				for _, id := range []string{"1", "2"} {
					go func() { outcomes <- r.raise(s, &both, &calls, id) }()
				}
				failed := 0
				for range 2 {
					if o := inboxtest.Receive(t, outcomes, "a run"); o.err != nil {
						require.True(t, store.IsSerialization(o.err), o.err)
						failed++
					}
				}
				var balance int
				require.NoError(t, d.DB.Raw(`SELECT balance FROM accounts`).Scan(&balance).Error)
				require.Equal(t, expected, balance, "level %d, %d attempts", i, attempts)
				require.Equal(t, 2-expected, failed)
				require.Len(t, r.effects(), expected)
				require.Equal(t, r.effects(), r.markers())
				require.GreaterOrEqual(t, int(calls.Load()), expected+1-failed)
			}
		}
	})
}

func TestDuplicateIsDetectedUnderAnyIsolation(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		var all []string
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			s, id := open(t, d.DB, func(o *gormstore.Options) { o.Isolation = level }), level.String()
			all = append(all, id)
			first := r.begin(s, id)
			second := r.beside(s, id)
			r.waiting(1)
			require.Equal(t, outcome{}, first.end(t, nil))
			require.Equal(t, outcome{duplicate: true}, inboxtest.Receive(t, second, "the second"), id)
		}
		r.have(all...)
	})
}

func TestDeadlockOfTwoBodiesIsRetried(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		inboxtest.Exec(t, d.DB, `CREATE TABLE accounts (id int PRIMARY KEY, balance int)`)
		inboxtest.Exec(t, d.DB, `INSERT INTO accounts VALUES (1, 0), (2, 0)`)
		var both sync.WaitGroup
		both.Add(2)
		outcomes := make(chan outcome, 2)
		for id, order := range map[string][]int{"1": {1, 2}, "2": {2, 1}} {
			go func() {
				var o outcome
				first := true
				o.duplicate, o.err = r.store.Run(t.Context(), run(id), func(ctx context.Context) error {
					for i, account := range order {
						if err := handler.DB(ctx).Exec(`UPDATE accounts SET balance = balance + 1 WHERE id = ?`,
							account).Error; err != nil {
							return err
						}
						if first && i == 0 {
							first = false
							both.Done()
							both.Wait()
						}
					}
					return effect(id, nil)(ctx)
				})
				outcomes <- o
			}()
		}
		for range 2 {
			require.Equal(t, outcome{}, inboxtest.Receive(t, outcomes, "a run"))
		}
		r.have("1", "2")
		var sum int
		require.NoError(t, d.DB.Raw(`SELECT sum(balance) FROM accounts`).Scan(&sum).Error)
		require.Equal(t, 4, sum)
	})
}

// The connection to the database is cut; SQLite has none.
func TestCommitWithoutAResponseIsReadBack(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		proxy := pgproxy.New(t, d.DSN())
		s := open(t, testenv.OpenPostgres(t, proxy.DSN()), func(o *gormstore.Options) {
			o.StatementTimeout = 3 * time.Second
		})

		// The database has committed.
		for _, fault := range []pgproxy.Fault{pgproxy.AnswerLost, pgproxy.AnswerSilent} {
			proxy.LoseCommits(fault, 1)
			committed := 0
			duplicate, err := s.Run(t.Context(), run(fault.String()), func(ctx context.Context) error {
				require.True(t, handlertx.AfterCommit(handler.DB(ctx), func() { committed++ }))
				return effect(fault.String(), nil)(ctx)
			})
			require.NoError(t, err)
			require.False(t, duplicate)
			require.Equal(t, 1, committed, "what waits for the commit happens")
			require.Zero(t, proxy.Left())
			r.skipped(s, fault.String())
		}
		r.have("answer lost", "answer silent")

		// It never got the commit.
		proxy.LoseCommits(pgproxy.RequestLost, 1)
		calls := 0
		counted := func(ctx context.Context) error { calls++; return effect("unheard", nil)(ctx) }
		duplicate, err := s.Run(t.Context(), run("unheard"), counted)
		require.ErrorIs(t, err, idempotent.ErrLost)
		require.False(t, duplicate)
		require.Equal(t, 1, calls, "the outcome is unknown, so it is not run again")
		r.have("answer lost", "answer silent")
		r.handled(s, "unheard")

		// It never got the commit, and does not know that the connection is gone.
		proxy.LoseCommits(pgproxy.Silence, 1)
		_, err = s.Run(t.Context(), run("silent"), effect("silent", nil))
		require.ErrorIs(t, err, idempotent.ErrLost)
		require.Zero(t, proxy.Left())
		r.handled(s, "silent")

		// It has committed, but cannot be asked.
		proxy.LoseCommits(pgproxy.AnswerLost, 1)
		proxy.Lose(pgproxy.RequestLost, 1_000_000, pgproxy.Containing("SELECT 1 FROM"))
		duplicate, err = s.Run(t.Context(), run("unasked"), effect("unasked", nil))
		require.ErrorIs(t, err, idempotent.ErrLost)
		require.False(t, duplicate)
		proxy.Mend()
		r.skipped(s, "unasked")
		r.have("answer lost", "answer silent", "silent", "unasked", "unheard")
	})
}

func TestUnansweredStatementsTimeOut(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		proxy := pgproxy.New(t, d.DSN())
		s := open(t, testenv.OpenPostgres(t, proxy.DSN()), func(o *gormstore.Options) {
			o.StatementTimeout = time.Second
			o.LockTimeout = 100 * time.Millisecond
		})
		for _, matches := range []func(string) bool{
			pgproxy.Containing("begin"), pgproxy.Containing("INSERT INTO", `"inbox_markers"`),
		} {
			proxy.Lose(pgproxy.AnswerSilent, 1, matches)
			_, err := s.Run(t.Context(), run("1"), effect("1", nil))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, proxy.Left())
		}
		proxy.Lose(pgproxy.AnswerSilent, 2, pgproxy.Containing("inbox_markers"))
		_, err := s.Processed(t.Context(), run("1").Key)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = s.Cleanup(t.Context(), time.Now())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		proxy.Mend()
		inboxtest.Eventually(t, func() bool { // the abandoned transaction is rolled back
			_, err := s.Run(t.Context(), run("1"), effect("1", nil))
			return err == nil
		}, "it runs")
		r.have("1")
	})
}

func TestSerializationFailureIsRetriedForAnyBodyResult(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d)
		for name, returns := range map[string]func(error) error{
			"another":   func(error) error { return errors.New("the account could not be saved") },
			"swallowed": func(error) error { return nil },
		} {
			calls := 0
			duplicate, err := r.store.Run(t.Context(), run(name), func(ctx context.Context) error {
				if calls++; calls < 3 {
					return returns(handler.DB(ctx).Exec("DO $$ BEGIN RAISE EXCEPTION 'collided' USING ERRCODE = '40001'; END $$").Error)
				}
				return effect(name, nil)(ctx)
			})
			require.NoError(t, err, name)
			require.False(t, duplicate)
			require.Equal(t, 3, calls)
		}
		r.have("another", "swallowed")
	})
}
