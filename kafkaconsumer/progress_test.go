package kafkaconsumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPartitionCatchesUpOnceItsRecordsAreCommitted proves contract 6.5: what a partition has
// caught up to is when a response was asked for, once everything that the log held then is accepted
// and committed.
func TestPartitionCatchesUpOnceItsRecordsAreCommitted(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	p := newPartition(t.Context(), "orders", 0, 5)
	defer p.stop()
	p.begin(5, false)
	p.fetched(at(1), 8, 8, 8, 0)
	p.accept(8, time.Time{})
	p.commit(8)
	require.Zero(t, p.caughtUpAt(), "the first response may come from a leader that is behind")
	require.True(t, p.assigned(10))
	p.fetched(at(2), 10, 10, 10, 0)
	p.fetched(at(3), 12, 12, 12, 0) // more comes
	p.accept(12, time.Time{})
	require.Zero(t, p.caughtUpAt(), "it may be delivered again, because it is not committed")
	p.commit(12)
	require.Equal(t, at(1), p.caughtUpAt())

	p.fetched(at(4), 14, 20, 20, 0)
	p.accept(14, time.Time{})
	p.commit(14)
	require.Equal(t, at(1), p.caughtUpAt(), "there was more at that moment")
	p.accept(20, time.Time{})
	p.commit(20)
	require.Equal(t, at(4), p.caughtUpAt())
	for second := range 3 { // nothing comes
		p.fetched(at(10+second), 20, 20, 20, 0)
		require.Equal(t, at(10+second), p.caughtUpAt())
	}

	p.fetched(at(20), 20, 30, 20, 0) // records of an open transaction
	p.fetched(at(21), 20, 30, 20, 0)
	require.Equal(t, at(12), p.caughtUpAt())

	p.restart(0, 4) // another log
	p.fetched(at(30), 0, 4, 4, 0)
	require.Equal(t, at(12), p.caughtUpAt(), "nothing of it is read")
	p.accept(4, time.Time{})
	p.commit(4)
	require.Equal(t, at(30), p.caughtUpAt())

	p.fetched(at(40), 4, 9, 9, 0)
	p.fetched(at(41), 4, 4, 4, 0) // an unclean election took the end away
	require.Equal(t, at(30), p.caughtUpAt())
	p.fetched(at(102), 4, 4, 4, 0)
	require.Equal(t, at(102), p.caughtUpAt())

	empty := newPartition(t.Context(), "orders", 1, -1)
	defer empty.stop()
	empty.begin(3, false)
	require.True(t, empty.assigned(3))
	empty.fetched(at(1), 3, 3, 3, 3)
	require.Equal(t, at(1), empty.caughtUpAt(), "there is nothing to commit")
	pinned := newPartition(t.Context(), "orders", 2, -1)
	defer pinned.stop()
	pinned.begin(3, true)
	require.True(t, pinned.assigned(3))
	pinned.fetched(at(1), 3, 3, 3, 3)
	require.Zero(t, pinned.caughtUpAt())
	pinned.commit(3)
	require.Equal(t, at(1), pinned.caughtUpAt())
}
