package servers

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStandbyOfMariaDBHasAllAcknowledgedCommits(t *testing.T) {
	primary, err := StartMariaDB(MySQLOptions{})
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Close()) })
	require.NoError(t, primary.execute(t.Context(), "CREATE TABLE written (step varchar(20)) ENGINE = InnoDB"))
	standby, err := primary.StartStandby()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })
	insert := func(step string) error {
		return primary.execute(t.Context(), "INSERT INTO written VALUES ('"+step+"')")
	}
	const written = "SELECT COUNT(*) FROM written"

	require.NoError(t, standby.Freeze())
	answer := make(chan error, 1)
	go func() { answer <- insert("waiting") }()
	inState := func(m *MySQL, state string) func() bool {
		return func() bool {
			return mysqlNumber(t, m, "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE ?", state) == 1
		}
	}
	require.Eventually(t, inState(primary, "Waiting for semi-sync ACK%"), startTimeout, pollInterval)
	require.Empty(t, answer)
	require.Zero(t, mysqlNumber(t, primary, written), "no session sees it before the standby has it")
	require.NoError(t, standby.Thaw())
	require.NoError(t, <-answer)

	db, err := sql.Open("mysql", standby.DSN())
	require.NoError(t, err)
	defer db.Close()
	reader, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer reader.Close()
	require.Eventually(t, func() bool { return mysqlNumber(t, standby, written) == 1 }, startTimeout, pollInterval)
	_, err = reader.ExecContext(t.Context(), "LOCK TABLES written READ")
	require.NoError(t, err)
	require.NoError(t, insert("unapplied"))
	require.NoError(t, primary.Kill())
	promoted := make(chan error, 1)
	go func() { promoted <- standby.Promote() }()
	require.Eventually(t, inState(standby, "Waiting in MASTER_GTID_WAIT%"), startTimeout, pollInterval)
	require.Equal(t, 1, mysqlNumber(t, standby, written))
	_, err = reader.ExecContext(t.Context(), "UNLOCK TABLES")
	require.NoError(t, err)
	require.NoError(t, <-promoted)
	require.Equal(t, 2, mysqlNumber(t, standby, written))
	require.NoError(t, standby.Stop())
	require.NoError(t, standby.Start())
	require.NoError(t, standby.execute(t.Context(), "INSERT INTO written VALUES ('promoted')"))
}
