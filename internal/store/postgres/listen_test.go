package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// another creates another store of the inbox with this naming.
func another(t *testing.T, db *gorm.DB, naming models.Naming) store.Store {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), db, naming, "test"))
	s, err := stores.New(db, naming, store.Options{})
	require.NoError(t, err)
	return s
}

var errBoom = errors.New("boom")

// hearing returns a store's listener.
func hearing(t *testing.T, s store.Store) store.Listener {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	l, err := s.Listen(ctx)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// notification returns what a listener receives until another store notifies of the end.
func notification(t *testing.T, l store.Listener, by store.Store) (all [][]string) {
	t.Helper()
	require.NoError(t, by.Notify(t.Context(), "the end"))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for {
		keys, err := l.Next(ctx, time.Second)
		require.NoError(t, err)
		if len(keys) == 1 && keys[0] == "the end" {
			return all
		}
		all = append(all, keys)
	}
}

// TestNotificationInATransactionComesWithItsCommit proves contract 4.7.
func TestNotificationInATransactionComesWithItsCommit(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	here, elsewhere := another(t, db, models.Naming{}), another(t, testenv.OpenPostgres(t, dsn), models.Naming{})
	l := hearing(t, here)
	inTx := func(s store.Store, end error, keys ...string) {
		require.ErrorIs(t, db.Transaction(func(tx *gorm.DB) error {
			require.NoError(t, s.NotifyTx(t.Context(), tx, keys...))
			return end
		}), end)
	}
	for _, tc := range []struct {
		name string
		act  func()
		want [][]string
	}{
		{"elsewhere", func() { require.NoError(t, elsewhere.Notify(t.Context(), "a", "b")) }, [][]string{{"a", "b"}}},
		{"one's own", func() { require.NoError(t, here.Notify(t.Context(), "a")) }, nil},
		{"in one's own transaction", func() { inTx(here, nil, "a") }, [][]string{{"a"}}},
		{"in a transaction elsewhere", func() { inTx(elsewhere, nil, "a", "b") }, [][]string{{"a", "b"}}},
		{"in a transaction that is rolled back", func() { inTx(elsewhere, errBoom, "a") }, nil},
	} {
		tc.act()
		require.Equal(t, tc.want, notification(t, l, elsewhere), tc.name)
	}
}

func TestNotificationOfTooManyKeysWakesAllHandlers(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	here, elsewhere := another(t, db, models.Naming{}), another(t, db, models.Naming{})
	l := hearing(t, here)
	var keys []string
	for i := range 60 {
		keys = append(keys, strings.Repeat("é", 190)+fmt.Sprint(i))
	}
	require.NoError(t, elsewhere.Notify(t.Context(), keys...))
	require.Equal(t, [][]string{nil}, notification(t, l, elsewhere))
}

// TestOnlyUsersOfTheSameTablesReceiveNotifications covers any schema that naming states for the tables,
// and any search path.
func TestOnlyUsersOfTheSameTablesReceiveNotifications(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	plain, named := another(t, db, models.Naming{}), another(t, db, models.Naming{Schema: "public"})
	other, elsewhere := another(t, db, models.Naming{Prefix: "other_"}), another(t, db,
		models.Naming{Schema: "elsewhere"})
	l, theirs := hearing(t, plain), hearing(t, other)
	for _, s := range []store.Store{named, other, elsewhere} {
		require.NoError(t, s.Notify(t.Context(), "a"))
	}
	require.Equal(t, [][]string{{"a"}}, notification(t, l, named))
	require.Empty(t, notification(t, theirs, another(t, db, models.Naming{Prefix: "other_"})))
}

// TestListenerEndsWhenTheTableIsRecreated proves contract 4.7: channels are named after the table.
func TestListenerEndsWhenTheTableIsRecreated(t *testing.T) {
	t.Parallel()
	db := testenv.OpenPostgres(t, testenv.PostgresDSN(t))
	l := hearing(t, another(t, db, models.Naming{}))
	require.NoError(t, db.Exec(`ALTER TABLE inbox_handler_statuses RENAME TO older`).Error)
	require.NoError(t, db.Exec(`CREATE TABLE inbox_handler_statuses (LIKE older)`).Error)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := l.Next(ctx, 100*time.Millisecond)
	require.ErrorContains(t, err, "was replaced")
}

func TestListenerUsesNoPoolConnection(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	l := hearing(t, another(t, db, models.Naming{}))
	require.Empty(t, notification(t, l, another(t, db, models.Naming{})))
	require.Zero(t, pool.Stats().InUse)
}

// wrapping is a driver around pgx, as those for tracing are.
type wrapping struct {
	driver.Driver
	wrap func(driver.Conn) driver.Conn
}

func (w wrapping) Open(dsn string) (driver.Conn, error) {
	conn, err := w.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	return w.wrap(conn), nil
}

type hidden struct{ driver.Conn }

type shown struct{ driver.Conn }

// Raw is a method that drivers of this kind have by convention.
func (s shown) Raw() driver.Conn { return s.Conn }

func init() {
	sql.Register("pgx hidden", wrapping{stdlib.GetDefaultDriver(), func(c driver.Conn) driver.Conn { return hidden{c} }})
	sql.Register("pgx shown", wrapping{stdlib.GetDefaultDriver(), func(c driver.Conn) driver.Conn { return shown{c} }})
}

// counting counts claims, as a tracing driver sees the statements.
type counting struct {
	*stdlib.Conn
	claims *atomic.Int32
}

func (c counting) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(statement, "SKIP LOCKED") {
		c.claims.Add(1)
	}
	return c.Conn.QueryContext(ctx, statement, args)
}

// TestClaimsAreSeenByADriverAroundPgx proves that pgx is not called directly where a driver wraps
// it.
func TestClaimsAreSeenByADriverAroundPgx(t *testing.T) {
	t.Parallel()
	var claims atomic.Int32
	name := "pgx counting " + t.Name()
	sql.Register(name, wrapping{stdlib.GetDefaultDriver(), func(c driver.Conn) driver.Conn {
		return counting{c.(*stdlib.Conn), &claims}
	}})
	pool, err := sql.Open(name, testenv.PostgresDSN(t))
	require.NoError(t, err)
	defer pool.Close()
	_, s := storetest.Migrated(t, testenv.Open(t, postgresdriver.New(postgresdriver.Config{Conn: pool}), gorm.Config{}))
	claimed, err := s.Claim(t.Context(), store.ClaimRequest{Now: time.Now(),
		Limits: []store.KeyLimit{{HandlerKey: "h", Limit: 1}}})
	require.NoError(t, err)
	require.Empty(t, claimed.Claims)
	require.EqualValues(t, 1, claims.Load())
}

func TestListenNeedsAPoolOfPgx(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	through := func(driverName string) error {
		pool, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer pool.Close()
		l, err := another(t, testenv.Open(t, postgresdriver.New(postgresdriver.Config{Conn: pool}), gorm.Config{}),
			models.Naming{}).Listen(t.Context())
		if err == nil {
			l.Close()
		}
		return err
	}
	require.NoError(t, through("pgx"))
	require.NoError(t, through("pgx shown"))
	err := through("pgx hidden")
	require.ErrorIs(t, err, store.ErrCannotListen)
	require.ErrorContains(t, err, "postgres_test.hidden")
}
