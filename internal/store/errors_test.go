package store_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

func TestErrorClasses(t *testing.T) {
	state := func(code string) error { return fmt.Errorf("accept: %w", &pgconn.PgError{Code: code}) }
	for _, each := range []struct {
		err                     error
		transient, data, unique bool
	}{
		{nil, false, false, false},
		{errors.New("whatever"), false, false, false},
		{store.ErrWorkerReleased, false, false, false},
		{gorm.ErrDuplicatedKey, false, false, true},
		{gorm.ErrRecordNotFound, false, false, false},
		{fmt.Errorf("claim: %w", context.DeadlineExceeded), true, false, false},
		{context.Canceled, true, false, false},
		{driver.ErrBadConn, true, false, false},
		{fmt.Errorf("accept: %w", pgxtx.ErrUnconfirmed), true, false, false},
		{sql.ErrConnDone, true, false, false},
		{sql.ErrTxDone, true, false, false},
		{io.ErrUnexpectedEOF, true, false, false},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true, false, false},
		{errors.New("failed to deallocate: conn closed"), true, false, false},
		{state("08006"), true, false, false},
		{state("08P01"), false, false, false},                                   // protocol violation
		{&pgconn.PgError{Severity: "FATAL", Code: "08P01"}, true, false, false}, // PgBouncer's for all that ends a connection
		{state("40001"), true, false, false},
		{state("40P01"), true, false, false},
		{state("53300"), true, false, false},
		{state("57014"), true, false, false},
		{state("57P01"), true, false, false},
		{state("57P03"), true, false, false},
		{state("55P03"), true, false, false},
		{state("25006"), true, false, false},
		{state("58030"), true, false, false},
		{state("22001"), false, true, false},
		{state("22021"), false, true, false},
		{state("23502"), false, true, false},
		{state("23505"), false, true, true},
		{state("54000"), false, true, false},
		{state("42P01"), false, false, false},
		{state("42501"), false, false, false},
		{state("25P02"), false, false, false},
	} {
		require.Equal(t, each.transient, store.IsTransient(each.err), "transient: %v", each.err)
		require.Equal(t, each.data, store.IsData(each.err), "data: %v", each.err)
		require.Equal(t, each.unique, store.IsUniqueViolation(each.err), "unique: %v", each.err)
	}
	require.True(t, store.OutcomeUnknown(fmt.Errorf("commit: %w", pgxtx.ErrUnconfirmed)), "a failover may undo it")
}
