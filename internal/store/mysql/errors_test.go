package mysql

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// MySQLError has the shape of the driver's error, which this module does not require.
type MySQLError struct {
	Number   uint16
	SQLState [5]byte
	Message  string
}

func (e *MySQLError) Error() string {
	return fmt.Sprintf("Error %d (%s): %s", e.Number, e.SQLState, e.Message)
}

func failure(number uint16, state, text string) error {
	e := &MySQLError{Number: number, Message: text}
	copy(e.SQLState[:], state)
	return fmt.Errorf("insert order: %w", e)
}

func TestErrorThatRolledTheTransactionBackIsTold(t *testing.T) {
	for _, each := range []struct {
		number      uint16
		state, text string
		rolledBack  bool
	}{
		{1213, "40001", "Deadlock found when trying to get lock", true},
		{1020, "HY000", "Record has changed since last read in table 'orders'", true},
		{1206, "HY000", "The total number of locks exceeds the lock table size", true},
		{1317, "70100", "Query execution was interrupted", true},
		{1203, "42000", "RESOURCE_EXHAUSTED", true},
		{3101, "40000", "Plugin instructed the server to rollback the current transaction", true},
		{9999, "HY000", "an error that nobody knows", true},
		{9999, "", "an error without a state", true},
		{1105, "HY000", "vttablet: ABORTED", true},
		{1062, "23000", "Duplicate entry '1' for key 'PRIMARY'", false},
		{1205, "HY000", "Lock wait timeout exceeded", false},
		{3572, "HY000", "Statement aborted because lock(s) could not be acquired immediately and NOWAIT is set", false},
		{1452, "23000", "Cannot add or update a child row", false},
		{1406, "22001", "Data too long for column", false},
		{1366, "HY000", "Incorrect integer value", false},
		{1364, "HY000", "Field 'a' doesn't have a default value", false},
		{1064, "42000", "You have an error in your SQL syntax", false},
		{1146, "42S02", "Table 'a.b' doesn't exist", false},
		{1644, "45000", "raised by a trigger", false},
		{1062, "23000", "Duplicate entry; transaction rolled back to reverse changes of partial DML execution", true},
		{1205, "HY000", "transaction rolled back: lock wait timeout", true},
	} {
		err := failure(each.number, each.state, each.text)
		require.Equal(t, each.rolledBack, mysqldialect.Dialect.RolledBack(err, nil), "%v", err)
	}
	require.False(t, mysqldialect.Dialect.RolledBack(errors.New("the driver refuses an argument"), nil))
}

func TestErrorIsClassified(t *testing.T) {
	for number, is := range map[uint16]func(error) bool{
		1412: store.Collided,
		1062: store.IsUniqueViolation, 1213: store.Collided, 1406: store.IsData, 1205: store.IsTransient,
		2006: store.IsTransient,
	} {
		require.True(t, is(failure(number, "HY000", "")), number)
		require.True(t, is(errors.Join(errors.New("other"), failure(number, "HY000", ""))), number)
	}
	require.True(t, store.IsTransient(errors.New("invalid connection")))
	for _, lost := range []error{errors.New("invalid connection"), failure(1053, "08S01", ""), failure(1927, "70100", "")} {
		require.True(t, store.OutcomeUnknown(lost), "a commit may have taken place: %v", lost)
	}
	for _, number := range []uint16{1105, 1317, 1815} {
		err := failure(number, "HY000", "target: shop.0.primary: vttablet: rpc error: error reading from server: EOF")
		require.Equal(t, number != 1815, store.IsTransient(err), number)
		require.True(t, store.OutcomeUnknown(err), "a tablet may have committed: %d", number)
		require.True(t, store.MayBeCommitted(store.FailedCommit(err)), number)
	}
	const tablet = "target: shop.0.primary: vttablet: rpc error: code = Aborted desc = "
	for _, text := range []string{"transaction 17: ended at 2026-01-02 03:04:05.678 UTC (transaction rolled back)",
		"transaction 17: not found (potential transaction timeout)", "transaction was aborted: rollback", "connection was aborted"} {
		ended := failure(1317, "70100", tablet+text)
		require.True(t, store.IsDatabaseFault(ended), "a tablet has ended the transaction: %s", text)
		require.True(t, store.OutcomeUnknown(ended), text)
	}
	late := failure(1317, "70100", tablet+"transaction 17: ended at 2026-01-02 03:04:05.678 UTC (exceeded timeout: 30s)")
	require.True(t, store.TimedOut(late) && !store.IsDatabaseFault(late), "the handler took too long")
	require.False(t, store.OutcomeUnknown(late), "its tablet rolled it back before the commit")
	for _, text := range []string{"Query execution was interrupted", tablet + "Row count exceeded 10000"} {
		require.False(t, store.IsDatabaseFault(failure(1317, "70100", text)), text)
	}
	for _, number := range []uint16{1290, 1792, 1836} {
		class, found := mysqldialect.Dialect.Classify(failure(number, "HY000", "read-only"))
		require.True(t, found && class.Has(dialect.ReadOnly|dialect.Refused|dialect.Transient), number)
	}
	tooLarge := errors.New("packet for query is too large. Try adjusting the `Config.MaxAllowedPacket`")
	require.True(t, store.IsData(tooLarge), "the same message would fail for ever")
	require.False(t, store.IsTransient(failure(1064, "42000", "")))
	for _, text := range []string{"VT12001: unsupported", "VT03019: column 'a' not found", "syntax error at position 7 near 'a'"} {
		require.False(t, store.IsTransient(failure(1105, "HY000", text)), text)
	}
}
