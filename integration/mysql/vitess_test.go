package mysql_test

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// vitess is the server of this package's tests, which start it at first use.
var vitess = sync.OnceValues(func() (*servers.Vitess, error) {
	v, err := servers.StartVitess()
	if err == nil {
		atEnd = v.Close
	}
	return v, err
})

var atEnd = func() error { return nil }

func TestMain(m *testing.M) {
	status := m.Run()
	if err := atEnd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// hasVitess reports whether tests run on Vitess, too, which only `make vitess` builds.
func hasVitess() bool { return os.Getenv(servers.VitessEnv) != "" }

// notOnVitess says why a test cannot hold on Vitess, by the name of the test.
var notOnVitess = map[string]string{
	"TestHandlerUsesTemporaryTables":                                      "tablets refuse to make one in a transaction",
	"TestOwnTransactionWithAnOlderSnapshotAcceptsWhatCleanupHasDeleted":   keepsIsolation,
	"TestStatementsReadFewRowsOfALargeInbox":                              hidesReads,
	"TestOperatorsReadFewRowsOfALargeInbox":                               hidesReads,
	"TestClaimsReadNothingThatIsDueLater":                                 hidesReads,
	"TestStoreLeavesPreparedStatementsToTheApplication":                   "it prepares no statement in MySQL",
	"TestTablesOfAutoMigrateAreRefused":                                   "GORM finds no table there, because the data has another name in MySQL",
	"TestServerOrConnectionThatWouldLoseMessagesIsRefused/Vitess/" + bare: "it refuses this sql_mode itself",
	"TestVitess/Size": "the test reads 20,000 rows at once and tablets return 10,000",
}

const (
	keepsIsolation = "a session keeps the isolation of its last transaction that stated one"
	hidesReads     = "the sessions that count the rows they have read are those of the tablets"
	bare           = "sql_mode='STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'"
)

// leaveOutOnVitess ends a test that notOnVitess has.
func leaveOutOnVitess(t *testing.T) {
	t.Helper()
	for name, why := range notOnVitess {
		if t.Name() == name || strings.HasPrefix(t.Name(), name+"/") {
			t.Skipf("LEFT OUT: %s on Vitess (%s)", name, why)
		}
	}
}

// behind has a pool on the MySQL behind each keyspace that a test uses: only there can a test see and stop sessions.
var behind sync.Map // the address and the keyspace → *gorm.DB

func placeOf(t testing.TB, dsn string) (address, database string) {
	t.Helper()
	config, err := driver.ParseDSN(dsn)
	require.NoError(t, err)
	return config.Addr, config.DBName
}

// openOnVitess opens a keyspace of its own.
func openOnVitess(t testing.TB) *gorm.DB {
	t.Helper()
	v, err := vitess()
	require.NoError(t, err)
	dsn, end, err := v.Keyspace()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, end()) })
	address, keyspace := placeOf(t, dsn)
	data, err := testenv.OnMySQLDatabase(v.MySQL.DSN(), servers.BehindVitess(keyspace))
	require.NoError(t, err)
	behind.Store(address+"/"+keyspace, testenv.Open(t, mysql.Open(data), gorm.Config{}))
	t.Cleanup(func() { behind.Delete(address + "/" + keyspace) })
	return testenv.Open(t, mysql.Open(dsn), gorm.Config{})
}

// ofServer returns a session in which the server's sessions can be seen and stopped.
func ofServer(db *gorm.DB) *gorm.DB {
	config, err := driver.ParseDSN(db.Dialector.(*mysql.Dialector).DSN)
	if err != nil {
		return db
	}
	if found, is := behind.Load(config.Addr + "/" + config.DBName); is {
		return found.(*gorm.DB).WithContext(db.Statement.Context)
	}
	return db
}

// leaveOutWithoutVitess leaves a test out where `make vitess` does not run it.
func leaveOutWithoutVitess(t *testing.T) {
	t.Helper()
	if !hasVitess() {
		t.Skip("LEFT OUT: Vitess (make vitess runs the tests on it)")
	}
}

// needVitess returns the server of this package's tests.
func needVitess(t *testing.T) *servers.Vitess {
	t.Helper()
	leaveOutWithoutVitess(t)
	v, err := vitess()
	require.NoError(t, err)
	return v
}

func TestVitess(t *testing.T) {
	needVitess(t)
	storetest.RunOn(t, func(t *testing.T) (*gorm.DB, store.Store) {
		leaveOutOnVitess(t)
		return storetest.Migrated(t, openOnVitess(t))
	}, func(*gorm.DB) storetest.Server { return &server{} })
}

// TestVitessIsRecognized shows that a start warns of the limits of Vitess's tablets, which a statement cannot read.
func TestVitessIsRecognized(t *testing.T) {
	needVitess(t)
	_, st := storetest.Migrated(t, openOnVitess(t))
	warnings, err := st.CheckSettings(t.Context(), true)
	require.NoError(t, err, "the shards of other keyspaces do not count")
	require.Contains(t, fmt.Sprint(warnings), "limits of its tablets")
}

// TestVitessWithShardsIsRefused asks in a keyspace in which a commit over two shards can be committed in
// part. One shard of it is not refused.
func TestVitessWithShardsIsRefused(t *testing.T) {
	v := needVitess(t)
	for dsn, refused := range map[string]bool{
		v.Sharded(): true, strings.Replace(v.Sharded(), "/sharded?", "/sharded@primary?", 1): true,
		strings.Replace(v.Sharded(), "/sharded?", "/sharded:-80?", 1): false,
	} {
		st, err := stores.New(testenv.Open(t, mysql.Open(dsn), gorm.Config{}), models.Naming{}, store.Options{})
		require.NoError(t, err)
		_, err = st.CheckSettings(t.Context(), false)
		if refused {
			require.ErrorContains(t, err, "keyspace is sharded", dsn)
		} else {
			require.NoError(t, err, dsn)
		}
	}
}

// TestVitessTabletThatEndsATransactionIsNotTheHandlersFault proves contract 5.7 ("The database's own failures"): a
// tablet that has lost its MySQL rolls back what was open, and then refuses the next statement and the commit.
func TestVitessTabletThatEndsATransactionIsNotTheHandlersFault(t *testing.T) {
	leaveOutWithoutVitess(t)
	v, err := servers.StartVitess() // other tests share theirs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	open := func(t testing.TB) *gorm.DB { return testenv.Open(t, mysql.Open(v.DSN()), gorm.Config{}) }
	db := orders(t, open)
	idle, err := handlertx.Begin(t.Context(), db, testenv.Patience, sql.LevelDefault)
	require.NoError(t, err)
	defer idle.Rollback()
	require.NoError(t, idle.DB.Exec(`INSERT INTO orders VALUES (3, 0)`).Error)
	err = handle(t, db, sql.LevelDefault, func(tx *gorm.DB) {
		require.NoError(t, tx.Exec(`INSERT INTO orders VALUES (4, 0)`).Error)
		require.NoError(t, v.MySQL.Kill())
		require.NoError(t, v.MySQL.Start())
		require.Eventually(t, func() bool { return db.Exec(`UPDATE orders SET paid = paid + 1`).Error == nil },
			testenv.Patience, 50*time.Millisecond)
		require.Error(t, tx.Exec(`INSERT INTO orders VALUES (5, 0)`).Error)
	})
	require.Regexp(t, "ended at|Error 2013", err.Error(), "the tablet has noticed it by itself, or by this statement")
	require.True(t, store.IsDatabaseFault(err), err)
	err = idle.Commit()
	require.Error(t, err)
	require.True(t, store.IsDatabaseFault(err) && store.OutcomeUnknown(err), err)
	// Each of the tablet's idle connections may be one to the former process, and fail once.
	require.Eventually(t, func() bool {
		var ids []int
		return db.Table("orders").Order("id").Pluck("id", &ids).Error == nil && slices.Equal([]int{1, 2}, ids)
	}, testenv.Patience, 50*time.Millisecond)
}
