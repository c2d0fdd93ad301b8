package processor_test

import (
	"context"
	"slices"
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

// company runs one transactional handler with TxGroup for messages "1" to "4" through
// ProcessPending, in one slot, and returns what was called.
func company(t *testing.T, d *inboxtest.Database, clock inbox.Clock,
	fn func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error, opts ...handler.Option,
) (*inbox.Inbox, *calls) {
	t.Helper()
	return members(t, d, clock, func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
		if err := write(tx, m.ID); err != nil {
			return err
		}
		return fn(ctx, tx, m)
	}, opts...)
}

func (c *calls) order() string {
	text := ""
	for _, call := range c.all {
		text += call[0]
	}
	return text
}

func TestGroupSharesOneTransaction(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				var inside int64
				require.NoError(t, tx.Table("effects").Count(&inside).Error)
				require.Empty(t, written(), "nothing is committed yet")
				require.Equal(t, m.ID, string(rune('0'+inside)), "the writes of those before are in the same transaction")
				return nil
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 4}, inboxtest.Process(t, ib))
		require.Equal(t, "1234", seen.order())
		require.Equal(t, []string{"1", "2", "3", "4"}, written())
		require.True(t, inboxtest.AllCompleted(t, ib))
	})
}

func TestMemberFailureIsUndoneAlone(t *testing.T) {
	for name, fail := range map[string]func(tx *gorm.DB) error{
		"an error": func(*gorm.DB) error { return errBoom },
		"a panic":  func(*gorm.DB) error { panic("boom") },
		"a unique violation of its own": func(tx *gorm.DB) error {
			return tx.Exec("INSERT INTO singles VALUES ('x')").Error
		},
		"a swallowed SQL error": func(tx *gorm.DB) error {
			_ = tx.Exec("INSERT INTO singles VALUES ('x')").Error
			return nil
		},
		"an error after a savepoint undid": func(tx *gorm.DB) error {
			return tx.Transaction(func(*gorm.DB) error { return errBoom })
		},
		"an attempt to commit": func(tx *gorm.DB) error { return tx.Commit().Error },
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				inboxtest.Exec(t, d.DB, "CREATE TABLE singles(id varchar(9) primary key)")
				inboxtest.Exec(t, d.DB, "INSERT INTO singles VALUES ('x')")
				clock := fxtest.NewClock(inboxtest.Noon)
				ib, seen := company(t, d, clock, func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					if m.ID == "2" && m.Attempt == 1 {
						return fail(tx)
					}
					return nil
				})
				require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
				require.Equal(t, "1234", seen.order(), "each ran once")
				require.Equal(t, []string{"1", "3", "4"}, written())
				require.Equal(t, 1, inboxtest.Status(t, ib, "2", "h").ErrorCount)
				clock.Advance(time.Minute)
				require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
				require.Equal(t, []string{"1", "2", "3", "4"}, written())
			})
		})
	}
}

// requireUncharged checks that every message but the culprit is uncharged.
func requireUncharged(t *testing.T, ib *inbox.Inbox, culprit string) {
	t.Helper()
	for _, s := range inboxtest.Statuses(t, ib) {
		if s.MessageID == culprit {
			require.Equal(t, 1, s.ErrorCount)
			continue
		}
		require.Zero(t, s.ErrorCount, s.MessageID)
		require.NotNil(t, s.CompletedAt, s.MessageID)
	}
}

func TestMemberTimeoutRepeatsEachMemberAlone(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(ctx context.Context, _ *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "3" {
					return untilCancelled(ctx, m)
				}
				return nil
			}, handler.Timeout(time.Second))
		require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
		require.Equal(t, "1231234", seen.order())
		require.Equal(t, []string{"1", "2", "4"}, written())
		requireUncharged(t, ib, "3")
	})
}

func TestStuckMemberIsNeverRunTwiceConcurrently(t *testing.T) {
	// Not on SQLite: its transaction would hold the only write lock.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		goOn, returned := make(chan bool), make(chan bool)
		var seen calls
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 2
			o.Processor.StuckHandlerGrace = soon
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				seen.note(m.ID)
				if m.ID == "2" {
					defer close(returned)
					<-goOn
					return nil
				}
				return write(tx, m.ID)
			}, handler.TxGroup(4), handler.Timeout(enough))))
		inboxtest.Accept(t, ib, "1", "2", "3")
		require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Failed: 1}, inboxtest.Process(t, ib))
		require.Contains(t, []string{"1213", "1231"}, seen.order(), "the others run alone, in any order")
		require.ElementsMatch(t, []string{"1", "3"}, written())
		requireUncharged(t, ib, "2")
		close(goOn)
		inboxtest.Receive(t, returned, "the stubborn handler")
	})
}

func TestLostConnectionRepeatsEachMemberAlone(t *testing.T) {
	// Not on SQLite: it has no connection to lose.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		killed := false
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "3" && !killed {
					killed = true
					return tx.Exec("SELECT pg_terminate_backend(pg_backend_pid())").Error
				}
				return nil
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 4}, inboxtest.Process(t, ib))
		require.Equal(t, "1231234", seen.order())
		require.Equal(t, []string{"1", "2", "3", "4"}, written())
		requireUncharged(t, ib, "")
	})
}

func TestMemberOfADeadlockedGroupIsRetriedAlone(t *testing.T) {
	// Not on SQLite: a single writer cannot deadlock.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		once := true
		effects(t, d)
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" && once {
					once = false
					return tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$").Error
				}
				return nil
			})
		require.Equal(t, 4, inboxtest.Process(t, ib).Completed)
		require.Equal(t, "121234", seen.order())
		requireUncharged(t, ib, "")
	})
}

func TestStaleMemberIsNotCalledAndBlocksNoOther(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		var seen calls
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.Prefetch = 1
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				seen.note(m.ID)
				if m.ID == "1" { // another worker takes over "6", which is claimed and waits for the slot
					inboxtest.Exec(t, tx, "UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = '6'")
				}
				return write(tx, m.ID)
			}, handler.TxGroup(4))))
		inboxtest.Accept(t, ib, "1", "2", "3", "4", "5", "6", "7")
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return ib.Counters().Processed == 6 && ib.Counters().Fenced == 1
		}, "all but one completed")
		require.Equal(t, "123457", seen.order())
		require.Equal(t, []string{"1", "2", "3", "4", "5", "7"}, written())
		require.Nil(t, inboxtest.Status(t, ib, "6", "h").CompletedAt)
	})
}

func TestMemberTakenOverByAHandlerOfItsGroupChangesNothing(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "1" { // only this transaction can: the rows are locked
					return tx.Exec("UPDATE inbox_handler_statuses SET version = version + 1 WHERE message_id = '3'").Error
				}
				return nil
			})
		require.Equal(t, 3, inboxtest.Process(t, ib).Completed)
		require.Equal(t, "1234124", seen.order(), "all was undone, and each ran alone")
		require.Equal(t, []string{"1", "2", "4"}, written())
		require.EqualValues(t, 1, ib.Counters().Fenced)
		require.Nil(t, inboxtest.Status(t, ib, "3", "h").CompletedAt)
	})
}

func TestGroupWorksWithCachedPreparedStatements(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		d.DB = d.DB.Session(&gorm.Session{PrepareStmt: true})
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, _ *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" {
					return errBoom
				}
				return nil
			})
		require.Equal(t, 3, inboxtest.Process(t, ib).Completed)
		require.Equal(t, "1234", seen.order())
		require.Equal(t, []string{"1", "3", "4"}, written())
	})
}

func TestMemberCannotRollBackToASavepointOfAnother(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
			o.Processor.Concurrency = 1
		}),
			inboxtest.Handlers(
				inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) (err error) {
					defer func() {
						if err != nil {
							tx.RollbackTo("mine")
						}
					}()
					if m.ID == "3" {
						return errBoom // before its own savepoint
					}
					tx.SavePoint("mine")
					return write(tx, m.ID)
				}, handler.TxGroup(4))))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		require.Equal(t, 3, inboxtest.Process(t, ib).Completed)
		require.Equal(t, []string{"1", "2", "4"}, written(), "who completed has written")
	})
}

// TestSettingsOfAMemberReachNoOther proves contract 5.11. SQLite has no settings that end with the transaction.
func TestSettingsOfAMemberReachNoOther(t *testing.T) {
	const state = `SELECT concat_ws('/', current_user, current_setting('search_path'), coalesce(current_setting('app.tenant', true), ''),
		current_setting('synchronous_commit'), current_setting('transaction_read_only'))`
	for name, set := range map[string]func(tx *gorm.DB) error{
		"a role": func(tx *gorm.DB) error { return tx.Exec("SET LOCAL ROLE pg_monitor").Error },
		"a search path, in a later statement": func(tx *gorm.DB) error {
			return tx.Exec("SELECT 1; set local search_path = pg_catalog").Error
		},
		"durability, in a nested transaction": func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return tx.Exec("/* quick */ SET LOCAL synchronous_commit = off").Error })
		},
		"a read-only transaction": func(tx *gorm.DB) error { return tx.Exec("SET TRANSACTION READ ONLY").Error },
		"a tenant, in a query": func(tx *gorm.DB) error {
			var tenant string
			return tx.Raw("SELECT pg_catalog.Set_Config('app.tenant', ?, true)", "a").Scan(&tenant).Error
		},
		"a tenant, by a prepared statement": func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{PrepareStmt: true}).Exec("SELECT set_config('app.tenant', ?, true)", "b").Error
		},
		"a role, in a block": func(tx *gorm.DB) error { return tx.Exec("DO $$ BEGIN SET LOCAL ROLE pg_monitor; END $$").Error },
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				var usual string
				require.NoError(t, d.DB.Raw(state).Scan(&usual).Error)
				changed, fails := 0, true
				ib, _ := company(t, d, fxtest.NewClock(inboxtest.Noon),
					func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						var now string
						require.NoError(t, tx.Raw(state).Scan(&now).Error)
						require.Equal(t, usual, now, m.ID)
						if m.ID != "2" && m.ID != "3" {
							return nil
						}
						require.NoError(t, set(tx))
						require.NoError(t, tx.Raw(state).Scan(&now).Error)
						if now != usual {
							changed++
						}
						if m.ID == "2" && fails { // the rollback to its savepoint undoes the setting
							fails = false
							return errBoom
						}
						return nil
					})
				require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
				require.Equal(t, []string{"1", "3", "4"}, written())
				require.Equal(t, 3, changed, "the second failed; the third was undone and ran alone")
				requireUncharged(t, ib, "2")
			})
		})
	}
}

func TestRefusedCommitChargesOnlyTheFailingMember(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		if !children(t, d) {
			return
		}
		ib, seen := company(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID != "3" {
					return nil
				}
				return tx.Exec("INSERT INTO children VALUES ('orphan')").Error // judged at commit
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
		require.Equal(t, "12341234", seen.order())
		require.Equal(t, []string{"1", "2", "4"}, written())
		requireUncharged(t, ib, "3")
	})
}

func TestStopCommitsFinishedMembersAndReleasesTheRest(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		running := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.Concurrency = 1
			o.Processor.StopBudget = soon
		}), inboxtest.Handlers(
			inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if err := write(tx, m.ID); err != nil {
					return err
				}
				if m.ID == "2" { // it is cancelled and completes nevertheless
					running <- m.ID
					<-ctx.Done()
				}
				return nil
			}, handler.TxGroup(4))))
		inboxtest.Accept(t, ib, "1", "2", "3", "4")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Receive(t, running, "the second")
		require.NoError(t, ib.Stop(context.Background()))
		require.Equal(t, []string{"1", "2"}, written())
		for _, s := range inboxtest.Statuses(t, ib) {
			require.Equal(t, slices.Contains([]string{"1", "2"}, s.MessageID), s.CompletedAt != nil, s.MessageID)
			require.Zero(t, s.ErrorCount)
			require.Nil(t, s.ProcessingStartedAt)
		}
	})
}
