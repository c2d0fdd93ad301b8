package database_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/simulation/database"
)

const schema = `
CREATE TABLE parents (id integer NOT NULL PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE children (
	id integer NOT NULL PRIMARY KEY,
	parent integer NOT NULL REFERENCES parents (id) ON DELETE CASCADE,
	lane integer, holds boolean NOT NULL DEFAULT false, n integer NOT NULL DEFAULT 0, body blob
);
CREATE UNIQUE INDEX holder ON children (lane) WHERE holds;
INSERT INTO parents VALUES (1, 'a'), (2, 'b');
INSERT INTO children (id, parent, lane, body) VALUES (1, 1, 7, x'00ff27'), (2, 1, 7, NULL), (3, 2, 8, NULL)`

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(t *testing.T, d *database.Database, db *sql.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := database.New(database.Options{})
		require.NoError(t, err)
		db := d.Open("", nil)
		exec(t, db, schema)
		test(t, d, db)
		require.NoError(t, db.Close())
		require.NoError(t, d.Close())
	})
}

type executor interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

func exec(t *testing.T, db executor, text string, args ...any) (affected int64) {
	t.Helper()
	done, err := db.ExecContext(context.Background(), text, args...)
	require.NoError(t, err)
	affected, err = done.RowsAffected()
	require.NoError(t, err)
	return affected
}

func number(t *testing.T, db executor, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(context.Background(), query).Scan(&n))
	return n
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	require.NoError(t, err)
	return tx
}

// waiting runs a statement that waits. The channel gets its error.
func waiting(t *testing.T, db executor, text string) chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(context.Background(), text)
		ended <- err
	}()
	synctest.Wait()
	require.Empty(t, ended, "it waits")
	return ended
}

func TestConcurrentUpdatesOfARowAreSerial(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "UPDATE children SET n = n + 1 WHERE id = 1")
		require.Equal(t, 1, number(t, one, "SELECT n FROM children WHERE id = 1"), "it sees its own change")
		require.Equal(t, 0, number(t, two, "SELECT n FROM children WHERE id = 1"), "others do not")
		exec(t, two, "UPDATE children SET n = 5 WHERE id = 2")
		ended := waiting(t, two, "UPDATE children SET n = n + 1 WHERE id = 1")
		require.NoError(t, one.Commit())
		require.NoError(t, <-ended)
		require.Equal(t, 2, number(t, two, "SELECT n FROM children WHERE id = 1"), "it has run again after the commit")
		require.NoError(t, two.Commit())
		require.Equal(t, 7, number(t, db, "SELECT sum(n) FROM children"))
		require.Equal(t, 1, number(t, db, "SELECT body = x'00ff27' FROM children WHERE id = 1"), "no value has changed")
	})
}

func TestRolledBackChangesAreGone(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		tx := begin(t, db)
		exec(t, tx, "DELETE FROM parents WHERE id = 1")
		require.Equal(t, 1, number(t, tx, "SELECT count(*) FROM children"), "its children are deleted with it")
		exec(t, tx, "SAVEPOINT s")
		exec(t, tx, "DELETE FROM parents")
		_, err := tx.Exec("INSERT INTO parents VALUES (9, 'x'), (9, 'y')")
		require.Error(t, err)
		_, err = tx.Exec("SELECT 1")
		require.ErrorIs(t, err, database.ErrAborted)
		exec(t, tx, "ROLLBACK TO SAVEPOINT s")
		require.Equal(t, 1, number(t, tx, "SELECT count(*) FROM parents"))
		require.NoError(t, tx.Rollback())
		require.Equal(t, 3, number(t, db, "SELECT count(*) FROM children"))
	})
}

func TestAbortedTransactionIsNotCommitted(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		tx := begin(t, db)
		exec(t, tx, "UPDATE children SET n = 1")
		_, err := tx.Exec("INSERT INTO parents VALUES (1, 'x')")
		require.Error(t, err)
		require.ErrorIs(t, tx.Commit(), database.ErrAborted)
		require.Zero(t, number(t, db, "SELECT sum(n) FROM children"))
	})
}

func TestLockedRowsAreSkippedOrAwaited(t *testing.T) {
	const rows = "SELECT count(*) FROM (SELECT rowid AS r FROM children WHERE parent = 1) WHERE lock_row('children', r, 3, "
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "UPDATE children SET n = 1 WHERE id = 1")
		require.Equal(t, 1, number(t, two, rows+"1)"))
		ended := waiting(t, one, "UPDATE children SET n = 1 WHERE id = 2")
		require.NoError(t, two.Rollback())
		require.NoError(t, <-ended)
		ended = waiting(t, db, rows+"0)")
		require.NoError(t, one.Commit())
		require.NoError(t, <-ended)
	})
}

func TestInsertOfAnUncommittedKeyWaits(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		for name, end := range map[string]func(*sql.Tx) error{"kept": (*sql.Tx).Commit, "undone": (*sql.Tx).Rollback} {
			one := begin(t, db)
			exec(t, one, "INSERT INTO parents (name) VALUES (?)", name)
			ended := waiting(t, db, "INSERT INTO parents (name) VALUES ('"+name+"') ON CONFLICT DO NOTHING")
			require.NoError(t, end(one))
			require.NoError(t, <-ended)
			require.Equal(t, 1, number(t, db, "SELECT count(*) FROM parents WHERE name = '"+name+"'"))
		}
	})
}

func TestPartialUniqueIndexLocksOnlyItsRows(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "UPDATE children SET holds = true WHERE id = 1")
		exec(t, two, "UPDATE children SET n = 1 WHERE id = 2")
		ended := waiting(t, two, "UPDATE children SET holds = true WHERE id = 2")
		require.NoError(t, one.Commit())
		require.ErrorContains(t, <-ended, "UNIQUE")
		require.NoError(t, two.Rollback())
	})
}

func TestReferencedRowIsNotDeletedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one := begin(t, db)
		exec(t, one, "INSERT INTO children (id, parent) VALUES (9, 1)")
		exec(t, db, "UPDATE parents SET name = 'c' WHERE id = 1")
		ended := waiting(t, db, "DELETE FROM parents WHERE id = 1")
		require.NoError(t, one.Commit())
		require.NoError(t, <-ended)
		require.Equal(t, 1, number(t, db, "SELECT count(*) FROM children"), "the new child is deleted, too")
	})
}

func TestDeadlockEndsOneTransaction(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "UPDATE children SET n = 1 WHERE id = 1")
		exec(t, two, "UPDATE children SET n = 2 WHERE id = 2")
		ended := waiting(t, one, "UPDATE children SET n = 1 WHERE id = 2")
		_, err := two.Exec("UPDATE children SET n = 2 WHERE id = 1")
		require.ErrorIs(t, err, database.ErrDeadlock)
		require.NoError(t, two.Rollback())
		require.NoError(t, <-ended)
		require.NoError(t, one.Commit())
		require.Equal(t, 2, number(t, db, "SELECT sum(n) FROM children"))
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		one := begin(t, db)
		exec(t, one, "UPDATE children SET n = 1 WHERE id = 1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := db.ExecContext(ctx, "UPDATE children SET n = 2 WHERE id = 1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, one.Commit())
		require.Equal(t, 1, number(t, db, "SELECT n FROM children WHERE id = 1"))
	})
}

func TestCommitWithLostAnswerTakesEffect(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, db *sql.DB) {
		lost := errors.New("the answer is lost")
		far := d.Open("", func(_ context.Context, text string, do func() error) error {
			return errors.Join(do(), map[string]error{"COMMIT": lost}[text])
		})
		tx := begin(t, far)
		exec(t, tx, "UPDATE children SET n = 1")
		require.ErrorIs(t, tx.Commit(), lost)
		require.Equal(t, 3, number(t, db, "SELECT sum(n) FROM children"))
		exec(t, far, "UPDATE children SET n = 2")
		require.NoError(t, far.Close())
	})
}

func TestLostConnectionEndsItsTransaction(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, db *sql.DB) {
		for _, failure := range []error{errors.New("reset"), database.ErrSilent} {
			broken := false
			far := d.Open("", func(_ context.Context, _ string, do func() error) error {
				if broken {
					return failure
				}
				return do()
			})
			tx := begin(t, far)
			exec(t, tx, "UPDATE children SET n = 1 WHERE id = 1")
			broken = true
			_, err := tx.Exec("UPDATE children SET n = 2 WHERE id = 2")
			require.ErrorIs(t, err, failure)
			require.Error(t, tx.Commit())
			if failure == database.ErrSilent {
				ended := waiting(t, db, "UPDATE children SET n = 0 WHERE id = 1")
				killed, err := d.Terminate(t.Context(), true, "children", "1")
				require.NoError(t, err)
				require.Equal(t, 1, killed)
				require.NoError(t, <-ended)
			}
			require.Zero(t, number(t, db, "SELECT sum(n) FROM children"))
			exec(t, db, "UPDATE children SET n = 0")
			require.NoError(t, far.Close())
		}
	})
}

func TestTerminatedSessionIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, db *sql.DB) {
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "UPDATE children SET n = 1 WHERE id = 1")
		exec(t, two, "UPDATE children SET n = 1 WHERE id = 2")
		ended := waiting(t, two, "UPDATE children SET n = 1 WHERE id = 1")
		_, err := d.Terminate(t.Context(), false, "children", "2")
		require.NoError(t, err)
		require.ErrorIs(t, <-ended, database.ErrTerminated)
		require.Error(t, two.Commit())
		require.NoError(t, one.Commit())
	})
}

func TestSchemaChangesRunAlone(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		for _, end := range []string{"COMMIT", "ROLLBACK", "a lost connection"} {
			one, err := db.Conn(t.Context())
			require.NoError(t, err)
			exec(t, one, "BEGIN IMMEDIATE")
			exec(t, one, "CREATE TABLE more (id integer PRIMARY KEY, n integer UNIQUE)")
			ended := waiting(t, db, "INSERT INTO more (n) VALUES (1)")
			if end == "a lost connection" {
				require.ErrorIs(t, one.Raw(func(any) error { return driver.ErrBadConn }), driver.ErrBadConn)
			} else {
				exec(t, one, end)
				require.NoError(t, one.Close())
			}
			if err := <-ended; end != "COMMIT" {
				require.ErrorContains(t, err, "no such table")
				continue
			}
			require.Equal(t, 1, number(t, db, "SELECT count(*) FROM more"))
			exec(t, db, "DROP TABLE more")
		}
	})
}

// The bubble's time stands still while a goroutine of database/sql waits by a mutex for a call that waits for time.
func TestCallsEndWithTheirContextWhileAnotherSessionRunsAlone(t *testing.T) {
	for name, calls := range map[string]struct{ before, within string }{
		"a row's lock": {before: "UPDATE children SET n = 2 WHERE id = 1"},
		"a savepoint":  {within: "SAVEPOINT s"},
		"the rollback": {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
				holder := begin(t, db)
				exec(t, holder, "UPDATE children SET n = 1 WHERE id = 1")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				tx, err := db.BeginTx(ctx, nil)
				require.NoError(t, err)
				exec(t, tx, "UPDATE children SET n = 2 WHERE id = 2")
				failures := make(chan error, 2)
				call := func(text string) {
					go func() {
						if text == "" {
							failures <- context.DeadlineExceeded
							return
						}
						_, err := tx.Exec(text)
						failures <- err
					}()
					synctest.Wait()
				}
				call(calls.before)
				alone, err := db.Conn(t.Context())
				require.NoError(t, err)
				exec(t, alone, "BEGIN IMMEDIATE")
				call(calls.within)
				<-time.After(time.Minute)
				require.Error(t, <-failures)
				require.Error(t, <-failures)
				require.Error(t, tx.Commit())
				exec(t, alone, "COMMIT")
				require.NoError(t, alone.Close())
				require.NoError(t, holder.Commit())
				require.Equal(t, 1, number(t, db, "SELECT sum(n) FROM children"))
			})
		})
	}
}

func TestConcurrentInsertsDoNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, _ *database.Database, db *sql.DB) {
		exec(t, db, "CREATE TABLE entries (name text NOT NULL PRIMARY KEY)")
		exec(t, db, "INSERT INTO entries VALUES ('first')")
		one, two := begin(t, db), begin(t, db)
		exec(t, one, "INSERT INTO entries VALUES ('a'), ('b')")
		exec(t, two, "INSERT INTO entries VALUES ('c'), ('d'), ('e')")
		exec(t, one, "INSERT INTO entries VALUES ('f')")
		require.NoError(t, two.Commit())
		exec(t, db, "INSERT INTO entries VALUES ('g')")
		require.NoError(t, one.Commit())
		require.Equal(t, 8, number(t, db, "SELECT count(DISTINCT rowid) FROM entries"))
	})
}

func TestValueOfASequenceIsTakenWhateverBecomesOfItsTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := database.New(database.Options{Sequences: regexp.MustCompile("UPDATE sequence")})
		require.NoError(t, err)
		db := d.Open("", nil)
		exec(t, db, "CREATE TABLE sequence (n integer); INSERT INTO sequence VALUES (0)")
		one, two := begin(t, db), begin(t, db)
		const next = "UPDATE sequence SET n = n + 1 RETURNING n"
		require.Equal(t, 1, number(t, one, next))
		require.Equal(t, 2, number(t, two, next))
		require.NoError(t, one.Rollback())
		require.Equal(t, 3, number(t, two, next))
		require.NoError(t, two.Commit())
		require.NoError(t, db.Close())
		require.NoError(t, d.Close())
	})
}

func TestNotificationsFollowTheCommit(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, db *sql.DB) {
		pings := 0
		l, err := d.Listen(t.Context(), func(_ context.Context, text string, do func() error) error {
			if text == "PING" {
				pings++
			}
			return do()
		}, "c")
		require.NoError(t, err)
		defer l.Close()
		tx := begin(t, db)
		exec(t, tx, "SELECT notify('c', 'one')")
		exec(t, tx, "SAVEPOINT s")
		exec(t, tx, "SELECT notify('c', 'none')")
		exec(t, tx, "ROLLBACK TO SAVEPOINT s")
		exec(t, tx, "SELECT notify('c', 'two')")
		exec(t, db, "SELECT notify('other', 'none')")
		go func() {
			<-time.After(150 * time.Minute)
			require.NoError(t, tx.Commit())
		}()
		for _, expected := range []string{"one", "two"} {
			text, err := l.Next(t.Context(), time.Hour)
			require.NoError(t, err)
			require.Equal(t, expected, text)
		}
		require.Equal(t, 2, pings)
	})
}

func TestClockIsTheBubblesWithADifference(t *testing.T) {
	bubble(t, func(t *testing.T, d *database.Database, _ *sql.DB) {
		d.SetAhead(-time.Hour)
		<-time.After(2 * time.Hour)
		require.Equal(t, time.Now().Add(-time.Hour), d.Now())
	})
}
