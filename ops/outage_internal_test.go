package ops

import (
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Contract 11.1: what waits for the database ends, and an error that is not the database's ends it at once.
func TestBulkActionWaitsForTheDatabaseForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		fail := func(err error) func() error { return func() error { tries++; return err } }
		require.ErrorIs(t, untilDatabaseAnswers(t.Context(), fail(driver.ErrBadConn)), driver.ErrBadConn)
		require.WithinRange(t, time.Now(), began.Add(outageLimit), began.Add(outageLimit+10*time.Second))
		require.Less(t, tries, 30)

		tries = 0
		other := errors.New("other")
		require.ErrorIs(t, untilDatabaseAnswers(t.Context(), fail(other)), other)
		require.Equal(t, 1, tries)
	})
}
