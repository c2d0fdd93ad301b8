package mysql_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMariaDB(t *testing.T) { conform(t, testenv.MariaDBVariable) }

func TestMySQL(t *testing.T) { conform(t, testenv.MySQLVariable) }

func TestMariaDBPartitioned(t *testing.T) { conformPartitioned(t, testenv.MariaDBVariable) }

func TestMySQLPartitioned(t *testing.T) { conformPartitioned(t, testenv.MySQLVariable) }

// conformPartitioned runs the suite in the partitioned layout.
func conformPartitioned(t *testing.T, variable string) {
	leaveOutWithoutPartitions(t, variable)
	storetest.RunPartitionedOn(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.MigratedMySQLSpread(t, openOn(t, variable))
	}, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.MigratedMySQLKept(t, openOn(t, variable))
	}, func(*gorm.DB) storetest.Server { return &server{} })
}

// conform runs the suite on the server that a variable of the environment names.
func conform(t *testing.T, variable string) {
	if os.Getenv(variable) == "" {
		testenv.MySQLDSN(t, variable) // leaves the whole test out
	}
	storetest.RunOn(t, func(t *testing.T) (*gorm.DB, store.Store) {
		return storetest.Migrated(t, openOn(t, variable))
	}, func(*gorm.DB) storetest.Server { return &server{} })
}

// opener opens a database of its own.
type opener func(t testing.TB) *gorm.DB

// onEach runs a test on MariaDB and on MySQL, and on Vitess if it is there.
func onEach(t *testing.T, test func(t *testing.T, open opener)) {
	t.Helper()
	for name, variable := range map[string]string{"MariaDB": testenv.MariaDBVariable, "MySQL": testenv.MySQLVariable} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(variable) == "" {
				testenv.MySQLDSN(t, variable)
			}
			test(t, func(t testing.TB) *gorm.DB { return openOn(t, variable) })
		})
	}
	if hasVitess() {
		t.Run("Vitess", func(t *testing.T) {
			leaveOutOnVitess(t)
			test(t, openOnVitess)
		})
	}
}

func openOn(t testing.TB, variable string) *gorm.DB {
	return testenv.Open(t, mysql.Open(testenv.MySQLDSN(t, variable)), gorm.Config{})
}

// server implements storetest.Server.
type server struct{ read time.Time }

// refreshed is after which time without a reader the server reads its transactions anew.
const refreshed = 150 * time.Millisecond

// Waiting counts what waits for a row's lock or in a trigger. It is 0 where the server would still answer with what was
// true at the last reading: of an earlier wait, perhaps.
func (m *server) Waiting(db *gorm.DB) (waiting int, err error) {
	if time.Since(m.read) < refreshed {
		return 0, nil
	}
	err = ofServer(db).Raw(`SELECT (SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
			WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE())
		+ (SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE())`).Scan(&waiting).Error
	m.read = time.Now()
	return waiting, err
}

var gates atomic.Int64

// Hold has a trigger wait for a lock of the server. An accept locks the known messages before it inserts others, so it
// is held before that.
func (*server) Hold(db *gorm.DB, event storetest.Event) (release func() error, err error) {
	gate := fmt.Sprintf("gate %d %d", os.Getpid(), gates.Add(1)) // other processes test on this server, too
	db = ofServer(db)
	held := db.Session(&gorm.Session{NewDB: true}).Begin()
	var got int
	if err := held.Raw(`SELECT GET_LOCK(?, 0)`, gate).Scan(&got).Error; err != nil {
		return nil, err
	}
	when := ""
	if event.Sets != "" {
		when = fmt.Sprintf("IF NEW.%[1]s AND NOT OLD.%[1]s THEN ", event.Sets)
	}
	moment := "AFTER"
	if event.Table == "inbox_messages" {
		moment = "BEFORE"
	}
	body := fmt.Sprintf(`DO GET_LOCK('%[1]s', 60); DO RELEASE_LOCK('%[1]s');`, gate)
	if when != "" {
		body = when + body + " END IF;"
	}
	err = db.Exec(fmt.Sprintf("CREATE TRIGGER hold_%d %s %s ON %s FOR EACH ROW BEGIN %s END", gates.Add(1), moment, event.Statement, event.Table,
		body)).Error
	return func() error {
		if held == nil {
			return nil
		}
		err := held.Exec(`DO RELEASE_LOCK(?)`, gate).Error
		_ = held.Rollback()
		held = nil
		return err
	}, err
}

func (*server) Lock(tx *gorm.DB, table, where string) error {
	var rows []map[string]any
	return tx.Raw(`SELECT 1 FROM ` + table + ` WHERE ` + strings.ReplaceAll(where, `"`, "`") + ` FOR UPDATE`).Scan(&rows).Error
}

func (*server) LockWorker(tx *gorm.DB, workerID string, shared bool) error {
	lock := `FOR UPDATE`
	if shared {
		lock = `LOCK IN SHARE MODE`
	}
	var id []string
	return tx.Raw(`SELECT id FROM inbox_worker_locks WHERE id = ? `+lock, workerID).Scan(&id).Error
}

// Survive makes the transaction the larger one: a server ends that which has changed and locked less.
func (*server) Survive(tx *gorm.DB) error {
	rows := make([]map[string]any, 100)
	for i := range rows {
		rows[i] = map[string]any{"name": fmt.Sprint("large ", i), "owner_id": "", "expires_at": time.Now()}
	}
	return tx.Table("inbox_locks").Create(rows).Error
}

func (*server) Evicts() bool { return false }

func (*server) DropTrigger(name, _ string) string { return "DROP TRIGGER " + name }

func (*server) CreatesInPartitions() bool { return false }

func (*server) Terminate(db, tx *gorm.DB) error {
	var id int
	if err := tx.Raw(`SELECT CONNECTION_ID()`).Scan(&id).Error; err != nil {
		return err
	}
	return ofServer(db).Exec(`KILL ?`, id).Error
}
