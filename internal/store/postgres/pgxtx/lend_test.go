package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// nowhere is a driver whose connections do nothing.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error)                 { return nowhere{}, nil }
func (nowhere) Driver() driver.Driver                                        { return nil }
func (nowhere) Prepare(string) (driver.Stmt, error)                          { return nil, errors.ErrUnsupported }
func (nowhere) Close() error                                                 { return nil }
func (nowhere) Begin() (driver.Tx, error)                                    { return nowhere{}, nil }
func (nowhere) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return nowhere{}, nil }
func (nowhere) Commit() error                                                { return nil }
func (nowhere) Rollback() error                                              { return nil }

// TestConnectionClosedByItsTransactionIsNotReused ends the transaction while its connection is in use. With
// Raw alone, about one of 2,000 tries panics under the race detector: in database/sql, with a nil connection.
func TestConnectionClosedByItsTransactionIsNotReused(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer db.Close()
	for range 20_000 {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := conn.BeginTx(ctx, nil)
		require.NoError(t, err)
		withDriverConn(conn, func(any) { cancel() })
		_ = tx.Commit()
		withDriverConn(conn, func(driverConn any) { require.NotNil(t, driverConn) })
		_ = conn.Close()
	}
}

func TestPanicOfTheWorkPropagates(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer db.Close()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	require.PanicsWithValue(t, "ouch", func() { withDriverConn(conn, func(any) { panic("ouch") }) })
}
