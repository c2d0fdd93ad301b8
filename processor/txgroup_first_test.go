package processor_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/processor"
)

// On PostgreSQL a member's savepoint is sent together with its handler's first statement, so these
// handlers, unlike those of company, differ in how they begin.

func members(t *testing.T, d *inboxtest.Database, clock inbox.Clock,
	fn func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error, opts ...handler.Option,
) (*inbox.Inbox, *calls) {
	t.Helper()
	var seen calls
	ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.Processor.Concurrency = 1
	}), inboxtest.Handlers(
		inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			seen.note(m.ID)
			return fn(ctx, tx, m)
		}, append(opts, handler.TxGroup(4))...)))
	inboxtest.Accept(t, ib, "1", "2", "3", "4")
	return ib, &seen
}

// effect is a row that GORM creates; on PostgreSQL the insert returns its number.
type effect struct {
	Number int64 `gorm:"primaryKey;autoIncrement"`
	ID     string
}

func TestFirstStatementAfterASavepointMayBeOfAnyKind(t *testing.T) {
	for name, begin := range map[string]func(tx *gorm.DB, id string) error{
		"with an Exec": write,
		"with an Exec without arguments": func(tx *gorm.DB, id string) error {
			return tx.Exec("INSERT INTO effects VALUES ('" + id + "')").Error
		},
		"with several statements at once": func(tx *gorm.DB, id string) error {
			return tx.Exec("SELECT 1; INSERT INTO effects VALUES ('" + id + "')").Error
		},
		"with a query": func(tx *gorm.DB, id string) error {
			var n int64
			return errors.Join(tx.Table("effects").Count(&n).Error, write(tx, id))
		},
		"with a query that writes": func(tx *gorm.DB, id string) error {
			var returned []string
			return tx.Raw("INSERT INTO effects VALUES (?) RETURNING id", id).Scan(&returned).Error
		},
		"with a row that is written": func(tx *gorm.DB, id string) error {
			return tx.Raw("INSERT INTO effects VALUES (?) RETURNING id", id).Row().Scan(new(string))
		},
		"by creating a model": func(tx *gorm.DB, id string) error {
			e := effect{ID: id}
			if err := tx.Table("created").Create(&e).Error; err != nil {
				return err
			}
			return write(tx, id)
		},
		"with a prepared statement": func(tx *gorm.DB, id string) error {
			statement, err := tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, "INSERT INTO effects VALUES ('"+id+"')")
			if err != nil {
				return err
			}
			_, err = statement.ExecContext(tx.Statement.Context)
			return errors.Join(err, statement.Close())
		},
		"with a nested transaction": func(tx *gorm.DB, id string) error {
			return tx.Transaction(func(tx *gorm.DB) error { return write(tx, id) })
		},
		"with a savepoint": func(tx *gorm.DB, id string) error {
			return errors.Join(tx.SavePoint("mine").Error, write(tx, id))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				if d.Dialect == "mysql" && (name == "with several statements at once" || strings.Contains(name, "writ")) {
					return // the driver refuses several by default, and MySQL returns no rows of an INSERT
				}
				written := effects(t, d)
				require.NoError(t, d.DB.Table("created").AutoMigrate(&effect{}))
				clock := fxtest.NewClock(inboxtest.Noon)
				ib, seen := members(t, d, clock, func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
					if err := begin(tx, m.ID); err != nil {
						return err
					}
					if (m.ID == "1" || m.ID == "3") && m.Attempt == 1 {
						return errBoom
					}
					return nil
				})
				require.Equal(t, processor.Drained{Picked: 4, Completed: 2, Failed: 2}, inboxtest.Process(t, ib))
				require.Equal(t, "1234", seen.order(), "each ran once")
				require.Equal(t, []string{"2", "4"}, written())
				clock.Advance(time.Minute)
				require.Equal(t, 2, inboxtest.Process(t, ib).Completed)
				require.Equal(t, []string{"1", "2", "3", "4"}, written())
			})
		})
	}
}

func TestHandlersThatWriteNothingShareATransaction(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib, seen := members(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, _ *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" {
					return errBoom
				}
				return nil
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
		require.Equal(t, "1234", seen.order())
		requireUncharged(t, ib, "2")
	})
}

// valueless is a value that the driver cannot send as an argument.
type valueless struct{ panics bool }

func (v valueless) Value() (driver.Value, error) {
	if v.panics {
		panic(errBoom)
	}
	return nil, errBoom
}

func TestFailedFirstStatementIsUndoneAlone(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, fail := range map[string]func(tx *gorm.DB) error{
		"the database refuses it":   func(tx *gorm.DB) error { return tx.Exec("INSERT INTO singles VALUES (?)", "x").Error },
		"it is wrong":               func(tx *gorm.DB) error { return tx.Exec("INSERT INTO nowhere VALUES (?)", "x").Error },
		"its argument has no value": func(tx *gorm.DB) error { return writeValue(tx, valueless{}) },
		"its argument panics":       func(tx *gorm.DB) error { return writeValue(tx, valueless{panics: true}) },
		"its failure is swallowed": func(tx *gorm.DB) error {
			_ = tx.Exec("INSERT INTO singles VALUES (?)", "x").Error
			return nil
		},
		"its context has ended": func(tx *gorm.DB) error {
			return endedThenBoom(tx, write(tx.WithContext(ended), "lost"))
		},
		"its context has ended, for a query": func(tx *gorm.DB) error {
			return endedThenBoom(tx, tx.WithContext(ended).Raw("SELECT 1").Row().Scan(new(int)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				inboxtest.Exec(t, d.DB, "CREATE TABLE singles(id varchar(9) primary key)")
				inboxtest.Exec(t, d.DB, "INSERT INTO singles VALUES ('x')")
				ib, seen := members(t, d, fxtest.NewClock(inboxtest.Noon),
					func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						if m.ID == "3" {
							return fail(tx)
						}
						return write(tx, m.ID)
					})
				require.Equal(t, processor.Drained{Picked: 4, Completed: 3, Failed: 1}, inboxtest.Process(t, ib))
				require.Equal(t, "1234", seen.order(), "each ran once")
				require.Equal(t, []string{"1", "2", "4"}, written())
				requireUncharged(t, ib, "3")
			})
		})
	}
}

func writeValue(tx *gorm.DB, id any) error {
	return tx.Exec("INSERT INTO effects VALUES (?)", id).Error
}

// endedThenBoom continues as if nothing had happened: nothing has reached the database.
func endedThenBoom(tx *gorm.DB, err error) error {
	if !errors.Is(err, context.Canceled) {
		return nil
	}
	if err := write(tx, "undone"); err != nil {
		return nil
	}
	return errBoom
}

func TestFirstStatementReportsRowsAffectedAndError(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		d.DB.TranslateError = true
		inboxtest.Exec(t, d.DB, "CREATE TABLE singles(id varchar(9) primary key)")
		inboxtest.Exec(t, d.DB, "INSERT INTO singles VALUES ('x')")
		affected, failures := []int64{}, []error{}
		ib, seen := members(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if m.ID == "2" || m.ID == "4" {
					err := tx.Exec("INSERT INTO singles VALUES (?)", "x").Error
					failures = append(failures, err)
					return err
				}
				result := tx.Exec("INSERT INTO effects SELECT id FROM singles UNION ALL SELECT ? FROM singles", m.ID)
				affected = append(affected, result.RowsAffected)
				return result.Error
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 2, Failed: 2}, inboxtest.Process(t, ib))
		require.Equal(t, "1234", seen.order())
		require.Equal(t, []int64{2, 2}, affected)
		require.Equal(t, []string{"1", "3", "x", "x"}, written())
		require.Len(t, failures, 2)
		for _, err := range failures {
			require.True(t, store.IsUniqueViolation(err))
			if d.Dialect == "postgres" { // this SQLite driver translates no errors
				require.ErrorIs(t, err, gorm.ErrDuplicatedKey)
			}
		}
	})
}

func TestHandlerOfAGroupFindsThePool(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		pool, err := d.DB.DB()
		require.NoError(t, err)
		ib, _ := members(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, _ inboxtest.Bytes) error {
				found, err := tx.DB()
				if err == nil && found != pool {
					err = errors.New("another pool")
				}
				return err
			})
		require.Equal(t, 4, inboxtest.Process(t, ib).Completed)
	})
}

func TestGoroutinesOfAHandlerAllWriteAfterItsSavepoint(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d)
		ib, seen := members(t, d, fxtest.NewClock(inboxtest.Noon),
			func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				errs := make([]error, 8)
				var writers sync.WaitGroup
				for i := range errs {
					writers.Add(1)
					go func() {
						defer writers.Done()
						if session := tx.Session(&gorm.Session{}); i%2 == 0 {
							errs[i] = write(session, m.ID)
						} else {
							errs[i] = session.Exec("INSERT INTO effects VALUES ('" + m.ID + "')").Error
						}
					}()
				}
				writers.Wait()
				if m.ID != "2" {
					errs = append(errs, errBoom)
				}
				return errors.Join(errs...)
			})
		require.Equal(t, processor.Drained{Picked: 4, Completed: 1, Failed: 3}, inboxtest.Process(t, ib))
		require.Equal(t, "1234", seen.order())
		require.Equal(t, []string{"2", "2", "2", "2", "2", "2", "2", "2"}, written())
	})
}

func TestBrokenGroupTransactionChargesOnlyItsHandler(t *testing.T) {
	for name, test := range map[string]struct {
		meddle  func(tx *gorm.DB) error
		order   string
		drained processor.Drained
		written []string
	}{
		"it releases the savepoint": {
			func(tx *gorm.DB) error { return tx.Exec("RELEASE SAVEPOINT inbox_member").Error },
			"1231234", processor.Drained{Picked: 4, Completed: 3, Failed: 1}, []string{"1", "3", "4"},
		},
		"it leaves the transaction aborted": {
			func(tx *gorm.DB) error { _ = tx.Raw("SELECT 1 / 0").Row().Scan(new(int)); return nil },
			"1234", processor.Drained{Picked: 4, Completed: 3, Failed: 1}, []string{"1", "3", "4"},
		},
		"it rolls back to the savepoint": { // which undoes its own work, as it asked for
			func(tx *gorm.DB) error { return tx.Exec("ROLLBACK TO SAVEPOINT inbox_member").Error },
			"1234", processor.Drained{Picked: 4, Completed: 4}, []string{"1", "3", "4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Not on SQLite: a statement that fails does not abort its transaction.
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				ib, seen := members(t, d, fxtest.NewClock(inboxtest.Noon),
					func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						if err := write(tx, m.ID); err != nil || m.ID != "2" {
							return err
						}
						return test.meddle(tx)
					})
				require.Equal(t, test.drained, inboxtest.Process(t, ib))
				require.Equal(t, test.order, seen.order())
				require.Equal(t, test.written, written())
				culprit := "2"
				if test.drained.Failed == 0 {
					culprit = ""
				}
				requireUncharged(t, ib, culprit)
			})
		})
	}
}

func TestStuckHandlerWritesNothingOnceItsGroupIsRolledBack(t *testing.T) {
	for name, late := range map[string]func(tx *gorm.DB) error{
		"with an Exec": func(tx *gorm.DB) error { return write(tx, "late") },
		"with a row": func(tx *gorm.DB) error {
			return tx.Raw("INSERT INTO effects VALUES ('late') RETURNING id").Row().Scan(new(string))
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Not on SQLite: its transaction would hold the only write lock.
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d)
				goOn, wrote := make(chan bool), make(chan error, 1)
				ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
					o.Processor.Concurrency = 2
					o.Processor.StuckHandlerGrace = soon
				}), inboxtest.Handlers(
					inboxtest.Tx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						if m.ID == "2" {
							<-goOn
							wrote <- late(tx.WithContext(context.Background()))
							return nil
						}
						return write(tx, m.ID)
					}, handler.TxGroup(4), handler.Timeout(enough))))
				inboxtest.Accept(t, ib, "1", "2", "3")
				require.Equal(t, processor.Drained{Picked: 3, Completed: 2, Failed: 1}, inboxtest.Process(t, ib))
				close(goOn)
				require.Error(t, inboxtest.Receive(t, wrote, "the stubborn handler"))
				require.Equal(t, []string{"1", "3"}, written())
				requireUncharged(t, ib, "2")
			})
		})
	}
}
