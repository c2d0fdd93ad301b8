package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

// FuzzSQLiteTimesSortAndComeBack checks that what the SQLite store writes can be read, and that its
// text sorts as time does. Every comparison of times on SQLite relies on it.
func FuzzSQLiteTimesSortAndComeBack(f *testing.F) {
	f.Add(int64(0), int64(1))
	f.Add(int64(-62135596800000000), int64(253402300799999999))
	f.Add(int64(1767355200123456), int64(1767355200123457))
	f.Fuzz(func(t *testing.T, a, b int64) {
		first, second := store.StorableTime(time.UnixMicro(a)), store.StorableTime(time.UnixMicro(b))
		for _, at := range []time.Time{first, second} {
			for _, in := range []time.Time{at, at.In(time.FixedZone("", 5*3600+1800))} {
				var read store.Stamp
				require.NoError(t, read.Scan(store.SQLiteTime(in)))
				require.Equal(t, at.UTC(), read.Time)
				require.NoError(t, read.Scan([]byte(store.SQLiteTime(in))))
				require.Equal(t, at.UTC(), read.Time)
			}
		}
		require.Equal(t, first.Before(second), store.SQLiteTime(first) < store.SQLiteTime(second))
		require.Equal(t, first.Equal(second), store.SQLiteTime(first) == store.SQLiteTime(second))
	})
}

// FuzzTimesWrittenByDrivers covers times that users write through their driver, which has forms of
// its own: a time's String with everything in it is one of them.
func FuzzTimesWrittenByDrivers(f *testing.F) {
	f.Add(int64(1767355200), int64(123456789), "UTC", 0)
	f.Add(int64(1767355200), int64(0), "CEST", 7200)
	f.Add(int64(-1), int64(999999999), "", -12600)
	f.Fuzz(func(t *testing.T, seconds, nanoseconds int64, zone string, offset int) {
		at := store.StorableTime(time.Unix(seconds%2e11, nanoseconds%1e9))
		zoned := at.In(time.FixedZone("", offset%(14*3600)/60*60))
		if zoned.Year() < 1 || zoned.Year() > 9999 {
			return
		}
		var read store.Stamp
		for _, text := range []string{
			zoned.Format("2006-01-02 15:04:05.999999999-07:00"), zoned.Format(time.RFC3339Nano),
			at.UTC().Format("2006-01-02 15:04:05.999999999"),
			zoned.String(), at.UTC().String(), at.UTC().String() + " m=+0.000000001", zoned.String() + " m=-12.5",
		} {
			require.NoError(t, read.Scan(text), text)
			require.Equal(t, at.UTC(), read.Time, text)
		}
		require.NoError(t, read.Scan(zoned))
		require.Equal(t, at.UTC(), read.Time)

		// Anything else is an error or a time, never a panic.
		if read.Scan(zone) == nil {
			require.Equal(t, time.UTC, read.Location())
		}
	})
}
