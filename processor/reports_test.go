package processor

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// The loop waits for arrived only. An event without a signal would be handled only when some other
// event arrives.
func TestReportsAreTakenOnceEachAndNoneIsLost(t *testing.T) {
	const senders, each = 8, 2_000
	r := newReports()
	for range 2 { // first an event that comes alone, then one after it
		r.add(event{})
		require.Len(t, r.arrived, 1)
		<-r.arrived
		require.Len(t, r.take(), 1)
	}
	var sending sync.WaitGroup
	for range senders {
		sending.Add(1)
		go func() {
			defer sending.Done()
			for range each {
				if !r.add(event{finished: &group{}}) {
					t.Error("it was refused")
				}
			}
		}()
	}
	seen := map[*group]bool{}
	deadline := time.After(testenv.Patience)
	for len(seen) < senders*each {
		select {
		case <-r.arrived:
			for _, e := range r.take() {
				require.NotNil(t, e.finished)
				require.False(t, seen[e.finished], "it came twice")
				seen[e.finished] = true
			}
		case <-deadline:
			require.Fail(t, "events are lost", "%d of %d", len(seen), senders*each)
		}
	}
	sending.Wait()
	require.Empty(t, r.take())
}

func TestUntakenReportsAreReturnedAtTheEnd(t *testing.T) {
	r := newReports()
	g := &group{}
	require.True(t, r.add(event{finished: g}))
	require.Equal(t, []event{{finished: g}}, r.close())
	require.False(t, r.add(event{finished: g}), "its sender has to care")
	require.Empty(t, r.take(), "nothing is there twice")
}
