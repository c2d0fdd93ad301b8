package mysql_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestThisServerIsNotRefused(t *testing.T) { onEach(t, checkThisServerIsNotRefused) }

func checkThisServerIsNotRefused(t *testing.T, open opener) {
	db, st := storetest.Migrated(t, open(t))
	_, err := st.CheckSettings(t.Context(), true)
	require.NoError(t, err)
	for _, connections := range []int{0, 1, 2} {
		pool, err := db.DB()
		require.NoError(t, err)
		pool.SetMaxOpenConns(connections)
		warnings, err := st.CheckIsolation(t.Context(), sql.LevelDefault)
		require.NoError(t, err)
		require.Empty(t, warnings)
	}
}

func TestServerOrConnectionThatWouldLoseMessagesIsRefused(t *testing.T) {
	onEach(t, checkServerOrConnectionThatWouldLoseMessagesIsRefused)
}

func checkServerOrConnectionThatWouldLoseMessagesIsRefused(t *testing.T, open opener) {
	check := func(t *testing.T, db *gorm.DB) error {
		t.Helper()
		st, err := stores.New(db, models.Naming{}, store.Options{})
		require.NoError(t, err)
		_, err = st.CheckSettings(t.Context(), false)
		return err
	}
	t.Run("a table of another engine", func(t *testing.T) {
		db, _ := storetest.Migrated(t, open(t))
		require.NoError(t, check(t, db))
		require.NoError(t, db.Exec(`ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`).Error)
		require.NoError(t, db.Exec(`ALTER TABLE inbox_messages DROP KEY by_id`).Error, "it is too long for this engine")
		require.NoError(t, db.Exec(`ALTER TABLE inbox_messages ENGINE=MyISAM`).Error)
		require.ErrorContains(t, check(t, db), "not kept by InnoDB")
	})
	root := open(t).Dialector.(*mysql.Dialector).DSN
	for option, refused := range map[string]string{
		"sql_mode=''": "sql_mode is not strict", "parseTime=false": "parseTime=true&loc=UTC", "loc=Asia%2FTokyo": "parseTime=true&loc=UTC",
		"autocommit=0": "autocommit is off", "sql_mode='STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'": "NO_BACKSLASH_ESCAPES",
	} {
		t.Run(option, func(t *testing.T) {
			leaveOutOnVitess(t)
			dsn := strings.NewReplacer("parseTime=true&", "", "loc=UTC&", "").Replace(root) + "&" + option
			if !strings.HasPrefix(option, "parseTime") {
				dsn += "&parseTime=true"
			}
			require.ErrorContains(t, check(t, testenv.Open(t, mysql.Open(dsn), gorm.Config{})), refused)
		})
	}
}

// careless runs statements without their locks, as TiDB does.
type careless struct {
	gorm.ConnPool
	db *sql.DB
}

type carelessTx struct {
	careless
	gorm.TxCommitter
}

func (c careless) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return c.ConnPool.QueryContext(ctx, strings.TrimSuffix(text, " FOR UPDATE SKIP LOCKED"), args...)
}

func (c careless) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := c.db.BeginTx(ctx, options)
	return &carelessTx{careless{tx, c.db}, tx}, err
}

func (c careless) GetDBConn() (*sql.DB, error) { return c.db, nil }

func TestDatabaseThatGivesOneRowToTwoClaimsIsRefused(t *testing.T) {
	onEach(t, checkDatabaseThatGivesOneRowToTwoClaimsIsRefused)
}

func checkDatabaseThatGivesOneRowToTwoClaimsIsRefused(t *testing.T, open opener) {
	db, _ := storetest.Migrated(t, open(t))
	db = db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
	pool, err := db.DB()
	require.NoError(t, err)
	db.Statement.ConnPool = careless{pool, pool}
	st, err := stores.New(db, models.Naming{}, store.Options{})
	require.NoError(t, err)
	_, err = st.CheckIsolation(t.Context(), sql.LevelDefault)
	require.ErrorContains(t, err, "gives a row that one transaction has locked to another one")
}

func TestSessionOfTheApplicationStaysAsItIs(t *testing.T) {
	onEach(t, checkSessionOfTheApplicationStaysAsItIs)
}

func checkSessionOfTheApplicationStaysAsItIs(t *testing.T, open opener) {
	db := open(t)
	before := db.Statement.ConnPool
	storetest.Migrated(t, db)
	require.Same(t, before, db.Statement.ConnPool)
	var text string
	require.NoError(t, db.Raw(`SELECT "a $1"`).Scan(&text).Error)
	require.Equal(t, "a $1", text)
}
